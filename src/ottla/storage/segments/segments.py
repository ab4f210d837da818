"""The segments of a log in order, and the searches that go over them.

Finding a record takes two bisections and a short scan: the segment by its base offset, the index
entry by offset or time, then a few KiB of batch headers. None of it grows with what is stored.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ottla.record.batch import (
    BASE_OFFSET,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    MAGIC_BYTE,
    MAX_TIMESTAMP,
    HeaderFields,
)
from ottla.record.errors import InvalidBatch
from ottla.record.offset_set import OffsetRange
from ottla.record.times import first_not_older
from ottla.storage.errors import CorruptIndex, NotInMemory
from ottla.storage.index.transaction_index import AbortedTransaction
from ottla.storage.segments.file import Slice
from ottla.storage.segments.segment import NO_TIMESTAMP, Segment

# Logs with more of them are known by a fingerprint: to read all their ends takes a while.
MANY_SEGMENTS: Final = 16


class TimedOffset(NamedTuple):
    """A record by its time, as ListOffsets answers it."""

    timestamp: int
    offset: int
    leader_epoch: int  # of its batch; -1 in the old formats


class TimedBatch(NamedTuple):
    """A batch in which a search by time has to look at the records."""

    piece: Slice
    fields: HeaderFields

    @property
    def end_offset(self) -> int:
        return self.fields[BASE_OFFSET] + self.fields[LAST_OFFSET_DELTA] + 1


class Segments:
    """Never empty but while a log is loaded; the last one is active, all others are sealed.

    Base offsets increase strictly. A segment's records end before the next one's base offset, with a
    gap where compaction removed the last of them.
    """

    __slots__ = ("_bases", "_newest_until", "_rebuilds", "_segments")

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        # Base offsets of _segments, slot by slot.
        self._bases: list[int] = []
        # The largest timestamp of each sealed segment and all before it, slot by slot, as far as it was
        # asked for. What it was read from may have been an index that was broken: after a rebuild of
        # any it is read again.
        self._newest_until: list[int] = []
        self._rebuilds = 0

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __getitem__(self, slot: int) -> Segment:
        return self._segments[slot]

    @property
    def active(self) -> Segment:
        return self._segments[-1]

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self._segments)

    def fingerprint(self) -> int:
        """A number for the names and sizes of all segments but the active one; 0 if there are few, whose
        ends are read quickly."""
        if len(self._segments) <= MANY_SEGMENTS:
            return 0
        sealed = self._segments[:-1]
        text = ",".join([f"{segment.base_offset}:{segment.size}" for segment in sealed])
        return 1 << 32 | zlib.crc32(text.encode())

    def add(self, segment: Segment) -> None:
        """Add a segment after all others."""
        assert not self._bases or segment.base_offset > self._bases[-1]
        self._segments.append(segment)
        self._bases.append(segment.base_offset)

    def take_first(self, count: int) -> list[Segment]:
        """Detaches the `count` oldest."""
        detached = self._segments[:count]
        del self._segments[:count]
        del self._bases[:count]
        self._newest_until.clear()
        return detached

    def take_from(self, slot: int) -> list[Segment]:
        """Detaches those from `slot` on."""
        detached = self._segments[slot:]
        del self._segments[slot:]
        del self._bases[slot:]
        # The one before them takes appends from now on.
        del self._newest_until[max(0, slot - 1) :]
        return detached

    def replace(self, slot: int, count: int, segment: Segment) -> None:
        """One compacted segment in the place of `count` others, with the base offset of the first."""
        assert segment.base_offset == self._bases[slot]
        self._segments[slot : slot + count] = [segment]
        self._bases[slot : slot + count] = [segment.base_offset]
        del self._newest_until[slot:]

    def slot_of(self, offset: int) -> int:
        """The slot of the segment in whose range the offset is (the first one's, if it is before)."""
        return max(0, bisect_right(self._bases, offset) - 1)

    def from_offset(self, offset: int) -> list[Segment]:
        """The segments that may hold records at or after `offset`."""
        return self._segments[self.slot_of(offset) :]

    def end_of(self, slot: int, log_end_offset: int) -> int:
        """The offset after the range of a segment."""
        return self._bases[slot + 1] if slot + 1 < len(self._bases) else log_end_offset

    def read(
        self,
        offset: int,
        max_bytes: int,
        upper: int,
        log_end_offset: int,
        at_least_one: bool,
        wait: bool,
    ) -> Slice | None:
        """See Log.read; the offset is in range."""
        segments = self._segments
        slot = len(segments) - 1
        segment = segments[slot]
        if offset < segment.base_offset:
            slot = self.slot_of(offset)
            segment = segments[slot]
        found = segment.locate(offset, wait)
        while found is None:
            # After the last record of this segment: the rest of its range was compacted away.
            slot += 1
            if slot == len(segments):
                return None
            segment = segments[slot]
            found = segment.locate(offset, wait)
        position, first_size = found
        if upper >= self.end_of(slot, log_end_offset):
            length = segment.size - position
        else:
            bound = segment.locate(upper, wait)
            length = (segment.size if bound is None else bound[0]) - position
        if length <= 0:
            return None
        if length > max_bytes:
            length = max_bytes
            if length < first_size and at_least_one:
                length = first_size
            if length <= 0:
                return None
        return Slice(segment.file(), position, length, first_size, segment)

    def end_bound(self, part: Slice, log_end_offset: int) -> int:
        """An offset that no record in the slice reaches beyond; nearer than the log's end where the
        index knows a nearer one."""
        try:
            after = part.position + part.length
            entry = part.segment.offset_index.first_at_or_after_position(after)
        except CorruptIndex:
            entry = None  # the next search in the segment makes it anew
        if entry is not None:
            return entry[0]
        base = part.segment.base_offset
        slot = self.slot_of(base)
        if slot < len(self._bases) and self._bases[slot] == base:
            return self.end_of(slot, log_end_offset)
        return log_end_offset

    def aborted_transactions(
        self, from_offset: int, upper: int, wait: bool = True
    ) -> list[AbortedTransaction]:
        """Those with records in [from_offset, upper). Without `wait`, NotInMemory if it takes a look
        at very many others."""
        found: list[AbortedTransaction] = []
        for segment in self.from_offset(from_offset):
            index = segment.transaction_index
            if not wait and (walk := index.long_walk()) is not None:
                raise NotInMemory(index.path, walk)
            # Not only up to `upper`: a marker after it may end a transaction that began before it.
            some, complete = index.aborted_between(from_offset, upper)
            found += some
            if complete:
                break
        return found

    def batch_for_time(self, timestamp: int, start_offset: int, wait: bool) -> TimedBatch | None:
        """The first batch with a record at or after start_offset that says to have one which is not
        older than the timestamp."""
        slot = max(self.slot_of(start_offset), self._first_not_older(timestamp, wait))
        for segment in self._segments[slot:]:
            if segment.size and self._newest(segment, timestamp, wait) >= timestamp:
                found = _find_batch(segment, timestamp, start_offset, wait)
                if found is not None:
                    return found
        return None

    def _first_not_older(self, timestamp: int, wait: bool) -> int:
        """The slot of the first segment with a record that is not older; the active one's if no sealed
        one has any. With very many segments, the first call takes a look at each of them."""
        known = self._newest_until
        if self._rebuilds != Segment.rebuilds:
            self._rebuilds = Segment.rebuilds
            known.clear()
        if not known or known[-1] < timestamp:
            newest = known[-1] if known else NO_TIMESTAMP
            for segment in self._segments[len(known) : -1]:
                if segment.size:
                    newest = max(newest, self._newest_of(segment, wait))
                known.append(newest)
                if newest >= timestamp:
                    break
        return bisect_left(known, timestamp)

    def max_timestamp(self, start_offset: int, wait: bool) -> int:
        """The largest of the segments that have records at or after start_offset; -1: there is
        none."""
        newest = -1
        for segment in self.from_offset(start_offset):
            if segment.size:
                newest = max(newest, self._newest_of(segment, wait))
        return newest

    @staticmethod
    def _newest_of(segment: Segment, wait: bool) -> int:
        """A segment's largest timestamp. Only what is not known has to be looked up. (A segment that is
        asked for more forgets that it was brought: over n segments, a search that begins anew would
        take 2ⁿ turns.)"""
        if not wait and segment.known_max_timestamp is None:
            segment.expect_times_in_memory()
        return segment.max_timestamp

    @staticmethod
    def _newest(segment: Segment, searched: int, wait: bool) -> int:
        """A segment's largest timestamp; if it is not below the one searched for, more of the segment
        will be looked at."""
        known = segment.known_max_timestamp
        if not wait and (known is None or known >= searched):
            segment.expect_times_in_memory()
        return segment.max_timestamp if known is None else known


def _find_batch(
    segment: Segment, timestamp: int, start_offset: int, wait: bool
) -> TimedBatch | None:
    offset = max(segment.offset_before_time(timestamp), start_offset)
    position = segment.batch_before(offset) if wait else segment.position_before(offset)
    for at, size, fields in segment.walk(position, wait=wait):
        if (
            fields[MAX_TIMESTAMP] >= timestamp
            and fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] >= start_offset
        ):
            return TimedBatch(Slice(segment.file(), at, size, size, segment), fields)
    return None


def time_in_batch(
    batch: bytes,
    fields: HeaderFields,
    timestamp: int,
    start_offset: int,
    hidden: Sequence[OffsetRange] = (),
) -> TimedOffset | None:
    """The first record of a batch that is not older, at or after start_offset, and not hidden."""
    try:
        found = first_not_older(batch, timestamp, start_offset, hidden=hidden)
    except InvalidBatch:
        return unreadable(fields, start_offset)
    return None if found is None else TimedOffset(*found, fields[LEADER_EPOCH])


def unreadable(fields: HeaderFields, start_offset: int) -> TimedOffset:
    """What can be said of a batch whose records cannot be read: its checksum was right when it was
    stored, so a client sent it like this."""
    first = (
        fields[BASE_OFFSET]
        if fields[MAGIC_BYTE] == 2
        else fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
    )
    return TimedOffset(fields[MAX_TIMESTAMP], max(first, start_offset), fields[LEADER_EPOCH])
