"""Reading a log: file ranges by offset, offsets by time, aborted transactions, epochs."""

from __future__ import annotations

from typing import NamedTuple

from ottla.record.batch import (
    BASE_OFFSET,
    MAGIC,
    MAGIC_BYTE,
)
from ottla.storage.errors import (
    CorruptFile,
    CorruptIndex,
    CorruptLog,
    OffsetOutOfRange,
    OutOfResources,
    passes,
)
from ottla.storage.log.state import LogState
from ottla.storage.recovery.replay import mend_transaction_indexes
from ottla.storage.segments.file import Slice
from ottla.storage.segments.segment import Segment
from ottla.storage.segments.segments import TimedBatch, TimedOffset, time_in_batch

# A stretch without deleted records that is at least so long is read by itself, from the file to the
# socket; where they lie closer together, so much is read at a time and looked through.
CLEAN_BYTES = 64 << 10
MASKED_BYTES = 1 << 20


class VisiblePart(NamedTuple):
    """What a consumer may be sent of a log in which records were deleted. Without a piece and without
    `is_covered` there is nothing to be had."""

    piece: Slice | None
    # The piece has batches that must not be sent as they are.
    is_masked: bool = False
    # The piece ends before something that has to be looked at: there is more than it has.
    ends_early: bool = False
    # None of the offsets before `upper` may be seen.
    is_covered: bool = False


