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
    __slots__ = ("_loop", "_moved")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # Partitions that moved since the last round, with the bytes that were added.
        self._moved: dict[Partition, int] = {}

    def moved(self, partition: Partition, appended_bytes: int) -> None:
        if not self._moved:
            self._loop.call_soon(self._wake)
        self._moved[partition] = self._moved.get(partition, 0) + appended_bytes

    def _wake(self) -> None:
        moved, self._moved = self._moved, {}
        for partition, appended_bytes in moved.items():
            for waiter in tuple(partition.waiters):
                waiter.progressed(partition, appended_bytes)
