"""What the marks of a log hide: single records that were deleted, and the marks themselves.

A mark (`ottla.record.deletion`) hides from its append on, and truncation takes it back. What it hides
may be erased from disk once the mark is below the high watermark: `erasable` tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ottla.logfiles.deletions import DeletionsSnapshot, may_be_mark
from ottla.logfiles.names import DELETIONS_SNAPSHOT
from ottla.record.batch import (
    BASE_OFFSET,
    LAST_OFFSET_DELTA,
)
from ottla.record.deletion import read_mark
from ottla.record.errors import InvalidBatch
from ottla.record.offset_set import OffsetRange, OffsetSet

if TYPE_CHECKING:
    from ottla.storage.segments.segments import Segments


class Deletions:
    """The marks of one log, as far as they matter. The file format and its crash policy are those of
    `ottla.logfiles.deletions`.

    Invariants: no offset is marked twice (whoever appends a mark leaves out what is marked already), so
    taking a mark back uncovers exactly what it hid. Marks at and above the high watermark are among
    `_uncommitted`, in the order of their offsets.
    """

    __slots__ = (
        "_uncommitted",
        "changed",
        "invisible",
        "path",
        "since_ms",
        "stored_end",
        "unerased",
    )

    def __init__(self, folder: str, snapshot: DeletionsSnapshot | None = None) -> None:
        self.path = f"{folder}/{DELETIONS_SNAPSHOT}"
        # Marked offsets, and those of the marks themselves.
        self.invisible = OffsetSet() if snapshot is None else snapshot.offsets
        # Marked offsets whose records may still be on disk, and since when there are any (0: there are
        # none).
        self.unerased = OffsetSet() if snapshot is None else snapshot.unerased
        self.since_ms = 0 if snapshot is None else snapshot.since_ms
        # Up to where the file goes: the checkpoint says so, so that a file that is lost, or an older
        # copy of it, is noticed.
        self.stored_end = 0 if snapshot is None else snapshot.end_offset
        # Memory is ahead of the file.
        self.changed = False
        # Marks, with what they hide, that may still be truncated.
        self._uncommitted: list[tuple[int, list[OffsetRange]]] = []

    def mark(self, offset: int, ranges: list[OffsetRange], now_ms: int) -> None:
        """Hide what the batch at `offset`, which was appended just now, marks."""
        self.found(offset, ranges, now_ms)
        self._uncommitted.append((offset, ranges))

    def found(self, offset: int, ranges: list[OffsetRange], now_ms: int) -> None:
        """Hide what the batch at `offset` of a log that is being loaded marks. Which of its marks are
        not committed is told in the end, by `uncommitted`."""
        self.invisible.add_all(ranges)
        self.unerased.add_all(ranges)
        self.since_ms = self.since_ms or now_ms
        self.invisible.add(offset, offset + 1)
        self.changed = True

    def take_back(self, offset: int, ranges: list[OffsetRange]) -> None:
        """Show again what the mark at `offset` hides, which is about to be cut off the log."""
        for start, end in ranges:
            self.invisible.discard(start, end)
            self.unerased.discard(start, end)
        self.invisible.discard(offset, offset + 1)
        self._uncommitted = [each for each in self._uncommitted if each[0] != offset]
        self.changed = True

    def uncommitted(self, marks: Iterable[tuple[int, list[OffsetRange]]]) -> None:
        """Keep which marks of a log that was loaded are at or above the high watermark."""
        self._uncommitted = list(marks)

    def committed_to(self, high_watermark: int) -> None:
        """Take the marks below the high watermark for committed: all in-sync replicas have them."""
        if self._uncommitted and self._uncommitted[0][0] < high_watermark:
            self._uncommitted = [each for each in self._uncommitted if each[0] >= high_watermark]

    def uncommitted_end(self, high_watermark: int) -> int:
        """The offset after the last mark that may still be truncated; -1 if there is none."""
        self.committed_to(high_watermark)
        return self._uncommitted[-1][0] + 1 if self._uncommitted else -1

    def erasable(self, start: int, end: int, high_watermark: int) -> OffsetSet:
        """What may go from disk between two offsets: what marks that are committed hide."""
        found = self.invisible.within(start, end)
        self._leave_uncommitted(found, high_watermark)
        return found

    def to_erase(self, start: int, end: int, high_watermark: int) -> OffsetSet:
        """What should go from disk between two offsets."""
        found = self.unerased.within(start, end)
        self._leave_uncommitted(found, high_watermark)
        return found

    def erased(self, gone: OffsetSet, since_ms: int) -> None:
        """Take note of what was erased from disk. Of the rest, if there is any, the oldest was marked at
        about `since_ms`."""
        self.unerased.subtract(gone)
        self.since_ms = since_ms if self.unerased else 0
        self.changed = True

    def stored(self, end_offset: int) -> None:
        """Take note that the file was replaced by a snapshot of a log that ends there."""
        self.stored_end = end_offset

    def forget_below(self, offset: int) -> None:
        """The log starts there, for good."""
        self.invisible.drop_below(offset)
        self.unerased.drop_below(offset)

    def _leave_uncommitted(self, found: OffsetSet, high_watermark: int) -> None:
        """Take out of a set what marks hide that may still be truncated."""
        self.committed_to(high_watermark)
        for _, ranges in self._uncommitted:
            for low, high in ranges:
                found.discard(low, high)

    def snapshot(self, end_offset: int) -> DeletionsSnapshot:
        """For the file, of a log that ends there; on any thread it may be written, and it stays as it
        is."""
        return DeletionsSnapshot(
            end_offset, self.since_ms, self.invisible.copy(), self.unerased.copy()
        )


def marks_from(segments: Segments, offset: int) -> Iterator[tuple[int, list[OffsetRange]]]:
    """The marks at and after an offset, with what they hide, as the log has them."""
    for segment in segments.from_offset(offset):
        if not segment.size:
            continue
        for at, size, fields in segment.walk(segment.batch_before(offset)):
            if fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] < offset or not may_be_mark(fields):
                continue
            ranges = mark_in(segment.file().read(size, at))
            if ranges is not None:
                yield fields[BASE_OFFSET], ranges


def mark_in(batch: bytes | bytearray | memoryview) -> list[OffsetRange] | None:
    """What a control batch of nobody marks; None if it is no mark."""
    try:
        return read_mark(batch)
    except InvalidBatch:
        return None
