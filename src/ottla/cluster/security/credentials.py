"""Passwords of users as the metadata keeps them: salted, for SCRAM (RFC 5802). No I/O.

What is kept proves that somebody knows the password and cannot be used in its place. The text form is
that of Kafka in ZooKeeper: `salt=…,stored_key=…,server_key=…,iterations=…`, each in Base64.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Final

from ottla.protocol.scram import DEFAULT_ITERATIONS, hash_name, new_salt, salted

# Kafka's limits.
FEWEST_ITERATIONS: Final = 4096
MOST_ITERATIONS: Final = 16384
SHORTEST_SALT: Final = 12

# What clients are called that nobody asked who they are; in some clusters these are the brokers.
NOBODY: Final = "ANONYMOUS"


def can_be_name(text: str) -> bool:
    """Whether a user can be called so: not as those are who proved nothing; and names stand in lines of
    a log, in which nobody should write lines of their own."""
    return text != NOBODY and not any(map(_is_control, text))


def _is_control(letter: str) -> bool:
    """Whether it would begin a new line in a log, or do something to a terminal."""
    return letter < " " or "\x7f" <= letter <= "\x9f" or letter in "\u2028\u2029"


class UnreadableCredential(ValueError):
    """A stored credential is not what it should be. Its text is not shown."""


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """A user's password for one mechanism."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int

    @classmethod
    def of_password(
        cls,
        mechanism: str,
        password: str,
        iterations: int = DEFAULT_ITERATIONS,
        salt: bytes | None = None,
    ) -> ScramCredential:
        """The credential for a password. Slow on purpose, as guessing shall be."""
        salt = new_salt() if salt is None else salt
        return cls.of_salted(
            mechanism, salted(mechanism, password, salt, iterations), salt, iterations
        )

    @classmethod
    def of_salted(
        cls, mechanism: str, salted_password: bytes, salt: bytes, iterations: int
    ) -> ScramCredential:
        algorithm = hash_name(mechanism)
        client_key = hmac.digest(salted_password, b"Client Key", algorithm)
        return cls(
            salt,
            hashlib.new(algorithm, client_key).digest(),
            hmac.digest(salted_password, b"Server Key", algorithm),
            iterations,
        )

    @classmethod
    def parse(cls, text: str) -> ScramCredential:
        fields = dict(part.partition("=")[::2] for part in text.split(","))
        try:
            return cls(
                base64.b64decode(fields["salt"], validate=True),
                base64.b64decode(fields["stored_key"], validate=True),
                base64.b64decode(fields["server_key"], validate=True),
                int(fields["iterations"]),
            )
        except (KeyError, ValueError):
            raise UnreadableCredential("a stored credential cannot be read") from None

    def render(self) -> str:
        salt, stored_key, server_key = (
            base64.b64encode(each).decode()
            for each in (self.salt, self.stored_key, self.server_key)
        )
        return (
            f"salt={salt},stored_key={stored_key},server_key={server_key},"
            f"iterations={self.iterations}"
        )

    def fits(self, mechanism: str, password: str) -> bool:
        """Whether this is the password. Slow on purpose, and as slow for a wrong one."""
        other = self.of_password(mechanism, password, self.iterations, self.salt)
        return hmac.compare_digest(other.stored_key, self.stored_key)
