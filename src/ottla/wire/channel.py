"""A stream to a broker: bytes out of lists of buffers, frames in; in the clear or through TLS.

The one in the clear is ours: asyncio's transport would join or copy what is written and go round
the loop for each piece that is read. The one through TLS is asyncio's transport. Both hand received
frames to `on_frame` and tell of their end once, through `on_end`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from ottla.protocol.message import Buffer
from ottla.wire.receiving import FrameReceiver, UnacceptableFrame

# Other connections of the loop get their turn after this many bytes from one of them.
_READ_TURN: Final = 4 * 1024 * 1024
# A read that brought less has emptied the socket: asking again would only cost a system call.
_WORTH_ANOTHER_READ: Final = 32 * 1024
# While a frame has more than this to come, nothing happens until so much of it is there: bytes come in
# small pieces, and a turn of the loop for each of them would cost more than to receive them.
_WOKEN_AFTER: Final = 512 * 1024
_LOW_WATER: Final = getattr(socket, "SO_RCVLOWAT", None)  # not on Windows
# How many buffers one system call takes; POSIX promises no more than 16, Linux takes 1024.
_WRITTEN_AT_ONCE: Final = 512

OnFrame = Callable[[Buffer], None]
# None: the peer closed the connection in an orderly way.
OnEnd = Callable[[Exception | None], None]


class Channel(Protocol):
    """What a connection needs of its stream."""

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Send the buffers in order, some perhaps later: they must not change until then."""

    def close(self) -> None:
        """End the stream now, without `on_end`; what is not yet sent is dropped."""

    @property
    def unsent(self) -> int:
        """Bytes that the kernel has not taken yet."""


class PlainChannel:
    """A TCP connection in the clear, over a socket that is already connected."""

    def __init__(
        self, plug: socket.socket, receiver: FrameReceiver, on_frame: OnFrame, on_end: OnEnd
    ) -> None:
        self._socket = plug
        self._receiver = receiver
        receiver.pulls = True
        self._on_frame = on_frame
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[memoryview] = deque()
        self._woken_after = 1  # bytes
        self._closed = False
        self._loop.add_reader(plug.fileno(), self._readable)

    @property
    def unsent(self) -> int:
        return sum(len(buffer) for buffer in self._waiting)

    def write(self, buffers: Sequence[Buffer]) -> None:
        if self._closed:
            return
        if self._waiting:
            self._waiting.extend(_bytes_of(buffer) for buffer in buffers)
            return
        try:
            if len(buffers) == 1:
                sent = self._socket.send(buffers[0])
                if sent == len(buffers[0]):
                    return
            else:
                sent = self._socket.sendmsg(buffers[:_WRITTEN_AT_ONCE])
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            # The reader may still hold what the peer said before it went; let the loop decide.
            self._loop.call_soon(self._end, error)
            return
        if self._keep_rest(buffers, sent):
            self._loop.add_writer(self._socket.fileno(), self._writable)

    def _keep_rest(self, buffers: Sequence[Buffer], sent: int) -> bool:
        for buffer in buffers:
            view = _bytes_of(buffer)
            if sent >= len(view):
                sent -= len(view)
                continue
            self._waiting.append(view[sent:])
            sent = 0
        return bool(self._waiting)

    def _writable(self) -> None:
        waiting = self._waiting
        while waiting:
            try:
                sent = self._socket.sendmsg(
                    [waiting[at] for at in range(min(len(waiting), _WRITTEN_AT_ONCE))]
                )
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._end(error)
                return
            while sent:
                if sent < len(waiting[0]):
                    waiting[0] = waiting[0][sent:]
                    break
                sent -= len(waiting.popleft())
            while waiting and not waiting[0]:
                waiting.popleft()
        self._loop.remove_writer(self._socket.fileno())

    def _readable(self) -> None:
        self._receive()
        # The kernel wakes us for less when its buffer is full, and when the peer has closed.
        enough = min(max(self._receiver.missing, 1), _WOKEN_AFTER)
        if enough != self._woken_after and not self._closed and _LOW_WATER is not None:
            self._woken_after = enough
            self._socket.setsockopt(socket.SOL_SOCKET, _LOW_WATER, enough)

    def _receive(self) -> None:
        receiver = self._receiver
        turn = 0
        while turn < _READ_TURN and not self._closed:
            if receiver.pull is not None:
                turn += receiver.pull_from(self._socket.fileno(), _READ_TURN - turn)
            buffer = receiver.buffer()
            try:
                count = self._socket.recv_into(buffer)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._end(error)
                return
            if not count:
                self._end(None)
                return
            turn += count
            try:
                for frame in receiver.received(count):
                    self._on_frame(frame)
            except UnacceptableFrame as error:
                self._end(error)
                return
            if count < len(buffer) and count < _WORTH_ANOTHER_READ:
                return  # the socket is empty, most likely

    def _end(self, error: Exception | None) -> None:
        if not self._closed:
            self.close()
            self._on_end(error)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._waiting.clear()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        self._receiver.close()


def _bytes_of(buffer: Buffer) -> memoryview:
    view = memoryview(buffer)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


class TlsChannel(asyncio.BufferedProtocol):
    """A TLS connection; `connect` does the handshake."""

    def __init__(self, receiver: FrameReceiver, on_frame: OnFrame, on_end: OnEnd) -> None:
        self._receiver = receiver
        self._on_frame = on_frame
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._closed = False
        self._failure: Exception | None = None

    @classmethod
    async def connect(
        cls,
        plug: socket.socket,
        receiver: FrameReceiver,
        on_frame: OnFrame,
        on_end: OnEnd,
        *,
        context: ssl.SSLContext,
        server_name: str,
        timeout: float,
    ) -> TlsChannel:
        loop = asyncio.get_running_loop()
        channel = cls(receiver, on_frame, on_end)
        await loop.create_connection(
            lambda: channel,
            sock=plug,
            ssl=context,
            server_hostname=server_name,
            ssl_handshake_timeout=timeout,
        )
        return channel

    @property
    def unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def write(self, buffers: Sequence[Buffer]) -> None:
        if self._transport is None or self._closed:
            return
        for buffer in buffers:
            # One by one: joining them, as `writelines` does, would copy once more.
            self._transport.write(buffer)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._receiver.close()
            if self._transport is not None:
                self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._closed:
            transport.abort()

    def get_buffer(self, sizehint: int) -> Any:  # noqa: ARG002
        return self._receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._closed:
            return
        try:
            for frame in self._receiver.received(nbytes):
                self._on_frame(frame)
        except UnacceptableFrame as error:
            self._failure = error
            assert self._transport is not None
            self._transport.abort()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed:
            self._closed = True
            self._receiver.close()
            self._on_end(self._failure or exc)


def tune(plug: socket.socket, send_buffer: int, receive_buffer: int) -> None:
    """No delay for small requests; the kernel looks after peers that vanished without a word.

    Buffers of 0 or -1 bytes are left to the kernel, which sizes them as the connection goes.
    """
    plug.setblocking(False)
    plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plug.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if send_buffer > 0:
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    if receive_buffer > 0:
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
