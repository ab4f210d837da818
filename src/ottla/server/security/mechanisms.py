"""SASL's mechanisms on the broker's side: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512.

An exchange takes the client's messages one by one and answers them, until it has found out who the
client is or refuses it. What a client is told of a refusal does not tell users that exist from users
that do not: an unknown user gets a salt, too, always the same one, and it and the iterations look like
those of the users that there are.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ottla.cluster.metadata import ResourceType
from ottla.cluster.security.credentials import ScramCredential, UnreadableCredential, can_be_name
from ottla.protocol.scram import DEFAULT_ITERATIONS, SALT_BYTES, SCRAM_MECHANISMS, hash_name

if TYPE_CHECKING:
    from ottla.cluster.metadata import ClusterImage, Resource

# The longest messages that are looked at: names, passwords and nonces are shorter. A name of SCRAM is
# prepared letter by letter on the broker's loop, which everybody waits for.
_LONGEST: Final = 8192
_LONGEST_OF_SCRAM: Final = 2048
# Passwords that are checked at the same time; the threads have other work, too.
_CHECKED_AT_ONCE: Final = 4
# Users that are looked at to learn what credentials look like here.
_LOOKED_AT: Final = 1000
# Kafka's tools make a salt of a number with so many bits, in digits and small letters.
_TEXT_SALT_BITS: Final = 130
_TEXT_SALT_SIZES: Final = range(22, 27)
_DIGITS: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"


class Refused(Exception):
    """The client is not let in; the message is what it is told. In the log stands `logged` in its place,
    if it has names of users."""

    def __init__(self, message: str, logged: str | None = None) -> None:
        super().__init__(message)
        self.logged = logged or message


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a message. With a user the exchange is over, and this is who the client is."""

    message: bytes = field(default=b"", repr=False)
    user: str | None = None
    expires_at: float | None = None  # seconds since 1970: of a token


class Exchange(Protocol):
    """The messages of one authentication, by one mechanism."""

    async def step(self, message: bytes) -> Reply:
        """The reply to the client's next message. Raises Refused."""


class CredentialForm(NamedTuple):
    """What a client sees of a credential before it has proved anything: it shows who made it."""

    iterations: int = DEFAULT_ITERATIONS
    salt_bytes: int | None = SALT_BYTES  # None: as many as it takes, as Kafka's tools make it
    is_text: bool = False  # of digits and small letters

    @classmethod
    def of(cls, credential: ScramCredential) -> CredentialForm:
        size = len(credential.salt)
        is_text = all(byte in _DIGITS for byte in credential.salt)
        is_kafkas = is_text and size in _TEXT_SALT_SIZES
        return cls(credential.iterations, None if is_kafkas else size, is_text)

    def salt(self, seed: bytes) -> bytes:
        """A salt of this form, always the same for one seed."""
        drawn = hashlib.shake_256(seed).digest(self.salt_bytes or 17)
        if self.salt_bytes is None:
            return _as_text(int.from_bytes(drawn) >> 8 * len(drawn) - _TEXT_SALT_BITS)
        return bytes(_DIGITS[each % len(_DIGITS)] for each in drawn) if self.is_text else drawn


def _as_text(number: int) -> bytes:
    digits = bytearray()
    while number:
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return bytes(reversed(digits))


class Users:
    """The users that the metadata knows, and what those get to see who are not among them."""

    def __init__(self, image: Callable[[], ClusterImage]) -> None:
        self._image = image
        # Until the cluster has one; then a client could tell brokers apart, but still not users.
        self._own_secret = os.urandom(32)
        self._forms: dict[str, list[CredentialForm]] = {}
        # The configurations that they were found in.
        self._looked_at: Mapping[Resource, Mapping[str, str]] | None = None
        self._checks = asyncio.Semaphore(_CHECKED_AT_ONCE)

    def credential(self, user: str, mechanism: str) -> ScramCredential | None:
        return _read(self._image().config(ResourceType.USER, user).get(mechanism))

    def unknown(self, user: str, mechanism: str) -> ScramCredential:
        """A credential for a user without a password: no password fits it."""
        secret = self._image().secret or self._own_secret

        def seed(form: CredentialForm) -> bytes:
            return hmac.digest(secret, repr((mechanism, user, *form)).encode(), "sha256")

        # By the highest of their seeds: a new form among the users changes few of the unknown ones.
        form = max(self._forms_of(mechanism), key=seed)
        size = hashlib.new(hash_name(mechanism)).digest_size
        return ScramCredential(form.salt(seed(form)), bytes(size), bytes(size), form.iterations)

    def _forms_of(self, mechanism: str) -> list[CredentialForm]:
        configs = self._image().configs
        if self._looked_at is not configs:
            self._looked_at = configs
            self._forms.clear()
        if mechanism not in self._forms:
            stored = islice(_stored(configs, mechanism), _LOOKED_AT)
            found = {CredentialForm.of(each) for each in stored}
            self._forms[mechanism] = sorted(found, key=repr) or [CredentialForm()]
        return self._forms[mechanism]

    async def has_password(self, user: str, password: str, is_gone: Callable[[], bool]) -> bool:
        """Whether this is the user's password. Takes time, also for a user that does not exist; nothing
        is computed for a client that did not wait for its turn."""
        mechanism: str = SCRAM_MECHANISMS[0]
        found = None
        for each in SCRAM_MECHANISMS:
            found = self.credential(user, each)
            if found is not None:
                mechanism = each
                break
        if found is None:
            found = self.unknown(user, mechanism)
        async with self._checks:
            if is_gone():
                return False
            return await asyncio.to_thread(found.fits, mechanism, password)


