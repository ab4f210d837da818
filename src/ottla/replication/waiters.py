"""Those who wait for a log to reach an offset: its high watermark, or its flushes."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

from ottla.protocol.errors import ErrorCode

# Called once, with NONE when the offset is reached, or with the reason why it never will be.
Reached = Callable[[ErrorCode], None]


class OffsetWaiter:
    """One who waits until all records below `end_offset` have got somewhere."""

    __slots__ = ("end_offset", "reached")

    def __init__(self, end_offset: int, reached: Reached) -> None:
        self.end_offset = end_offset
        self.reached = reached


def _end_offset(waiter: OffsetWaiter) -> int:
    return waiter.end_offset


class OffsetWaiters:
    """Waiters in the order of their offsets; appends come in that order, so most are added last."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: list[OffsetWaiter] = []

    def add(self, end_offset: int, reached: Reached) -> OffsetWaiter:
        waiter = OffsetWaiter(end_offset, reached)
        insort(self.waiting, waiter, key=_end_offset)
        return waiter

    def remove(self, waiter: OffsetWaiter) -> None:
        """Remove a waiter, which is not called; one that is not here was called already."""
        if waiter in self.waiting:
            self.waiting.remove(waiter)

    def advance(self, end_offset: int) -> None:
        """Call those who wait for offsets up to `end_offset`: it was reached."""
        waiting = self.waiting
        count = 0
        while count < len(waiting) and waiting[count].end_offset <= end_offset:
            count += 1
        self._call(count, ErrorCode.NONE)

    def fail(self, code: ErrorCode) -> None:
        """Call all who wait with an error."""
        self._call(len(self.waiting), code)

    def _call(self, count: int, code: ErrorCode) -> None:
        # Taken out before they are called: who is called may add new ones.
        called, self.waiting = self.waiting[:count], self.waiting[count:]
        mistake: Exception | None = None
        for waiter in called:
            try:
                waiter.reached(code)
            except Exception as error:  # noqa: BLE001 - raised when all of them were told
                mistake = mistake or error
        if mistake is not None:
            raise mistake
