"""A client for tests: typed messages over a real socket, one request after the other."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from types import TracebackType
from typing import Self, TypeVar

import pytest

from ottla.protocol.frame import encode_request, has_flexible_response_header, parse_response_header
from ottla.protocol.message import Message

R = TypeVar("R", bound=Message)


class Wire:
    """One connection. `served` has the version ranges of a broker that may serve less than Ottla: a
    test that asks it for more is skipped."""

    def __init__(
        self,
        host: str,
        port: int,
        timeout: float = 20.0,
        served: Mapping[int, tuple[int, int]] | None = None,
    ) -> None:
        self.sock = socket.create_connection((host, port), timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The correlation id of the last response.
        self.answered = 0
        self._served = served
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    @property
    def is_elsewhere(self) -> bool:
        """Whether the peer is another broker than Ottla."""
        return self._served is not None

    def encode(self, request: Message, version: int, client_id: str | None = "wire") -> bytes:
        """A frame with the next correlation id, not sent."""
        if self._served is not None:
            lowest, highest = self._served.get(request.api_key, (0, -1))
            if not lowest <= version <= highest:
                pytest.skip(f"{type(request).__name__} v{version} is not served there")
        self._correlation_id += 1
        return encode_request(request, version, self._correlation_id, client_id)

    def send(self, request: Message, version: int, client_id: str | None = "wire") -> int:
        self.sock.sendall(self.encode(request, version, client_id))
        return self._correlation_id

    def send_raw(self, data: bytes) -> None:
        self.sock.sendall(data)

    def flood(self, frame: bytes, limit: int = 60_000_000) -> int:
        """Send a frame again and again until the peer takes no more; how often it was sent."""
        for sent in range(limit // len(frame)):
            try:
                self.sock.sendall(frame)
            except TimeoutError:
                return sent
        raise AssertionError("the peer takes whatever it is sent")

    def receive(self, response: type[R], version: int) -> R:
        frame = self.frame()
        flexible = has_flexible_response_header(response.api_key, version)
        self.answered, at = parse_response_header(frame, 0, flexible)
        message, end = response.decode(frame, at, version)
        assert end == len(frame), "the response is longer than its message"
        return message

    def call(self, request: Message, response: type[R], version: int) -> R:
        sent = self.send(request, version)
        message = self.receive(response, version)
        assert self.answered == sent
        return message

    def frame(self) -> bytes:
        """The next response frame, without its length."""
        return self.exactly(int.from_bytes(self.exactly(4), "big"))

    def exactly(self, size: int) -> bytes:
        received = bytearray(size)
        view = memoryview(received)
        while view:
            count = self.sock.recv_into(view)
            if not count:
                raise EOFError("the broker closed the connection")
            view = view[count:]
        return bytes(received)

    def is_closed(self) -> bool:
        """Whether the broker closes the connection (waits for it to do so)."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True
