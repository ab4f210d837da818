"""Operations that wait for an event, not for a clock tick.

A Fetch that found too little registers as a waiter on its partitions. An append to one of them notes
the bytes here; once the current read of the producer's socket has been handled, everybody concerned
is woken in one go. So twenty small appends that arrived together wake a consumer once, with all of
them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.replication.partition import Partition


class Wakeups:
    """Wakes those who wait for partitions to move, once for each turn of the loop."""

    __slots__ = ("_advanced", "_appended", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # Partitions whose log grew (for followers) or whose high watermark moved (for consumers)
        # since the last round, with the bytes that this added.
        self._appended: dict[Partition, int] = {}
        self._advanced: dict[Partition, int] = {}

    def appended(self, partition: Partition, size: int) -> None:
        if not self._appended and not self._advanced:
            self._loop.call_soon(self._wake)
        self._appended[partition] = self._appended.get(partition, 0) + size

    def advanced(self, partition: Partition, size: int) -> None:
        if not self._appended and not self._advanced:
            self._loop.call_soon(self._wake)
        self._advanced[partition] = self._advanced.get(partition, 0) + size

    def _wake(self) -> None:
        appended, self._appended = self._appended, {}
        advanced, self._advanced = self._advanced, {}
        for partition, size in appended.items():
            for waiter in tuple(partition.replica_waiters):
                waiter.progressed(partition, size)
        for partition, size in advanced.items():
            for waiter in tuple(partition.waiters):
                waiter.progressed(partition, size)
