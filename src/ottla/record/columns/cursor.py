"""Where a decoder stands in its buffer: what is done, what comes next, and what went wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from ottla.record.batch import MAGIC
from ottla.record.columns.layout import Layout
from ottla.record.columns.walking import FoundBatch, Walk, found_at, located
from ottla.record.errors import InvalidBatch

UNBOUNDED = 2**63 - 1


class Decoded(NamedTuple):
    """Some rows of a buffer, and how far they reach.

    `next_offset` is the position to read on from: after all that was visible, left out or dropped
    so far. `consumed` is the number of bytes of the batches that are done with.
    """

    rows: pa.RecordBatch
    next_offset: int
    consumed: int


class Cursor:
    """The batches of one buffer in order, each taken once.

    A failure ends it, after everything before the failure has been given out: whoever reads on from
    `next_offset` meets it first.
    """

    def __init__(
        self,
        view: memoryview,
        *,
        layout: Layout,
        start_offset: int,
        end_offset: int | None,
        aborted: Iterable[tuple[int, int]],
        check_crc: bool,
        max_rows: int,
        max_bytes: int,
        decompressed_limit: int,
    ) -> None:
        self.view = view
        self.layout = layout
        self.start_offset = start_offset
        self.end_offset = UNBOUNDED if end_offset is None else end_offset
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self.decompressed_limit = decompressed_limit
        self.next_offset = start_offset
        self.consumed = 0
        self.failure: InvalidBatch | None = None
        self.check_crc = check_crc
        self._walk = Walk(view, aborted=aborted, check_crc=check_crc)
        self.special = self._walk.special
        self._batches = iter(self._walk)
        self._ahead: FoundBatch | None = None
        self._last: FoundBatch | None = None  # the last that was taken or passed over
        self._pending = False  # something that was taken is not read yet
        self._ended = False
        self._end_reached = False  # a batch from the end offset on has been met

    def peek(self) -> FoundBatch | None:
        """The next batch that has something to read; None at the end or at a failure."""
        while self._ahead is None and not self._ended:
            try:
                found = next(self._batches, None)
            except InvalidBatch as error:
                self.failure = error
                found = None
            if found is None:
                self._ended = True
            elif found.base_offset >= self.end_offset:
                self._ended = True
                self._end_reached = True
            elif found.visible and (found.last_offset >= self.start_offset or found.magic != MAGIC):
                self._ahead = found
            else:
                self._last = found
                if not self._pending:
                    self.finish()
        return self._ahead

    def take(self) -> None:
        """Make the batch that was peeked at the caller's, who reports when it is read."""
        self._last = self._ahead
        self._ahead = None
        self._pending = True

    @property
    def walk(self) -> Walk | None:
        """The walk, for a reader that goes on by itself; None if it is a batch ahead."""
        return None if self._ended or self._ahead is not None else self._walk

    def took(self, last_start: int) -> None:
        """The walk was moved on, and all batches up to the one that starts here are the caller's."""
        self._last = found_at(self.view, last_start)
        self._pending = True

    @property
    def read_to(self) -> int:
        """Where the batches that were taken, or passed over, end."""
        return self._walk.position

    @property
    def last_start(self) -> int:
        """Where the last batch starts that was taken or passed over; 0 before the first."""
        return 0 if self._last is None else self._last.start

    def finish(self) -> None:
        """All batches that were taken are read, and with them those that were passed over."""
        self._pending = False
        if self._last is not None:
            self.consumed = self._last.end
            self.next_offset = max(self.next_offset, self._last.last_offset + 1)

    def stop(self, found: FoundBatch, next_offset: int) -> None:
        """Read no further than this position inside a batch that was taken."""
        self._ahead = None
        self._ended = True
        self._end_reached = False
        self.consumed = found.start
        self.next_offset = max(self.next_offset, next_offset)

    def fail(self, error: InvalidBatch, found: FoundBatch, next_offset: int) -> None:
        """A batch that was taken cannot be read; `next_offset` is the position before it."""
        self.stop(found, next_offset)
        self.failure = type(error)(located(found.base_offset, error.reason))

    def end(self) -> None:
        """Nothing is left: if that is because of the end offset, then the position is there."""
        if self._end_reached:
            self.next_offset = max(self.next_offset, self.end_offset)