def _read(text: str | None) -> ScramCredential | None:
    if text is None:
        return None
    try:
        return ScramCredential.parse(text)
    except UnreadableCredential:
        return None


def _stored(
    configs: Mapping[Resource, Mapping[str, str]], mechanism: str
) -> Iterator[ScramCredential]:
    """The credentials of all users for a mechanism."""
    for (kind, _), values in configs.items():
        if kind is ResourceType.USER:
            credential = _read(values.get(mechanism))
            if credential is not None:
                yield credential


class PlainExchange:
    """PLAIN (RFC 4616): the password as it is. It is compared with those in the broker's
    configuration, and with the stored ones of users that are not there."""

    _REFUSAL = "Authentication failed: Invalid username or password"

    def __init__(
        self,
        passwords: Mapping[str, str],
        users: Users,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> None:
        self._passwords = passwords
        self._users = users
        self._is_gone = is_gone

    async def step(self, message: bytes) -> Reply:
        if len(message) > _LONGEST:
            raise Refused("Invalid SASL/PLAIN response: it is too long")
        try:
            authorization, user, password = message.decode().split("\0")
        except ValueError:  # UnicodeDecodeError is one
            raise Refused("Invalid SASL/PLAIN response: it must be a name and a password") from None
        if not user:
            raise Refused("Authentication failed: username not specified")
        if not password:
            raise Refused("Authentication failed: password not specified")
        if not can_be_name(user):
            raise Refused(self._REFUSAL)
        fits = await self._fits(user, password)
        if not fits:
            raise Refused(self._REFUSAL)
        if authorization not in ("", user):
            raise Refused(
                "Authentication failed: Client requested an authorization id that is different from "
                "username"
            )
        return Reply(user=user)

    async def _fits(self, user: str, password: str) -> bool:
        configured = self._passwords.get(user)
        if configured is None:
            return await self._users.has_password(user, password, self._is_gone)
        if hmac.compare_digest(configured.encode(), password.encode()):
            return True
        # A refusal takes as long as that of any other user.
        await self._users.has_password(user, password, self._is_gone)
        return False


class ScramExchange:
    """SCRAM (RFC 5802), by the library scramp; docs/adr/0021 says why."""

    def __init__(self, mechanism: str, users: Users) -> None:
        self._mechanism = mechanism
        self._users = users
        self._user = ""
        self._server: Any = None

    async def step(self, message: bytes) -> Reply:
        from scramp import ScramException

        if len(message) > _LONGEST_OF_SCRAM:
            raise Refused(f"Invalid {self._mechanism} message: it is too long")
        try:
            text = message.decode()
            if self._server is None:
                return self._first(text)
            return self._final(text)
        except (ScramException, UnicodeDecodeError):
            raise Refused(
                "Authentication failed during authentication due to invalid credentials with SASL "
                f"mechanism {self._mechanism}"
            ) from None

    def _first(self, text: str) -> Reply:
        from scramp import ScramMechanism

        self._server = ScramMechanism(self._mechanism).make_server(self._look_up)
        self._server.set_client_first(text)
        return Reply(self._server.get_server_first().encode())

    def _look_up(self, user: str) -> tuple[bytes, bytes, bytes, int]:
        self._user = user
        known = can_be_name(user)
        found = self._users.credential(user, self._mechanism) if known else None
        if found is None:
            found = self._users.unknown(user, self._mechanism)
        return found.salt, found.stored_key, found.server_key, found.iterations

    def _take_repeated_nonce(self, text: str) -> None:
        """librdkafka up to 2.6.0 puts its own nonce before the whole one, where it stands already.
        Kafka looks only whether the broker's nonce is at the end, which is what makes each exchange
        another, and so takes it. The proof is for what was sent."""
        whole, own = self._server.nonce, str(self._server.s_nonce)
        clients = str(whole).removesuffix(own)
        repeated = f"{clients}{whole}"
        if f",r={repeated}," in text:
            self._server.nonce = type(whole)(repeated)

    def _final(self, text: str) -> Reply:
        self._take_repeated_nonce(text)
        # Raises if the proof is wrong, and if a message comes a second time.
        self._server.set_client_final(text)
        return Reply(self._server.get_server_final().encode(), self._user)
