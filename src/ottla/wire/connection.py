"""One connection to one broker: requests out, answers in the same order.

    connection = await Connection.open("127.0.0.1", 9092, client_id="example")
    answer = await connection.request(MetadataRequest(topics=None), MetadataResponse)

Requests are pipelined: nothing waits for the answer before it. An answer that does not come in time
ends the connection, because all those after it would wait as well; a caller that merely loses its
patience (cancels) leaves the connection to the others, and the late answer is dropped.

- `open` connects, does the TLS handshake, asks for ApiVersions (v4 downwards, KIP-511) and, where
  the security says so, authenticates. While the connection lives it authenticates anew before the
  session's time is up (KIP-368).
- A throttle time in an answer keeps this connection quiet for so long (KIP-219); requests wait.
- Whoever encodes its own bodies (Produce, Fetch) uses `send`, and then owes `throttle` the throttle
  time of the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import ssl
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, replace
from struct import Struct, pack
from typing import Any, Final, Protocol, TypeVar

from ottla.protocol.apis import ApiKey, api_name
from ottla.protocol.errors import ErrorCode, error_code
from ottla.protocol.frame import (
    COPY_BELOW,
    has_flexible_response_header,
    is_flexible,
    parse_response_header,
)
from ottla.protocol.message import Buffer, MalformedMessage, Message
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.version import __version__
from ottla.wire.channel import Channel, PlainChannel, TlsChannel, tune
from ottla.wire.errors import (
    ConnectFailed,
    ConnectionLost,
    ProtocolViolation,
    RequestTimeout,
    TlsFailed,
)
from ottla.wire.receiving import FrameReceiver, Pull, UnacceptableFrame
from ottla.wire.sasl import Exchange, authenticate
from ottla.wire.security import PLAINTEXT, Security
from ottla.wire.versions import BrokerVersions, client_throttles

SOFTWARE_NAME: Final = "ottla"
_LARGEST_CORRELATION_ID: Final = 2**31 - 1
# Authenticate anew when this part of the session's lifetime is over; spread, so that many
# connections that were opened together do not do it together.
_REAUTHENTICATE_AFTER: Final = (0.85, 0.95)

# Pieces of a message that are put together at once.
_PIECES_AT_ONCE: Final = 512

_pack_header = Struct(">ihhih").pack
_Answer = TypeVar("_Answer", bound=Message)
# Called while a large answer comes in, with its frame, where the message starts, and how many bytes of
# the frame are there. May give a way to receive the next ones.
OnPart = Callable[[memoryview, int, int], Pull | None]
_T = TypeVar("_T")


class InTurns(Protocol):
    """Does all the steps of long work, with the loop's turn between some of them."""

    def __call__(self, steps: Generator[None, None, _T], /) -> Coroutine[Any, Any, _T]: ...


