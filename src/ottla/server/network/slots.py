"""What a request has of its connection while it waits: its place among the answers, bytes of its own."""

from __future__ import annotations

from mmap import mmap
from typing import TYPE_CHECKING, Final

from ottla.server.network.file_range import FileRange

if TYPE_CHECKING:
    from ottla.server.network.connection import Connection

# Of an answer.
Part = bytes | bytearray | memoryview | FileRange
# Memory for what has arrived of a request.
Buffer = bytearray | mmap

NOTHING: Final = memoryview(b"")


class Slot:
    """The place of one response in the order of a connection's responses."""

    __slots__ = ("connection", "parts")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.parts: list[Part] | None = None

    def fill(self, parts: list[Part]) -> None:
        """Give the response; an empty list is the answer to a request that wants none."""
        self.parts = parts
        connection = self.connection
        for part in parts:
            connection.out_bytes += len(part)
        connection.drain_slots()


class HeldBytes:
    """Bytes of a request that are kept after its handler returned, until `release`."""

    __slots__ = ("_buffer", "_connection", "_size", "data")

    def __init__(
        self,
        connection: Connection,
        data: bytearray | memoryview,
        size: int,
        buffer: Buffer | None,
    ) -> None:
        self.data = data
        self._connection = connection
        self._size = size
        # The connection's own buffer, if it was handed over with the data; None: the data is a copy.
        self._buffer = buffer

    def release(self, *, reusable: bool = True) -> None:
        """Give the bytes up. `reusable`: nobody is still at work on them (as a thread would be whose
        result is not awaited)."""
        reactor = self._connection.reactor
        self._connection.held_bytes -= self._size
        if self._buffer is None:
            reactor.partial_bytes -= self._size
        elif reusable:
            reactor.give_buffer_back(self._buffer)
        else:
            reactor.partial_bytes -= len(self._buffer)
        # Whoever still holds this object (an exception's traceback, say) holds no memory with it.
        self.data = NOTHING
        self._buffer = None
        reactor.memory_released(None)
