"""What proxies in front of a broker have in common: a port, frames, and the end of connections."""

from __future__ import annotations

import socket
import struct
import threading
from types import TracebackType
from typing import Self


class Proxy:
    """Listens on a port of its own; the broker that it stands for must advertise `address`."""

    def __init__(self) -> None:
        self._target = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def forward_to(self, port: int) -> None:
        self._target = port

    def serve(self, client: socket.socket) -> None:
        """A client has come. Called in the thread that accepts the next one."""
        raise NotImplementedError

    def connect(self, client: socket.socket) -> socket.socket | None:
        """A connection to the broker for a client. None: the broker is not there yet, and the client's
        connection is closed."""
        try:
            broker = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            hang_up(client)
            return None
        self._open |= {client, broker}
        return broker

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.serve(client)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Wakes the thread that waits in accept; closing alone would not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        hang_up(*self._open)


def read_frame(connection: socket.socket) -> bytes | None:
    """The next frame, without its length; None at the end of the connection."""
    header = _read(connection, 4)
    return None if header is None else _read(connection, struct.unpack(">i", header)[0])


def send_frame(connection: socket.socket, frame: bytes) -> None:
    connection.sendall(struct.pack(">i", len(frame)) + frame)


def _read(connection: socket.socket, size: int) -> bytes | None:
    received = bytearray()
    while len(received) < size:
        try:
            part = connection.recv(min(size - len(received), 1 << 20))
        except OSError:
            return None
        if not part:
            return None
        received += part
    return bytes(received)


def hang_up(*connections: socket.socket) -> None:
    for connection in connections:
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is gone already, which is what was wanted
        connection.close()