# Called with an answer's frame and where its message starts.
OnAnswer = Callable[[Buffer, int], None]


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How connections behave; times in seconds, sizes in bytes."""

    client_id: str = SOFTWARE_NAME
    request_timeout: float = 30.0
    setup_timeout: float = 10.0  # for TCP, TLS, ApiVersions and authentication together
    send_buffer: int = 0  # 0: as the kernel sees fit
    receive_buffer: int = 0
    receive_limit: int = 1_000_000_000  # an answer that is longer ends the connection
    software_name: str = SOFTWARE_NAME
    software_version: str = __version__


class _Awaited:
    """A request that was handed to the channel, or waits to be."""

    __slots__ = (
        "api_key",
        "correlation_id",
        "deadline",
        "flexible",
        "future",
        "on_answer",
        "on_part",
        "timeout",
    )

    def __init__(
        self,
        api_key: int,
        correlation_id: int,
        flexible: bool,
        future: asyncio.Future[tuple[Buffer, int]],
        timeout: float,
        deadline: float,
        on_part: OnPart | None,
        on_answer: OnAnswer | None = None,
    ) -> None:
        self.on_part = on_part
        self.on_answer = on_answer
        self.api_key = api_key
        self.correlation_id = correlation_id
        self.flexible = flexible  # the answer's header has tagged fields
        self.future = future
        self.timeout = timeout
        self.deadline = deadline


class Connection:
    """A connection to one broker, with requests in flight. Not for use from more than one event loop."""

    def __init__(
        self, host: str, port: int, options: ConnectionOptions, security: Security
    ) -> None:
        self.host = host
        self.port = port
        self.options = options
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.versions = BrokerVersions(self.address, ())
        # The features the cluster has agreed on (KIP-584): name -> level.
        self.finalized_features: dict[str, int] = {}
        self.supported_features: dict[str, tuple[int, int]] = {}
        self.finalized_features_epoch = -1
        self._security = security
        self._loop = asyncio.get_running_loop()
        self._channel: Channel | None = None
        self._client = options.client_id.encode()
        self._correlation_id = 0
        self._awaited: deque[_Awaited] = deque()  # in the order in which answers must come
        self._sweep: asyncio.TimerHandle | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._failure: ConnectionLost | None = None
        # While it is held (throttled, authenticating anew) what should be sent is collected.
        self._held: list[tuple[_Awaited | None, list[Buffer]]] | None = None
        self._quiet_until = 0.0
        self._release: asyncio.TimerHandle | None = None
        self._authenticating = False
        self._renewal: asyncio.TimerHandle | asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        options: ConnectionOptions | None = None,
        security: Security = PLAINTEXT,
        client_id: str | None = None,
    ) -> Connection:
        """Connect, agree on versions, authenticate.

        Raises ConnectFailed (TlsFailed), AuthenticationFailed, UnsupportedByBroker.
        """
        options = options or ConnectionOptions()
        if client_id is not None:
            options = replace(options, client_id=client_id)
        connection = cls(host, port, options, security)
        try:
            async with asyncio.timeout(options.setup_timeout):
                await connection._connect()
                await connection._agree_on_versions()
                if security.sasl is not None:
                    await connection._authenticate()
        except TimeoutError:
            connection.close()
            raise ConnectFailed(
                connection.address, f"not set up within {options.setup_timeout:g} s"
            ) from None
        except ConnectionLost as error:
            connection.close()
            raise ConnectFailed(
                connection.address,
                f"{error.reason}; is it a Kafka listener of kind {security.protocol}?",
            ) from error
        except BaseException:
            connection.close()
            raise
        return connection

    # Requests

    def version_of(self, request: type[Message], at_most: int | None = None) -> int:
        """The version in which requests of this class go out (UnsupportedByBroker if in none)."""
        return self.versions.choose(request, at_most)

    async def request(
        self,
        message: Message,
        answer: type[_Answer],
        *,
        timeout: float | None = None,
        version: int | None = None,
        on_part: OnPart | None = None,
        client_id: str | None = None,
        in_turns: InTurns | None = None,
    ) -> _Answer:
        """Send `message` and wait for its answer, of class `answer`.

        Raises ConnectionLost, RequestTimeout, UnsupportedByBroker; error codes inside of the answer
        are the caller's to look at. `timeout` in seconds counts from when the request is sent. With
        `client_id` it is sent in the name of another, in place of the connection's own: then the
        throttle time of the answer is for that one, too. `in_turns` does the work on messages that may
        be very long.
        """
        if version is None:
            version = self.versions.choose(type(message))
        frame, at = await self.send(
            message.api_key,
            version,
            message.encode_parts(version)
            if in_turns is None
            else await in_turns(_encoded(message, version)),
            timeout=timeout,
            on_part=on_part,
            client=None if client_id is None else client_id.encode(),
        )
        decoded: _Answer | None = None
        if in_turns is not None:
            try:
                decoded, _ = await in_turns(answer.decode_in_steps(frame, at, version))
            except MalformedMessage as error:
                raise self._unreadable(answer, version, error) from error
        return self.read(
            message.api_key, version, frame, at, answer, decoded, heed_throttle=client_id is None
        )

    def read(
        self,
        api_key: int,
        version: int,
        frame: Buffer,
        at: int,
        answer: type[_Answer],
        decoded: _Answer | None = None,
        *,
        heed_throttle: bool = True,
    ) -> _Answer:
        """Decode what `send` gave, unless that has been done, and heed its throttle time. One that
        cannot be read ends the connection (ProtocolViolation)."""
        if decoded is None:
            try:
                decoded, _ = answer.decode(frame, at, version)
            except MalformedMessage as error:
                raise self._unreadable(answer, version, error) from error
        throttle_time = getattr(decoded, "throttle_time_ms", 0)
        if throttle_time > 0 and heed_throttle and client_throttles(api_key, version):
            self.throttle(throttle_time / 1000)
        return decoded

    def _unreadable(
        self, answer: type[Message], version: int, error: MalformedMessage
    ) -> ConnectionLost:
        reason = f"{answer.__name__} v{version} cannot be read: {error}"
        return self._break(ProtocolViolation(self.address, reason))

    def send(
        self,
        api_key: int,
        version: int,
        body: Sequence[Buffer],
        *,
        timeout: float | None = None,
        on_part: OnPart | None = None,
        client: bytes | None = None,
    ) -> asyncio.Future[tuple[Buffer, int]]:
        """Send an encoded body; the future gives the answer's frame and where its message starts.

        Large buffers of `body` are not copied: they must not change until the answer has come. The
        frame may be a read-only view of a large buffer; what is decoded from it without copying
        (records) keeps that buffer alive. `on_part` may look at such a frame while it comes in.
        `client` is the client id, if not the connection's own.
        """
        future: asyncio.Future[tuple[Buffer, int]] = self._loop.create_future()
        self._send(api_key, version, body, future, timeout, on_part, None, client)
        return future

    def send_to(
        self,
        api_key: int,
        version: int,
        body: Sequence[Buffer],
        on_answer: OnAnswer,
        failed: asyncio.Future[Any],
        *,
        timeout: float | None = None,
    ) -> None:
        """As `send`, but `on_answer` is called with the answer in the very turn of the loop in which it
        comes: a future would cost another one. It must not raise. `failed` gets the error if no answer
        comes; once it is done, nobody wants one. It may serve any number of requests."""
        self._send(api_key, version, body, failed, timeout, None, on_answer)

    def _send(
        self,
        api_key: int,
        version: int,
        body: Sequence[Buffer],
        future: asyncio.Future[Any],
        timeout: float | None,
        on_part: OnPart | None,
        on_answer: OnAnswer | None,
        client: bytes | None = None,
    ) -> None:
        if self._failure is not None:
            if not future.done():
                future.set_exception(self._failure)
            return
        timeout = self.options.request_timeout if timeout is None else timeout
        awaited = _Awaited(
            api_key,
            self._next_correlation_id(),
            has_flexible_response_header(api_key, version),
            future,
            timeout,
            self._loop.time() + timeout,
            on_part,
            on_answer,
        )
        buffers = self._frame(api_key, version, awaited.correlation_id, body, client)
        if self._held is not None:
            self._held.append((awaited, buffers))
        else:
            self._transmit(awaited, buffers)

    def send_unanswered(self, api_key: int, version: int, body: Sequence[Buffer]) -> None:
        """Send what gets no answer: Produce with acks=0. Raises ConnectionLost if it is closed."""
        if self._failure is not None:
            raise self._failure
        buffers = self._frame(api_key, version, self._next_correlation_id(), body)
        if self._held is not None:
            self._held.append((None, buffers))
        else:
            assert self._channel is not None
            self._channel.write(buffers)

    def throttle(self, seconds: float) -> None:
        """Send nothing for so long, as the broker has asked; requests made meanwhile wait."""
        self._quiet_until = max(self._quiet_until, self._loop.time() + seconds)
        self._hold()
        if self._release is not None:
            self._release.cancel()
        self._release = self._loop.call_at(self._quiet_until, self._let_go)

    @property
    def in_flight(self) -> int:
        """Requests whose answers have not come yet."""
        return len(self._awaited) + len(self._held or ())

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for the kernel to take them; above zero means the network is behind."""
        return 0 if self._channel is None else self._channel.unsent

    @property
    def closed(self) -> bool:
        return self._failure is not None

    async def wait_closed(self) -> None:
        """Wait until the connection has ended, by `close` or by itself."""
        await asyncio.shield(self._closed)

    def close(self) -> None:
        """End it now; requests in flight fail with ConnectionLost."""
        self._break(ConnectionLost(self.address, "it was closed here"))

    # Sending

    def _next_correlation_id(self) -> int:
        correlation_id = self._correlation_id
        self._correlation_id = (
            0 if correlation_id == _LARGEST_CORRELATION_ID else correlation_id + 1
        )
        return correlation_id

    def _frame(
        self,
        api_key: int,
        version: int,
        correlation_id: int,
        body: Sequence[Buffer],
        client: bytes | None = None,
    ) -> list[Buffer]:
        """The whole request as buffers; neighbouring small ones are joined, large ones stay."""
        client = self._client if client is None else client
        tags = b"\x00" if is_flexible(api_key, version) else b""
        size = 10 + len(client) + len(tags) + sum(map(len, body))
        small: list[Buffer] = [
            _pack_header(size, api_key, version, correlation_id, len(client)),
            client,
            tags,
        ]
        buffers: list[Buffer] = []
        for part in body:
            if len(part) < COPY_BELOW:
                small.append(part)
                continue
            if small:
                buffers.append(b"".join(small))
                small = []
            buffers.append(part)
        if small:
            buffers.append(b"".join(small))
        return buffers

    def _transmit(self, awaited: _Awaited, buffers: list[Buffer]) -> None:
        self._awaited.append(awaited)
        if self._sweep is None or awaited.deadline < self._sweep.when():
            self._sweep_at(awaited.deadline)
        assert self._channel is not None
        self._channel.write(buffers)

    def _hold(self) -> None:
        if self._held is None:
            self._held = []

    def _let_go(self) -> None:
        """Send what was held, unless there is another reason to hold it."""
        if self._authenticating or self._held is None or self._loop.time() < self._quiet_until:
            return
        held, self._held = self._held, None
        now = self._loop.time()
        for awaited, buffers in held:
            if awaited is None:
                assert self._channel is not None
                self._channel.write(buffers)
            elif not awaited.future.done():
                awaited.deadline = now + awaited.timeout
                self._transmit(awaited, buffers)

    def _sweep_at(self, deadline: float) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep = self._loop.call_at(deadline, self._look_for_late_ones)

    def _look_for_late_ones(self) -> None:
        self._sweep = None
        if not self._awaited:
            return
        now = self._loop.time()
        earliest = min(self._awaited, key=lambda awaited: awaited.deadline)
        if earliest.deadline > now:
            self._sweep_at(earliest.deadline)
            return
        error = RequestTimeout(self.address, api_name(earliest.api_key), earliest.timeout)
        if not earliest.future.done():
            earliest.future.set_exception(error)
        self._break(ConnectionLost(self.address, str(error)))

    # Receiving

    def _on_frame(self, frame: Buffer) -> None:
        if not self._awaited:
            self._break(ProtocolViolation(self.address, "an answer that nobody asked for"))
            return
        awaited = self._awaited.popleft()
        try:
            correlation_id, at = parse_response_header(frame, 0, awaited.flexible)
        except MalformedMessage as error:
            self._awaited.appendleft(awaited)
            self._break(ProtocolViolation(self.address, str(error)))
            return
        if correlation_id != awaited.correlation_id:
            self._awaited.appendleft(awaited)
            self._break(
                ProtocolViolation(
                    self.address,
                    f"an answer to request {correlation_id} in place of {awaited.correlation_id}",
                )
            )
            return
        if not awaited.future.done():
            if awaited.on_answer is not None:
                awaited.on_answer(frame, at)
            else:
                awaited.future.set_result((frame, at))

    def _on_part(self, frame: memoryview, arrived: int) -> Pull | None:
        """Hand the beginning of a large answer to who decodes it early. Errors wait for its end."""
        awaited = self._awaited[0] if self._awaited else None
        if awaited is None or awaited.on_part is None or awaited.future.done():
            return None
        try:
            correlation_id, at = parse_response_header(frame[:arrived], 0, awaited.flexible)
        except MalformedMessage:
            return None
        if correlation_id != awaited.correlation_id:
            return None
        return awaited.on_part(frame, at, arrived)

    def _on_end(self, error: Exception | None) -> None:
        if isinstance(error, UnacceptableFrame):
            self._break(ProtocolViolation(self.address, str(error)))
        elif error is None:
            self._break(ConnectionLost(self.address, "the broker closed it"))
        else:
            self._break(ConnectionLost(self.address, str(error)))

    def _break(self, failure: ConnectionLost) -> ConnectionLost:
        """Close for good; everything in flight fails with the first failure there was."""
        if self._failure is not None:
            return self._failure
        self._failure = failure
        if self._channel is not None:
            self._channel.close()
        for timer in (self._sweep, self._release, self._renewal):
            if timer is not None:
                timer.cancel()
        unanswered = [*self._awaited, *(awaited for awaited, _ in self._held or ())]
        self._awaited.clear()
        self._held = None
        for awaited in unanswered:
            if awaited is not None and not awaited.future.done():
                awaited.future.set_exception(failure)
                # Nobody may be waiting any more; that is no reason for a warning.
                awaited.future.exception()
        if not self._closed.done():
            self._closed.set_result(None)
        return failure

    # Setting up

    async def _connect(self) -> None:
        plug = await self._connected_socket()
        receiver = FrameReceiver(self.options.receive_limit)
        receiver.on_part = self._on_part
        if self._security.tls is None:
            self._channel = PlainChannel(plug, receiver, self._on_frame, self._on_end)
            return
        try:
            self._channel = await TlsChannel.connect(
                plug,
                receiver,
                self._on_frame,
                self._on_end,
                context=self._security.tls.context(),
                server_name=self.host,
                timeout=self.options.setup_timeout,
            )
        except ssl.SSLError as error:
            raise TlsFailed(self.address, _tls_reason(error)) from error
        except OSError as error:
            raise TlsFailed(
                self.address, f"{error or 'closed'} during the TLS handshake; does it speak TLS?"
            ) from error
        finally:
            if self._channel is None:
                plug.close()

    async def _connected_socket(self) -> socket.socket:
        try:
            addresses = await self._loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ConnectFailed(self.address, f"the name is unknown ({error.strerror})") from error
        except UnicodeError as error:
            raise ConnectFailed(self.address, f"the name is unknown ({error})") from error
        problem: OSError | None = None
        for at, (family, kind, protocol, _, address) in enumerate(addresses):
            try:
                plug = socket.socket(family, kind, protocol)
            except OSError as error:  # no descriptor is left
                problem = problem or error
                continue
            # One that says nothing at all must leave time for the others; the last has all that is left.
            is_last = at == len(addresses) - 1
            share = None if is_last else self.options.setup_timeout / len(addresses)
            try:
                tune(plug, self.options.send_buffer, self.options.receive_buffer)
                async with asyncio.timeout(share):
                    await self._loop.sock_connect(plug, address)
            except OSError as error:  # TimeoutError is one
                plug.close()
                problem = problem or error
            except BaseException:
                plug.close()
                raise
            else:
                return plug
        if problem is None:
            raise ConnectFailed(self.address, "the name has no address")
        # What asyncio puts into `strerror` names the address once more, and not the reason.
        reason = os.strerror(problem.errno) if problem.errno else str(problem) or "no answer"
        raise ConnectFailed(self.address, reason) from problem

    async def _agree_on_versions(self) -> None:
        asked = ApiVersionsRequest(
            client_software_name=self.options.software_name,
            client_software_version=self.options.software_version,
        )
        version = ApiVersionsRequest.versions[1]
        while True:
            frame, at = await self.send(
                ApiKey.API_VERSIONS,
                version,
                asked.encode_parts(version),
                timeout=self.options.setup_timeout,
            )
            # A broker that does not know the version answers in the layout of version 0.
            refused = frame[at : at + 2] == pack(">h", ErrorCode.UNSUPPORTED_VERSION)
            try:
                answer, _ = ApiVersionsResponse.decode(frame, at, 0 if refused else version)
            except MalformedMessage as error:
                raise self._break(ProtocolViolation(self.address, str(error))) from error
            if not refused:
                break
            offered = BrokerVersions(self.address, answer.api_keys).ranges
            known = offered.get(ApiKey.API_VERSIONS, (0, 0))[1]
            if version == 0:
                raise self._break(
                    ProtocolViolation(self.address, "it refuses every version of ApiVersions")
                )
            version = known if known < version else 0
        if answer.error_code:
            code = error_code(answer.error_code)
            raise self._break(ConnectionLost(self.address, f"ApiVersions: {code.name}"))
        self.versions = BrokerVersions(self.address, answer.api_keys)
        self.supported_features = {
            each.name: (each.min_version, each.max_version) for each in answer.supported_features
        }
        self.finalized_features = {
            each.name: each.max_version_level for each in answer.finalized_features
        }
        self.finalized_features_epoch = answer.finalized_features_epoch

    # Authentication

    async def _authenticate(self) -> None:
        assert self._security.sasl is not None
        lifetime = await authenticate(
            self._security.sasl, Exchange(self.address, self.versions, self._converse)
        )
        if lifetime > 0:
            wait = lifetime * random.uniform(*_REAUTHENTICATE_AFTER)
            self._renewal = self._loop.call_later(wait, self._begin_renewal)

    async def _converse(self, message: Message, answer: type[_Answer], version: int) -> _Answer:
        """One step of an authentication; it is sent before requests that are held."""
        held, self._held = self._held, None
        try:
            sent = self.send(message.api_key, version, message.encode_parts(version))
        finally:
            self._held = held
        frame, at = await sent
        try:
            return answer.decode(frame, at, version)[0]
        except MalformedMessage as error:
            raise self._break(ProtocolViolation(self.address, str(error))) from error

    def _begin_renewal(self) -> None:
        self._renewal = self._loop.create_task(self._renew())

    async def _renew(self) -> None:
        """Authenticate anew. What is in flight was sent before and is answered before."""
        self._authenticating = True
        self._hold()
        try:
            async with asyncio.timeout(self.options.request_timeout):
                await self._authenticate()
        except Exception as error:  # noqa: BLE001 - whatever it was, the session is over
            self._break(ConnectionLost(self.address, f"authenticating anew failed: {error}"))
        finally:
            self._authenticating = False
            if self._failure is None:
                self._let_go()


def _encoded(message: Message, version: int) -> Generator[None, None, list[Buffer]]:
    """The message as few pieces, with a pause after each element of an array. Not for records."""
    body: list[Buffer] = []
    pieces: list[bytes] = []
    for _ in message.encode_in_steps(version, pieces.append):
        if len(pieces) >= _PIECES_AT_ONCE:
            body.append(b"".join(pieces))
            pieces.clear()
        yield
    body.append(b"".join(pieces))
    return body


def _tls_reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not accepted ({error.verify_message}); ssl.ca.location names the "
            "authorities to trust, ssl.endpoint.identification.algorithm=none accepts any host name"
        )
    return f"the TLS handshake failed ({error.reason or error})"


async def close_all(connections: Sequence[Connection]) -> None:
    """Close the connections and wait until they are."""
    for connection in connections:
        connection.close()
    with contextlib.suppress(ConnectionLost):
        for connection in connections:
            await connection.wait_closed()
