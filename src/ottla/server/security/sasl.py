"""The authentication of one connection by SASL, from the handshake to the end of its session.

States, and what is served in them:

    begun           ApiVersions, SaslHandshake, SaslAuthenticate
    agreed          the same; a mechanism is agreed on, its exchange runs. Another SaslHandshake is
                    refused
    authenticated   everything. SaslHandshake begins an exchange anew (KIP-368), with the same
                    mechanism and for the same principal
    expired         as begun: the session's time is over and nobody authenticated again. An exchange
                    that was begun before may still come to its end
    refused         nothing: the connection is closed once the answer has left
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from enum import Enum
from typing import TYPE_CHECKING, Final

from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from ottla.protocol.messages.sasl_handshake import SaslHandshakeResponse
from ottla.server.observability.limited_log import LimitedLog
from ottla.server.security.mechanisms import Exchange, Refused, Reply

if TYPE_CHECKING:
    from ottla.server.network.connection import Connection
    from ottla.server.security.listeners import ListenerSecurity

log = LimitedLog(logging.getLogger("ottla.security"))

# What is answered to a client that has not proved who it is.
BEFORE_AUTHENTICATION: Final[Collection[ApiKey]] = (
    ApiKey.API_VERSIONS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
)
# A token may be good for longer, which no number of milliseconds says.
_LONGEST_SESSION: Final = 10 * 365 * 86400.0
# The longest message that comes without a request: clients that send such know PLAIN and SCRAM.
_LONGEST_BARE: Final = 16 << 10
# How long the peer of a refused connection has to close its side.
_PARTING_SECONDS: Final = 5.0
# Until it is looked again whether the last answer has left.
_LOOK_SECONDS: Final = 0.01


class State(Enum):
    BEGUN = "begun"
    AGREED = "agreed"
    AUTHENTICATED = "authenticated"
    EXPIRED = "expired"
    REFUSED = "refused"


class Authentication:
    """The state of a connection's authentication by SASL. Belongs to one connection."""

    def __init__(self, connection: Connection, security: ListenerSecurity) -> None:
        self._connection = connection
        self._security = security
        self._loop = connection.reactor.loop
        self._exchange: Exchange | None = None
        self._mechanism = ""
        # The end of the session, or what follows a refusal.
        self._timer: asyncio.TimerHandle | None = None
        # Somebody has been let in on this connection; whoever authenticates again must be the same.
        self._known = False
        # The session's time is over; an exchange that runs may still renew it.
        self._is_expired = False
        self.state = State.BEGUN
        self._restrict()

    @property
    def is_served(self) -> bool:
        """Whether requests other than those of the authentication are answered."""
        return (
            self._known
            and not self._is_expired
            and self.state in (State.AGREED, State.AUTHENTICATED)
        )

    def abandon(self) -> None:
        """The connection is closed: nothing is left that would keep it in memory until its time."""
        self._exchange = None
        self._set_timer(None)

    def _set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer

    def _restrict(self) -> None:
        self._connection.serve_only(self._security.early_apis, self._security.largest_early_request)

    # What the client sends ----------------------------------------------------------------------

    def handshake(
        self, mechanism: str, *, bare: bool = False
    ) -> SaslHandshakeResponse | asyncio.Future[Message]:
        """The client says how it wants to prove who it is. `bare`: its messages will not come in
        requests."""
        offered = list(self._security.mechanisms)
        if self.state is State.AGREED:
            # An exchange could be begun again and again, and none would ever be refused.
            return self._refuse(
                SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=offered),
                "a second handshake in one authentication",
            )
        if mechanism not in offered:
            return self._refuse(
                SaslHandshakeResponse(
                    error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=offered
                ),
                f"mechanism {mechanism[:40]!r} is not offered",
            )
        if self._known and (bare or mechanism != self._mechanism):
            return self._refuse(
                SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=offered),
                "another mechanism, or an older way, than in the first authentication",
            )
        self._mechanism = mechanism
        self._exchange = self._security.exchange(mechanism, self._connection)
        self.state = State.AGREED
        if bare:
            BareMessages(self._connection, self._bare_step, self._security)
        return SaslHandshakeResponse(mechanisms=offered)

    async def _bare_step(self, message: bytes) -> bytes | None:
        """Answer a message that came without a request; None: the client is refused. Once it is let in,
        requests follow."""
        assert self._exchange is not None
        try:
            reply = await self._exchange.step(message)
            if self._connection.closed:
                return None
            if reply.user is not None:
                self._let_in(reply)
            return reply.message
        except Refused as refusal:
            why = refusal.logged
        except Exception as error:
            log.error("authentication failed: peer=%s", self._connection.address, exc_info=error)
            why = "internal error"
        self._note_refusal(f"{self._mechanism}: {why}")
        await asyncio.sleep(self._security.failure_delay)
        return None

    def authenticate(self, message: bytes) -> asyncio.Future[Message]:
        """Handle SaslAuthenticate: one message of the exchange."""
        if self._exchange is None or self.state is not State.AGREED:
            return self._refuse(
                SaslAuthenticateResponse(
                    error_code=ErrorCode.ILLEGAL_SASL_STATE,
                    error_message="SaslAuthenticate must follow a SaslHandshake",
                ),
                "no handshake before the authentication",
            )
        answer: asyncio.Future[Message] = self._loop.create_future()
        self._security.spawn(
            self._step(self._exchange, message, answer),
            f"authentication of {self._connection.address}",
        )
        return answer

    async def _step(
        self, exchange: Exchange, message: bytes, answer: asyncio.Future[Message]
    ) -> None:
        try:
            reply = await exchange.step(message)
            if self._connection.closed:
                answer.cancel()
                return
            response = SaslAuthenticateResponse(error_message=None, auth_bytes=reply.message)
            if reply.user is not None:
                response.session_lifetime_ms = self._let_in(reply)
        except Refused as refusal:
            why = f"{self._mechanism}: {refusal.logged}"
            self._answer_refusal(_refusal(str(refusal)), why, answer)
            return
        except Exception as error:
            log.error("authentication failed: peer=%s", self._connection.address, exc_info=error)
            self._answer_refusal(_refusal("Authentication failed"), "internal error", answer)
            return
        if not answer.done():
            answer.set_result(response)

    def _let_in(self, reply: Reply) -> int:
        """The client is who it says it is; how many milliseconds that counts, 0 for ever."""
        connection = self._connection
        principal = f"User:{reply.user}"
        if self._known and principal != connection.principal:
            raise Refused(
                "Cannot change principals during re-authentication from "
                f"{connection.principal}: {principal}",
                logged="another user than before in a re-authentication",
            )
        lifetime = self._security.session_lifetime
        if reply.expires_at is not None:
            left = min(max(reply.expires_at - time.time(), 0.001), _LONGEST_SESSION)
            lifetime = left if lifetime <= 0 else min(lifetime, left)
        connection.principal = principal
        self._known = True
        self._is_expired = False
        self._exchange = None
        self.state = State.AUTHENTICATED
        connection.serve_only(connection.reactor.apis, connection.reactor.max_request_bytes)
        connection.reactor.authenticated(connection)
        self._set_timer(self._loop.call_later(lifetime, self._expire) if lifetime > 0 else None)
        return max(int(lifetime * 1000), 1) if lifetime > 0 else 0

    def _expire(self) -> None:
        self._timer = None
        self._is_expired = True
        if self.state is not State.AGREED:
            self.state = State.EXPIRED
        self._restrict()

    # Refusals -----------------------------------------------------------------------------------

    def _refuse(self, response: Message, why: str) -> asyncio.Future[Message]:
        answer: asyncio.Future[Message] = self._loop.create_future()
        self._answer_refusal(response, why, answer)
        return answer

    def _note_refusal(self, why: str) -> None:
        connection = self._connection
        connection.reactor.failed_authentications += 1
        log.warning("authentication refused: peer=%s %s", connection.address, why)
        self.state = State.REFUSED
        self._exchange = None
        connection.serve_only({}, self._security.largest_early_request)

    def _answer_refusal(self, response: Message, why: str, answer: asyncio.Future[Message]) -> None:
        """Answer after a while, so that guessing takes time, and close then."""
        connection = self._connection
        self._note_refusal(why)

        def conclude() -> None:
            if answer.done():
                return
            answer.set_result(response)
            self._loop.call_soon(self._part)
            self._set_timer(
                self._loop.call_later(_PARTING_SECONDS, connection.close, "authentication refused")
            )

        if connection.closed:
            answer.cancel()
        else:
            self._set_timer(self._loop.call_later(self._security.failure_delay, conclude))

    def _part(self) -> None:
        """Close, once the answer has been handed to the socket: that happens in a callback of its own,
        or in several where the machine is slow."""
        if self._connection.idle:
            self._connection.close_when_sent()
        elif not self._connection.closed:
            self._loop.call_later(_LOOK_SECONDS, self._part)


