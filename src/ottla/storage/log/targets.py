"""Which records may be deleted one by one: committed ones that are there, and no control records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.record.batch import (
    ATTRIBUTES,
    BASE_OFFSET,
    CONTROL_BIT,
    LAST_OFFSET_DELTA,
    MAGIC,
    MAGIC_BYTE,
    PRODUCER_ID,
    RECORD_COUNT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    HeaderFields,
    contents,
)
from ottla.record.compression.codecs import DEFAULT_LIMIT
from ottla.record.errors import InvalidBatch
from ottla.record.offset_set import OffsetRange, OffsetSet
from ottla.record.spans import record_spans
from ottla.storage.errors import UndeletableOffset

if TYPE_CHECKING:
    from ottla.storage.log.log import Log
    from ottla.storage.segments.segment import Segment

# Batches that are looked at before somebody else has a turn.
BATCHES_AT_ONCE = 100


def check_bounds(log: Log, start: int, end: int) -> None:
    """UndeletableOffset unless the range lies between the log's start and its last stable offset."""
    if start >= end:
        raise UndeletableOffset(start, f"is after {end - 1}: a range ends before it begins")
    if start < log.log_start_offset:
        raise UndeletableOffset(start, f"is out of range: the log starts at {log.log_start_offset}")
    stable = log.last_stable_offset
    if end > stable:
        offset = max(start, stable)
        if offset >= log.log_end_offset:
            raise UndeletableOffset(
                offset, f"is out of range: the log ends at {log.log_end_offset}"
            )
        raise UndeletableOffset(
            offset,
            f"is not committed: the last stable offset is {stable}; wait for the transaction to end "
            "or the replicas to catch up",
        )


def not_deleted(log: Log, start: int, end: int, skip_deleted: bool) -> list[OffsetRange]:
    """The part of a range that no mark hides; UndeletableOffset if that is not all of it, unless what
    is deleted is to be skipped."""
    if log.deletions is None:
        return [(start, end)]
    hidden = log.deletions.invisible.between(start, end)
    if hidden and not skip_deleted:
        raise UndeletableOffset(hidden[0][0], "is deleted already")
    left = []
    for low, high in hidden:
        if start < low:
            left.append((start, low))
        start = high
    if start < end:
        left.append((start, end))
    return left


def check_records(log: Log, start: int, end: int, wait: bool = False) -> tuple[int, int]:
    """Look at the batches of some of the offsets from `start` on, and say up to where that went; and up
    to which offset, perhaps beyond `end`, every offset holds a record that may be deleted: who asks for
    many of a batch looks at it once. UndeletableOffset if one of them holds none; NotInMemory, unless
    told to `wait`, if the disk would have to be asked."""
    segments = log.segments
    seen = 0
    known = start
    for slot in range(segments.slot_of(start), len(segments)):
        segment = segments[slot]
        found = segment.locate(start, wait) if segment.size else None
        if found is None:
            continue  # after what compaction left of it
        for at, size, fields in segment.walk(found[0], wait=wait):
            first, last = fields[BASE_OFFSET], fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
            if fields[MAGIC_BYTE] == MAGIC and first > start:
                raise _gone(start)
            upper = min(end, last + 1)
            is_whole = _check_batch(log, segment, at, size, fields, start, upper)
            start = upper
            known = last + 1 if is_whole else start
            seen += 1
            if start >= end or seen >= BATCHES_AT_ONCE:
                return start, known
    if start < end:
        raise _gone(start)
    return start, known


def _gone(offset: int) -> UndeletableOffset:
    return UndeletableOffset(offset, "holds no record: compaction has removed it")


def _check_batch(
    log: Log,
    segment: Segment,
    at: int,
    size: int,
    fields: HeaderFields,
    start: int,
    end: int,
) -> bool:
    """UndeletableOffset if an offset of a batch from `start` to before `end` may not be deleted. Returns
    whether every other offset of it holds a record, too."""
    if fields[MAGIC_BYTE] == MAGIC:
        if fields[ATTRIBUTES] & CONTROL_BIT:
            raise UndeletableOffset(start, "holds no record, but the end of a transaction")
        if fields[ATTRIBUTES] & TRANSACTIONAL_BIT and _is_aborted(log, fields):
            raise UndeletableOffset(
                start, "is in an aborted transaction, which only read_uncommitted consumers see"
            )
        if fields[RECORD_COUNT] == fields[LAST_OFFSET_DELTA] + 1:
            return True
    try:
        missing = OffsetSet([(start, end)])
        for offset in _offsets(segment.file().read(size, at), fields):
            missing.discard(offset, offset + 1)
    except InvalidBatch as error:
        raise UndeletableOffset(start, f"is in a batch that cannot be read: {error}") from None
    for low, _ in missing:
        raise _gone(low)
    return False


def _is_aborted(log: Log, fields: HeaderFields) -> bool:
    first, last = fields[BASE_OFFSET], fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
    return any(
        each.producer_id == fields[PRODUCER_ID]
        and each.first_offset <= last
        and each.last_offset >= first
        for each in log.segments.aborted_transactions(first, last + 1)
    )


def _offsets(batch: bytes, fields: HeaderFields) -> list[int]:
    """Those of the records that are left in a batch."""
    if fields[MAGIC_BYTE] != MAGIC:
        from ottla.record.legacy import messages  # rarely needed

        return [record.offset for record in messages(batch, DEFAULT_LIMIT)]
    data = contents(memoryview(batch), BatchHeader._make(fields), DEFAULT_LIMIT)
    return [fields[BASE_OFFSET] + span[2] for span in record_spans(data, fields[RECORD_COUNT])]
