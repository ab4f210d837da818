"""A client for tests: typed messages over a real socket, one request after the other."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Self, TypeVar

from ottla.protocol.frame import encode_request, has_flexible_response_header, parse_response_header
from ottla.protocol.message import Message

R = TypeVar("R", bound=Message)


class Wire:
    def __init__(self, host: str, port: int, timeout: float = 20.0) -> None:
        self.sock = socket.create_connection((host, port), timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.sock.close()

    def send(self, request: Message, version: int, client_id: str = "wire") -> int:
        self._correlation_id += 1
        self.sock.sendall(encode_request(request, version, self._correlation_id, client_id))
        return self._correlation_id

    def receive(self, response: type[R], version: int) -> R:
        frame = self.frame()
        flexible = has_flexible_response_header(response.api_key, version)
        correlation_id, at = parse_response_header(frame, 0, flexible)
        message, end = response.decode(frame, at, version)
        assert end == len(frame), "the response is longer than its message"
        self.answered = correlation_id
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
        received = b""
        while len(received) < size:
            piece = self.sock.recv(size - len(received))
            if not piece:
                raise EOFError("the broker closed the connection")
            received += piece
        return received

    def is_closed(self) -> bool:
        """Whether the broker closes the connection (waits for it to do so)."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True