class BareMessages:
    """Reads the messages of a mechanism that come without requests, in place of the connection, until
    the client is let in or refused."""

    def __init__(
        self,
        connection: Connection,
        step: Callable[[bytes], Awaitable[bytes | None]],
        security: ListenerSecurity,
    ) -> None:
        self._connection = connection
        self._step = step
        self._security = security
        self._longest = min(security.largest_early_request, _LONGEST_BARE)
        self._received = bytearray()
        self._busy = False
        connection.read_by(self._on_readable)

    def _on_readable(self) -> None:
        connection = self._connection
        view = connection.reactor.scratch
        try:
            count = connection.sock.recv_into(view)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            count = 0
        self._received += view[:count]
        if not count or len(self._received) > self._longest + 4:
            connection.close("closed by the peer" if not count else "it sent too much")
            return
        self._take()

    def _take(self) -> None:
        """Handle the next message, if it is there and the one before it is answered."""
        if self._busy or len(self._received) < 4:
            return
        end = 4 + int.from_bytes(self._received[:4], "big")
        if end > self._longest:
            self._connection.close("it sent too much")
        elif len(self._received) >= end:
            message = bytes(self._received[4:end])
            del self._received[:end]
            self._busy = True
            self._security.spawn(
                self._answer(message), f"authentication of {self._connection.address}"
            )

    async def _answer(self, message: bytes) -> None:
        connection = self._connection
        reply = await self._step(message)
        if connection.closed:
            return
        if reply is None or (connection.authentication_is_over and self._received):
            connection.close("authentication refused")
            return
        connection.answer(len(reply).to_bytes(4, "big") + reply)
        connection.flush_ready()
        if connection.authentication_is_over:
            connection.read_by(None)
        else:
            self._busy = False
            self._take()


def _refusal(message: str) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=message
    )
