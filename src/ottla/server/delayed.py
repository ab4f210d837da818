"""Operations that wait for an event, not for a clock tick.

A Fetch that found too little registers as a waiter on its partitions. An append to one of them notes
the bytes here; once the current read of the producer's socket has been handled, everybody concerned
is woken in one go. So twenty small appends that arrived together wake a consumer once, with all of
them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
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


# A queue stays until its time has passed, and so does what is over in it after one that is not.
MOST_QUEUES = 64
# A client may ask for weeks: whoever waits longer than this has a timer of their own.
LONGEST_QUEUED_MS = 300_000


class Deadline:
    """A callback for the time when a wait is over; see `Deadlines`."""

    __slots__ = ("_queue", "at", "passed")

    def __init__(
        self, queue: deque[Deadline], at: float, passed: Callable[[], None] | None
    ) -> None:
        self._queue = queue
        self.at = at
        # None: it is over.
        self.passed = passed

    def cancel(self) -> None:
        self.passed = None
        # Those that began first end first, so hardly any that is over stays in the queue.
        queue = self._queue
        while queue and queue[0].passed is None:
            queue.popleft()


class Deadlines:
    """Timers of which hardly one ever fires: each acks=all request has one. A timer of the loop's own
    for each of them would cost more than the rest of the wait."""

    __slots__ = ("_loop", "_queues")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # Milliseconds → those who wait so long, in the order in which they began and will end. A client
        # asks for the same every time; those of one that does not get timers of their own.
        self._queues: dict[int, deque[Deadline]] = {}

    def after(
        self, milliseconds: int, passed: Callable[[], None]
    ) -> Deadline | asyncio.TimerHandle:
        """Have `passed` called after this time, unless it is cancelled before."""
        queue = self._queues.get(milliseconds)
        if queue is None:
            if milliseconds > LONGEST_QUEUED_MS or len(self._queues) >= MOST_QUEUES:
                return self._loop.call_later(milliseconds / 1000, passed)
            queue = self._queues[milliseconds] = deque()
            self._loop.call_later(milliseconds / 1000, self._look, milliseconds)
        deadline = Deadline(queue, self._loop.time() + milliseconds / 1000, passed)
        queue.append(deadline)
        return deadline

    def _look(self, milliseconds: int) -> None:
        """Calls those at the head of a queue whose time is over."""
        queue = self._queues[milliseconds]
        # What the loop's clock cannot tell apart counts as over.
        now = self._loop.time() + 0.001
        try:
            while queue and queue[0].at <= now:
                passed = queue.popleft().passed
                if passed is not None:
                    passed()
        finally:
            if queue:
                self._loop.call_at(queue[0].at, self._look, milliseconds)
            else:
                del self._queues[milliseconds]
