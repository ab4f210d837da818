"""Passwords of users as the metadata keeps them: salted, for SCRAM (RFC 5802). No I/O.

What is kept proves that somebody knows the password and cannot be used in its place. The text form is
that of Kafka in ZooKeeper: `salt=…,stored_key=…,server_key=…,iterations=…`, each in Base64.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

# Numbers as on the wire.
SCRAM_NUMBERS: Final[Mapping[int, str]] = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_ALGORITHMS: Final[Mapping[str, str]] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
SCRAM_MECHANISMS: Final = tuple(_ALGORITHMS)

# Kafka's limits.
FEWEST_ITERATIONS: Final = 4096
MOST_ITERATIONS: Final = 16384
DEFAULT_ITERATIONS: Final = 8192
SHORTEST_SALT: Final = 12
_SALT_BYTES: Final = 24


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
        """Slow on purpose."""
        salt = os.urandom(_SALT_BYTES) if salt is None else salt
        algorithm = _ALGORITHMS[mechanism]
        salted = hashlib.pbkdf2_hmac(algorithm, password.encode(), salt, iterations)
        return cls.of_salted(mechanism, salted, salt, iterations)

    @classmethod
    def of_salted(
        cls, mechanism: str, salted: bytes, salt: bytes, iterations: int
    ) -> ScramCredential:
        algorithm = _ALGORITHMS[mechanism]
        client_key = hmac.digest(salted, b"Client Key", algorithm)
        return cls(
            salt,
            hashlib.new(algorithm, client_key).digest(),
            hmac.digest(salted, b"Server Key", algorithm),
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
