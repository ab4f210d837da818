"""What readers see of a log's bytes: batches without the records that were deleted one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ottla.logfiles.walk import OVERHEAD, SMALLEST_ENTRY, fields_at
from ottla.record.batch import (
    ATTRIBUTES,
    BASE_OFFSET,
    BATCH_LENGTH,
    CODEC_MASK,
    CONTROL_BIT,
    LAST_OFFSET_DELTA,
    MAGIC,
    MAGIC_BYTE,
    RECORD_COUNT,
    BatchHeader,
    HeaderFields,
)
from ottla.record.compression.codecs import DEFAULT_LIMIT
from ottla.record.deletion import hides, strip
from ottla.record.errors import InvalidBatch, TooLarge, Truncated
from ottla.record.offset_set import OffsetRange


class Visible(NamedTuple):
    """What is left of some batches, and the offset after the last one that was looked at."""

    batches: bytes
    end_offset: int


def without(
    batches: bytes | memoryview, hidden: Sequence[OffsetRange], limit: int = DEFAULT_LIMIT
) -> Visible:
    """Whole batches, of any format, without the records at these offsets, which are in order.

    Batches of which nothing is left go, and so do those that have no offset but hidden ones, as marks
    have. Those that lose some records are made anew. What has lost none comes as it was; so does what
    cannot be unpacked, since a reader has to be told of that. A batch that is cut at the end goes.
    """
    view = memoryview(batches)
    parts: list[bytes | memoryview] = []
    at = kept_from = 0
    end_offset = -1
    slot = 0
    while len(view) - at >= SMALLEST_ENTRY:
        try:
            fields = fields_at(view, at)
        except Truncated:
            break
        size = fields[BATCH_LENGTH] + OVERHEAD
        if at + size > len(view):
            break
        first, last = fields[BASE_OFFSET], fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
        if fields[MAGIC_BYTE] < MAGIC and fields[ATTRIBUTES] & CODEC_MASK:
            # A compressed set of an old format tells the offset of its last message only.
            first = max(end_offset, 0)
        end_offset = last + 1
        while slot < len(hidden) and hidden[slot][1] <= first:
            slot += 1
        if slot < len(hidden) and hidden[slot][0] <= last:
            parts.append(view[kept_from:at])
            left = _left(view[at : at + size], fields, first, last, hidden[slot:], limit)
            if left is not None:
                parts.append(left)
            kept_from = at + size
        at += size
    parts.append(view[kept_from:at])
    return Visible(b"".join(parts), end_offset)


def _left(
    batch: memoryview,
    fields: HeaderFields,
    first: int,
    last: int,
    hidden: Sequence[OffsetRange],
    limit: int,
) -> bytes | memoryview | None:
    if hides(hidden, first, last):
        return None
    if fields[MAGIC_BYTE] == MAGIC and fields[ATTRIBUTES] & CONTROL_BIT:
        return batch
    if not fields[RECORD_COUNT]:
        return None  # compaction took what was not deleted
    try:
        return strip(batch, BatchHeader._make(fields), hidden, limit)
    except TooLarge:
        raise
    except InvalidBatch:
        return batch
