"""OAUTHBEARER on the broker's side: a signed JSON web token (RFC 7519, 7628) says who the client is.

The keys of those who sign come from a JSON web key set, in a file or behind a URL; they are read again
after a while, and when a token names a key that is not among them. Only signatures by a private key
are accepted: with a shared secret, or none, anybody who knows the key set could make tokens.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ottla.cluster.security.credentials import can_be_name
from ottla.server.observability.limited_log import LimitedLog
from ottla.server.security.mechanisms import Refused, Reply

if TYPE_CHECKING:
    from ottla.server.configuration.broker_config import BrokerConfig

log = LimitedLog(logging.getLogger("ottla.security"))

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
_REFUSAL: Final = b'{"status":"invalid_token"}'
_PATIENCE: Final = 10.0
_LARGEST_SET: Final = 1 << 20
# Keys are not read again more often than this, whatever tokens name.
_READ_AGAIN_SECONDS: Final = 10.0
# The longest message that is looked at: a token's header is read before anything is proved, on the
# broker's loop, and tokens are much shorter.
_LONGEST: Final = 64 << 10
NEEDS_PYJWT: Final = "OAUTHBEARER needs the package PyJWT: pip install 'ottla[oauth]'"


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token must be like."""

    url: str
    refresh_seconds: float
    audience: tuple[str, ...]
    issuer: str | None
    subject_claim: str
    leeway_seconds: int

    @classmethod
    def from_config(cls, config: BrokerConfig, listener: str) -> TokenRules | None:
        """The rules of a listener; None if it is told no keys."""

        def value(name: str) -> Any:
            return config.of_listener(listener, f"sasl.oauthbearer.{name}")

        url = value("jwks.endpoint.url")
        if not url:
            return None
        return cls(
            url,
            value("jwks.endpoint.refresh.ms") / 1000,
            value("expected.audience") or (),
            value("expected.issuer") or None,
            value("sub.claim.name"),
            value("clock.skew.seconds"),
        )


class Keys:
    """The keys of those who sign tokens, by their names."""

    def __init__(self, rules: TokenRules) -> None:
        self._rules = rules
        self._keys: dict[str | None, Any] = {}
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def key(self, name: str | None) -> Any:
        """The key of this name; the only one for a token that names none. None if there is none."""
        age = time.monotonic() - self._read_at
        if age > self._rules.refresh_seconds or (
            name not in self._keys and age > _READ_AGAIN_SECONDS
        ):
            if self._reading is None or self._reading.done():
                self._reading = asyncio.get_running_loop().create_task(self._read())
            await asyncio.shield(self._reading)
        if name is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(name)

    async def _read(self) -> None:
        from jwt import PyJWKSet
        from jwt.exceptions import PyJWTError

        try:
            document = await asyncio.to_thread(_load, self._rules.url)
            found = PyJWKSet.from_dict(document)
            # No shared secret: older versions of the library would check signatures with it, whatever
            # the token names.
            self._keys = {
                each.key_id: each for each in found.keys if each.algorithm_name in ALGORITHMS
            }
        except (OSError, ValueError, TypeError, AttributeError, PyJWTError) as error:
            log.error("keys for tokens not read: url=%s %s", self._rules.url, error)
        # Also if they could not be: those that are known count on until the next attempt.
        self._read_at = time.monotonic()


def _load(url: str) -> Any:
    from ottla.wire.http import opener

    with opener().open(url, timeout=_PATIENCE) as response:
        return json.loads(response.read(_LARGEST_SET))


class TokenExchange:
    """One authentication by a token."""

    def __init__(self, rules: TokenRules, keys: Keys) -> None:
        self._rules = rules
        self._keys = keys
        self._why: str | None = None

    async def step(self, message: bytes) -> Reply:
        if self._why is not None:
            # The client has read why, and ends the exchange.
            raise Refused("Authentication failed: the token was refused")
        try:
            return await self._check(_token_in(message))
        except _BadToken as error:
            self._why = str(error)
            # What the library says may hold parts of the token.
            log.info("token refused: %r", str(error))
            return Reply(_REFUSAL)

    async def _check(self, token: str) -> Reply:
        import jwt

        rules = self._rules
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in ALGORITHMS:
                raise _BadToken("its algorithm is not accepted")
            key = await self._keys.key(header.get("kid"))
            if key is None:
                raise _BadToken("it is signed by an unknown key")
            claims = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=list(rules.audience) or None,
                issuer=rules.issuer,
                leeway=rules.leeway_seconds,
                options={"require": ["exp"], "verify_aud": bool(rules.audience)},
            )
            expiry = float(claims["exp"])
        except (jwt.exceptions.PyJWTError, RecursionError, OverflowError) as error:
            # Beside what the library says: JSON in a thousand brackets, and a time of Infinity.
            raise _BadToken(f"{type(error).__name__}: {error}") from None
        user = claims.get(rules.subject_claim)
        if not isinstance(user, str) or not user or not can_be_name(user):
            raise _BadToken(f"it has no claim {rules.subject_claim} that is a name")
        return Reply(user=user, expires_at=expiry)


class _BadToken(Exception):
    """Why a token is refused; for the broker's log."""


def _token_in(message: bytes) -> str:
    """The token of a client's first message: `n,,^Aauth=Bearer TOKEN^A…^A^A`."""
    if len(message) > _LONGEST:
        raise Refused("Invalid OAUTHBEARER client first message: it is too long")
    try:
        parts = message.decode().split("\x01")
    except UnicodeDecodeError:
        raise Refused("Invalid OAUTHBEARER client first message") from None
    for part in parts[1:]:
        name, _, value = part.partition("=")
        scheme, _, token = value.partition(" ")
        if name == "auth" and scheme.lower() == "bearer" and token:
            return token.strip()
    raise Refused("Invalid OAUTHBEARER client first message")
