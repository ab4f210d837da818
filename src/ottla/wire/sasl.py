"""SASL as Kafka's clients speak it: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER.

The exchange runs in SaslHandshake (version 1) and SaslAuthenticate requests. A mechanism knows
nothing of connections: it is given a function that sends one message and returns the reply.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from ottla.protocol.errors import ErrorCode, error_code
from ottla.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.wire.errors import AuthenticationFailed
from ottla.wire.versions import BrokerVersions

# RFC 7677 asks for at least so many; a server that asks for less weakens the password.
_FEWEST_ITERATIONS: Final = 4096
# A server that asks for more would only burn this machine's time.
_MOST_ITERATIONS: Final = 10_000_000
_NONCE_BYTES: Final = 24

Step = Callable[[bytes], Awaitable[bytes]]


class RefusedByMechanism(Exception):
    """The exchange cannot go on: the broker's part of it is wrong, or it said why it refuses."""


class Mechanism(Protocol):
    """One way to prove who one is."""

    @property
    def name(self) -> str:
        """As the broker's sasl.enabled.mechanisms has it."""

    async def converse(self, step: Step) -> None:
        """The whole exchange; raises RefusedByMechanism."""


@dataclass(frozen=True, slots=True)
class Plain:
    """User name and password as they are: only over TLS, unless nobody listens."""

    username: str
    password: str = field(repr=False)
    name: str = field(default="PLAIN", init=False)

    async def converse(self, step: Step) -> None:
        await step(f"\0{self.username}\0{self.password}".encode())


@dataclass(frozen=True, slots=True)
class Scram:
    """A password that is never sent: both sides prove that they know it (RFC 5802)."""

    username: str
    password: str = field(repr=False)
    algorithm: Literal["sha256", "sha512"] = "sha512"
    token: bool = False  # the "user" is the id of a delegation token, the password its HMAC

    @property
    def name(self) -> str:
        return f"SCRAM-SHA-{self.algorithm.removeprefix('sha')}"

    async def converse(self, step: Step) -> None:
        nonce = base64.b64encode(os.urandom(_NONCE_BYTES)).decode()
        user = self.username.replace("=", "=3D").replace(",", "=2C")
        first = f"n={user},r={nonce}" + (",tokenauth=true" if self.token else "")
        challenge = (await step(f"n,,{first}".encode())).decode()
        fields = _attributes(challenge)
        try:
            server_nonce = fields["r"]
            salt = base64.b64decode(fields["s"], validate=True)
            iterations = int(fields["i"])
        except (KeyError, ValueError) as error:
            raise RefusedByMechanism(f"the broker's challenge makes no sense ({error})") from error
        if not server_nonce.startswith(nonce) or server_nonce == nonce:
            raise RefusedByMechanism("the broker's nonce does not continue ours")
        if not _FEWEST_ITERATIONS <= iterations <= _MOST_ITERATIONS:
            raise RefusedByMechanism(
                f"the broker asks for {iterations} iterations; "
                f"{_FEWEST_ITERATIONS} to {_MOST_ITERATIONS} are accepted"
            )
        # In a thread: it is slow on purpose, and native code that lets others run.
        salted = await asyncio.to_thread(
            hashlib.pbkdf2_hmac, self.algorithm, self.password.encode(), salt, iterations
        )
        final = f"c=biws,r={server_nonce}"  # biws: "n,,", no channel binding
        proven = f"{first},{challenge},{final}".encode()
        client_key = self._mac(salted, b"Client Key")
        signature = self._mac(hashlib.new(self.algorithm, client_key).digest(), proven)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        reply = (await step(f"{final},p={base64.b64encode(proof).decode()}".encode())).decode()
        fields = _attributes(reply)
        if "e" in fields:
            raise RefusedByMechanism(fields["e"])
        expected = self._mac(self._mac(salted, b"Server Key"), proven)
        given = base64.b64decode(fields.get("v", ""))
        if not hmac.compare_digest(expected, given):
            raise RefusedByMechanism("the broker does not know the password itself: not the one "
                                     "it claims to be")  # fmt: skip

    def _mac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self.algorithm)


def _attributes(text: str) -> dict[str, str]:
    """`r=…,s=…,i=…`; values may hold '='."""
    pairs = (part.partition("=") for part in text.split(","))
    return {name: value for name, separator, value in pairs if separator}


@dataclass(frozen=True, slots=True)
class BearerToken:
    """A token of an OAuth 2 server, and what goes with it."""

    value: str = field(repr=False)
    expires_at: float | None = None  # seconds since 1970; None: not known
    extensions: Mapping[str, str] = field(default_factory=dict)


TokenSource = Callable[[], Awaitable[BearerToken]]


@dataclass(frozen=True, slots=True)
class OAuthBearer:
    """A bearer token (RFC 7628), fetched anew for every authentication from `token`."""

    token: TokenSource
    name: str = field(default="OAUTHBEARER", init=False)

    async def converse(self, step: Step) -> None:
        token = await self.token()
        extensions = "".join(f"\x01{name}={value}" for name, value in token.extensions.items())
        reply = await step(f"n,,\x01auth=Bearer {token.value}{extensions}\x01\x01".encode())
        if reply:
            # The reason, in JSON. The exchange has to be ended by us; the refusal comes then.
            await step(b"\x01")
            raise RefusedByMechanism(reply.decode(errors="replace"))


@dataclass(frozen=True, slots=True)
class Exchange:
    """What an authentication needs of its connection."""

    address: str
    versions: BrokerVersions
    # send(request, class of the answer, version) -> answer
    send: Callable[[Any, Any, int], Awaitable[Any]]


async def authenticate(mechanism: Mechanism, exchange: Exchange) -> float:
    """Run the exchange; how long the session lives in seconds, 0 for as long as the connection.

    Raises AuthenticationFailed.
    """
    version = exchange.versions.choose(SaslHandshakeRequest)
    if version < 1:
        raise AuthenticationFailed(exchange.address, "the broker is older than Kafka 1.0")
    agreed: SaslHandshakeResponse = await exchange.send(
        SaslHandshakeRequest(mechanism=mechanism.name), SaslHandshakeResponse, version
    )
    if agreed.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(agreed.mechanisms) or "none at all"
        raise AuthenticationFailed(
            exchange.address, f"{mechanism.name} is not offered there; offered: {offered}"
        )
    if agreed.error_code:
        code = error_code(agreed.error_code)
        raise AuthenticationFailed(
            exchange.address, f"{code.name}: {code.message} Is it a listener with SASL?"
        )
    lifetime = 0
    version = exchange.versions.choose(SaslAuthenticateRequest)

    async def step(message: bytes) -> bytes:
        nonlocal lifetime
        answer: SaslAuthenticateResponse = await exchange.send(
            SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse, version
        )
        if answer.error_code:
            reason = answer.error_message or error_code(answer.error_code).message
            raise AuthenticationFailed(exchange.address, f"{mechanism.name}: {reason}")
        lifetime = answer.session_lifetime_ms
        return answer.auth_bytes

    try:
        await mechanism.converse(step)
    except RefusedByMechanism as error:
        raise AuthenticationFailed(exchange.address, f"{mechanism.name}: {error}") from error
    except UnicodeDecodeError as error:
        raise AuthenticationFailed(
            exchange.address, f"{mechanism.name}: the broker's answer is no text"
        ) from error
    return lifetime / 1000
