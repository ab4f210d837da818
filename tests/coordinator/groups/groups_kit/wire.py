"""Typed messages over a real socket."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Self, TypeVar

from ottla.protocol.frame import encode_request, has_flexible_response_header, parse_response_header
from ottla.protocol.message import Message

R = TypeVar("R", bound=Message)


class Wire:
    def __init__(self, host: str, port: int, timeout: float = 30.0) -> None:
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

    def send(self, request: Message, version: int, client_id: str = "wire") -> None:
        self._correlation_id += 1
        self.sock.sendall(encode_request(request, version, self._correlation_id, client_id))

    def receive(self, response: type[R], version: int) -> R:
        frame = self._exactly(int.from_bytes(self._exactly(4), "big"))
        flexible = has_flexible_response_header(response.api_key, version)
        correlation_id, at = parse_response_header(frame, 0, flexible)
        assert correlation_id == self._correlation_id
        message, end = response.decode(frame, at, version)
        assert end == len(frame), "the response is longer than its message"
        return message

    def call(self, request: Message, response: type[R], version: int) -> R:
        self.send(request, version)
        return self.receive(response, version)

    def _exactly(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            piece = self.sock.recv(size - len(received))
            if not piece:
                raise EOFError("the broker closed the connection")
            received += piece
        return received