class ReadableLog(LogState):
    """All that reads a log. None of it changes the log's state, but that a disk which fails takes it
    offline."""

    __slots__ = ()

    def read(
        self,
        offset: int,
        max_bytes: int,
        upper: int,
        at_least_one: bool = True,
        wait: bool = True,
    ) -> Slice | None:
        """A file range that begins with the batch which holds `offset` (or, where compaction left a
        gap, the first after it) and has no batch at or after `upper`; None if there is none.

        At most max_bytes, but never less than the first batch if `at_least_one`. OffsetOutOfRange
        outside of [log_start_offset, log_end_offset]. NotInMemory, unless told to `wait`, if the
        search would have to ask the disk.
        """
        end = self.log_end_offset
        if offset >= end or offset < self.log_start_offset or self.offline is not None:
            self.check_online()
            if offset != end:
                raise OffsetOutOfRange(offset, self.log_start_offset, end)
            return None
        if offset >= upper:
            return None
        try:
            return self.segments.read(offset, max_bytes, upper, end, at_least_one, wait)
        except (OSError, CorruptFile) as error:
            raise self._read_failed(error) from error

    def read_visible(
        self, offset: int, max_bytes: int, upper: int, at_least_one: bool, wait: bool
    ) -> VisiblePart:
        """As `read`, for consumers of a log that has marks."""
        assert self.deletions is not None
        invisible = self.deletions.invisible
        end = self.log_end_offset
        if self.log_start_offset <= offset < end:
            visible = invisible.first_out(offset)
            if visible >= upper:
                # Whoever waits at `upper` has nothing before it that would have to be covered.
                return VisiblePart(None, is_covered=offset < upper)
            offset = visible
        piece = self.read(offset, max_bytes, upper, at_least_one, wait)
        if piece is None or piece.length < piece.first_size:
            return VisiblePart(piece)
        segment = piece.segment
        try:
            first, _ = segment.offsets_at(piece.file, piece.position, wait)
            found = self._touched(segment, first, upper, wait)
            if found is not None and found[0] < piece.position:
                found = piece.position, piece.first_size  # where it begins is not known
            clean = segment.size if found is None else found[0]
            clean -= piece.position
            if found is None or clean >= piece.length:
                return VisiblePart(piece)
            if clean >= CLEAN_BYTES:
                return VisiblePart(piece._replace(length=clean), ends_early=True)
            # One that stands alone is read alone; else much is read at once.
            end = found[0] + found[1]
            _, last = segment.offsets_at(piece.file, found[0], wait)
            following = self._touched(segment, last + 1, upper, wait)
        except (OSError, CorruptFile) as error:
            raise self._read_failed(error) from error
        if following is not None and following[0] - end < CLEAN_BYTES:
            end = piece.position + max(MASKED_BYTES, piece.first_size)
        length = min(piece.length, end - piece.position)
        return VisiblePart(
            piece._replace(length=length), is_masked=True, ends_early=length < piece.length
        )

    def _touched(
        self, segment: Segment, offset: int, upper: int, wait: bool
    ) -> tuple[int, int] | None:
        """Position and size of the first batch of a segment, from `offset` on, that has something to
        hide; None if none has."""
        assert self.deletions is not None
        touched = self.deletions.invisible.first_in(offset, upper)
        return None if touched is None else segment.locate(touched, wait)

    def end_bound(self, part: Slice) -> int:
        """An offset that no record in the slice reaches: up to where aborted transactions matter to
        its reader."""
        try:
            return self.segments.end_bound(part, self.log_end_offset)
        except (OSError, CorruptFile) as error:
            raise self._read_failed(error) from error

    def aborted_transactions(
        self, from_offset: int, upper: int, wait: bool = True
    ) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions with records in the range. Without
        `wait`, NotInMemory if it takes a look at very many others."""
        self.check_online()
        try:
            try:
                found = self.segments.aborted_transactions(from_offset, upper, wait)
            except CorruptIndex:
                start = self.log_start_offset
                mend_transaction_indexes(self.segments, self.producers, start, from_offset)
                found = self.segments.aborted_transactions(from_offset, upper)
        except (OSError, CorruptFile) as error:
            raise self._read_failed(error) from error
        return [(entry.producer_id, entry.first_offset) for entry in found]

    def offset_for_time(self, timestamp: int) -> TimedOffset | None:
        """The first record that is not older; None if all are. It reads and unpacks batches: for those
        who may wait. (Others take the same steps one by one, see server/disk/time_search.py.)"""
        start = self.log_start_offset
        while (found := self.batch_for_time(timestamp, start)) is not None:
            try:
                batch = found.piece.read()
            except OSError as error:
                raise self._read_failed(error) from error
            first, end = (
                found.fields[BASE_OFFSET] if found.fields[MAGIC_BYTE] == MAGIC else start,
                found.end_offset,
            )
            hidden = [] if self.deletions is None else self.deletions.invisible.between(first, end)
            timed = time_in_batch(batch, found.fields, timestamp, start, hidden)
            if timed is not None:
                return timed
            start = found.end_offset
        return None

    def batch_for_time(
        self, timestamp: int, start_offset: int, wait: bool = True
    ) -> TimedBatch | None:
        """The first batch at or after start_offset that should have a record which is not older.
        NotInMemory, unless told to `wait`, if the search would have to ask the disk."""
        self.check_online()
        try:
            return self.segments.batch_for_time(timestamp, start_offset, wait)
        except (OSError, CorruptFile) as error:
            if not wait and isinstance(error, CorruptLog):
                # An index that points anywhere: looked at more closely, and mended.
                return self.batch_for_time(timestamp, start_offset)
            raise self._read_failed(error) from error

    def max_timestamp(self, wait: bool = True) -> int:
        """The largest timestamp in the log, -1 if there is none. NotInMemory as above."""
        self.check_online()
        try:
            return self.segments.max_timestamp(self.log_start_offset, wait)
        except (OSError, CorruptFile) as error:
            raise self._read_failed(error) from error

    def offset_of_max_timestamp(self) -> TimedOffset | None:
        """The first record with the largest timestamp; None if no record has one."""
        newest = self.max_timestamp()
        return None if newest < 0 else self.offset_for_time(newest)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest known epoch up to that one, and where it ends; (-1, -1) if none is known."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def _read_failed(self, error: OSError | CorruptFile) -> Exception:
        if isinstance(error, OSError) and passes(error):
            return OutOfResources(self.name, str(error))
        return self.go_offline(f"read failed: {error}")
