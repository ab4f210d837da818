"""Erasing: records that were deleted one by one go from disk.

Segments that hold some of them are rewritten, each by itself, as compaction does it: a job for a worker
process, then a swap. Only the deleted records go. Every batch stays, if only as a header: base and last
offset, epochs, producer and sequence are what they were, so that producers, transactions and readers see
no difference. The largest timestamps are those of what is left. A segment that is damaged, so that a
batch of it cannot be taken apart, stays as it is, and the others are erased all the same.

What has been marked for half of `delete.record.erase.ms` is due. A segment must be sealed and synced;
the active one is rolled if it holds something that is due. A pass goes over a part of a log that has
very much to erase, or in very many bytes: what is sent to the worker process is bounded, and so is
what a crash makes it do again, and the room that it takes. After one that found no room the next takes
a single segment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from ottla.record.batch import (
    ATTRIBUTES,
    BASE_OFFSET,
    CONTROL_BIT,
    LAST_OFFSET_DELTA,
    MAGIC,
    MAGIC_BYTE,
    RECORD_COUNT,
    BatchHeader,
    HeaderFields,
)
from ottla.record.deletion import hides, strip
from ottla.record.offset_set import OffsetRange, OffsetSet
from ottla.storage.compaction.filter import DECOMPRESSED_LIMIT, emptied, placeholder
from ottla.storage.index.transaction_index import AbortedTransaction

if TYPE_CHECKING:
    from ottla.storage.compaction.plan import SourceSegment
    from ottla.storage.log.log import Log


# So many ranges, 8 bytes each, a pass takes at most, but never less than those of a segment.
RANGES_AT_ONCE = 1 << 20
# Segments of so many bytes a pass rewrites before the first of them is put in place, but never less
# than one of them: it needs as much room beside them. One of the usual size.
BYTES_AT_ONCE = 1 << 30


class EraseFilter:
    """What erasing leaves of a batch."""

    __slots__ = ("_aborted", "_erasable", "keeps_old_tombstones", "records_dropped")

    def __init__(self, erasable: OffsetSet, aborted: Iterable[AbortedTransaction]) -> None:
        self._erasable = erasable
        self._aborted = tuple(aborted)
        self.keeps_old_tombstones = True
        self.records_dropped = 0

    def leave(
        self, batch: memoryview, fields: HeaderFields, is_last: bool
    ) -> memoryview | bytes | None:
        """What is left of a batch, None if nothing is: only of the old formats, which have no header
        that could stay."""
        first, last = fields[BASE_OFFSET], fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
        if fields[MAGIC_BYTE] < MAGIC:
            first = 0  # a compressed set tells its last offset only
        elif fields[ATTRIBUTES] & CONTROL_BIT:
            return batch
        hidden = self._erasable.between(first, last + 1)
        if not hidden:
            return batch
        if hides(hidden, first, last) and fields[MAGIC_BYTE] == MAGIC:
            self.records_dropped += fields[RECORD_COUNT]
            return emptied(fields, max_timestamp=-1)  # whatever is in it
        left = strip(batch, BatchHeader._make(fields), hidden, DECOMPRESSED_LIMIT)
        if left is batch:
            return batch
        if left is None:
            self.records_dropped += fields[RECORD_COUNT]
            if fields[MAGIC_BYTE] < MAGIC:
                return placeholder(fields) if is_last else None
            return emptied(fields, max_timestamp=-1)
        self.records_dropped += sum(end - start for start, end in hidden)
        return left

    def aborted_in(self, sources: list[SourceSegment]) -> list[AbortedTransaction]:
        """The transactions whose end is in these segments: as they were."""
        start, end = sources[0].base_offset, sources[-1].end_offset
        return [each for each in self._aborted if start <= each.last_offset < end]


def is_due(log: Log, now_ms: int) -> bool:
    """Whether something has waited long enough to be erased; also if that cannot be told, for the clock
    was set back since."""
    deletions = log.deletions
    if deletions is None or not deletions.since_ms:
        return False
    waited = now_ms - deletions.since_ms
    return waited >= log.config.delete_record_erase_ms // 2 or waited < 0


def is_overdue(log: Log, now_ms: int) -> bool:
    """Whether something that is due has waited for all of its time."""
    assert log.deletions is not None
    waited = now_ms - log.deletions.since_ms
    return waited >= log.config.delete_record_erase_ms or waited < 0


def erasable_now(
    log: Log,
    synced_end: int,
    unreadable: Collection[OffsetRange] = (),
    most_bytes: int | None = None,
) -> tuple[OffsetSet, bool]:
    """What a pass can erase, and whether that is all that can be. `synced_end`: up to here it is stored
    that the log was synced. `unreadable`: the offsets of segments that were tried in vain, see
    `Outcome.skipped`. `most_bytes`: in place of BYTES_AT_ONCE."""
    assert log.deletions is not None
    deletions = log.deletions
    most_bytes = BYTES_AT_ONCE if most_bytes is None else most_bytes
    ranges = size = 0
    end = log.segments[0].base_offset  # the log may start later, in the middle of it
    for slot, segment in enumerate(log.segments):
        stop = log.segments.end_of(slot, log.log_end_offset)
        if segment is log.active or not segment.settled or stop > synced_end:
            break
        end = stop
        if (segment.base_offset, stop) not in unreadable:
            found_here = deletions.unerased.ranges_in(segment.base_offset, stop)
            ranges += found_here
            size += segment.size if found_here else 0
            if ranges >= RANGES_AT_ONCE or (found_here and size >= most_bytes):
                break
    found = deletions.to_erase(log.segments[0].base_offset, end, log.high_watermark)
    left = deletions.unerased.count
    for each in unreadable:
        found.discard(*each)
        left -= deletions.unerased.within(*each).count
    return found, found.count == left


def must_roll(log: Log) -> bool:
    """Whether the active segment holds something to erase."""
    assert log.deletions is not None
    start, end = log.active.base_offset, log.log_end_offset
    return bool(log.deletions.to_erase(start, end, log.high_watermark))
