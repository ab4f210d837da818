"""Reading a log: file ranges by offset, offsets by time, aborted transactions, epochs."""

from __future__ import annotations

from ottla.storage.errors import (
    CorruptFile,
    CorruptIndex,
    CorruptLog,
    OffsetOutOfRange,
    OutOfResources,
    passes,
)
from ottla.storage.log_state import LogState
from ottla.storage.recovery.replay import mend_transaction_indexes
from ottla.storage.segment_file import Slice
from ottla.storage.segments import TimedBatch, TimedOffset, time_in_batch


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
            timed = time_in_batch(batch, found.fields, timestamp, start)
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
