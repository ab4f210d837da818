"""A proxy that stands in front of a broker and writes down what clients ask.

Clients come to it because the broker advertises its address. It can turn its clients away and take
them back, as a broker that restarts does.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from types import TracebackType

from wire_kit.proxy import hang_up


class RecordingProxy:
    """`requests` holds (api key, version) of each request, in the order in which they came."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, int]] = []
        self.port = 0
        self._changed = threading.Condition()
        self._listener: socket.socket | None = None
        self._open: set[socket.socket] = set()
        self._target = ("127.0.0.1", 0)
        self.listen()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def forward_to(self, port: int) -> None:
        self._target = ("127.0.0.1", port)

    def begin(self) -> None:
        """Hang up on clients of earlier tests, forget what they asked, and take new ones."""
        self.turn_away()
        with self._changed:
            self.requests.clear()
        self.listen()

    def listen(self) -> None:
        """Take clients; the second time on the same port."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen()
        self.port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def turn_away(self) -> None:
        """Close every connection and refuse new ones."""
        if self._listener is not None:
            # Wakes the thread that waits in accept; closing alone would not.
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        with self._changed:
            open_now, self._open = self._open, set()
        for connection in open_now:
            hang_up(connection)

    def wait_for(self, seen: Callable[[list[tuple[int, int]]], bool], timeout: float = 20) -> None:
        """Return once the requests so far are as wished."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while not seen(self.requests):
                left = deadline - time.monotonic()
                assert left > 0, f"only these requests came: {self.requests}"
                self._changed.wait(left)

    def versions(self, api_key: int) -> set[int]:
        with self._changed:
            return {version for key, version in self.requests if key == api_key}

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(self._target, timeout=5)
            except OSError:
                client.close()
                continue
            broker.settimeout(None)
            with self._changed:
                self._open |= {client, broker}
            threading.Thread(target=self._requests, args=(client, broker), daemon=True).start()
            threading.Thread(target=self._answers, args=(broker, client), daemon=True).start()

    def _requests(self, client: socket.socket, broker: socket.socket) -> None:
        unread = bytearray()
        for chunk in chunks(client):
            unread += chunk
            with self._changed:
                while len(unread) >= 8:
                    size, api_key, version = struct.unpack_from(">ihh", unread)
                    if len(unread) < 4 + size:
                        break
                    self.requests.append((api_key, version))
                    del unread[: 4 + size]
                self._changed.notify_all()
            if not sent(broker, chunk):
                break
        hang_up(broker)

    def _answers(self, broker: socket.socket, client: socket.socket) -> None:
        for chunk in chunks(broker):
            if not sent(client, chunk):
                break
        hang_up(client)

    def __enter__(self) -> RecordingProxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.turn_away()


def chunks(connection: socket.socket):  # type: ignore[no-untyped-def]
    while True:
        try:
            chunk = connection.recv(1 << 18)
        except OSError:
            return
        if not chunk:
            return
        yield chunk


def sent(connection: socket.socket, data: bytes) -> bool:
    try:
        connection.sendall(data)
    except OSError:
        return False
    return True
