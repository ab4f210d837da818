"""Deadlines of many members, of which nearly all are moved before they pass.

A heartbeat moves a deadline by writing a number. The heap keeps the place that the timer had before;
only when that comes to the top is it looked at, and put back to where it belongs now. So thousands of
members cost a heap operation each per session timeout, not per heartbeat.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.coordinator.shard import Effects, Instant


class Timer:
    """One deadline and what happens when it passes. It fires once for each time it is set."""

    __slots__ = ("action", "deadline", "queued")

    def __init__(self, action: Callable[[Instant], Effects]) -> None:
        self.action = action
        self.deadline: int | None = None  # None: not set
        # Where it stands in the heap. Invariant: not later than the deadline; None: not there.
        self.queued: int | None = None


class Timers:
    """The timers of one shard, in monotonic milliseconds."""

    __slots__ = ("_heap", "_pushes")

    def __init__(self) -> None:
        # (place, number, timer): the number keeps timers of one place in order, uncompared.
        # An entry whose place is not its timer's `queued` is a leftover, to be dropped.
        self._heap: list[tuple[int, int, Timer]] = []
        self._pushes = 0

    def set(self, timer: Timer, deadline: int) -> None:
        timer.deadline = deadline
        if timer.queued is None or deadline < timer.queued:
            self._push(timer, deadline)

    def next_deadline(self) -> int | None:
        """When to look again. It may be too early, never too late."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: int) -> Timer | None:
        """A timer whose deadline has passed, unset; None if there is no (other) one."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            place, _, timer = heapq.heappop(heap)
            if place != timer.queued:
                continue
            timer.queued = None
            if timer.deadline is None:
                continue
            if timer.deadline > now:
                self._push(timer, timer.deadline)
                continue
            timer.deadline = None
            return timer
        return None

    def _push(self, timer: Timer, place: int) -> None:
        timer.queued = place
        self._pushes += 1
        heapq.heappush(self._heap, (place, self._pushes, timer))

    def __len__(self) -> int:
        return len(self._heap)


def unset(timer: Timer) -> None:
    """Its place in the heap is dropped when it comes up."""
    timer.deadline = None
