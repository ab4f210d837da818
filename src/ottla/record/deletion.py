"""Deleting single records: the mark in the log, and batches without what is marked.

A mark is a control batch of nobody (producer id -1) with one record, in the log of the partition whose
records it marks:

    key     int16   version         0
            int16   type            DELETION, far above the types that Kafka has
    value   int16   version         0
            varint  ranges
            for each range, in the order of offsets:
            varint  gap             from the end of the range before it (of the first: from 0)
            varint  length          number of offsets, less one

Readers of Kafka's formats skip control records of types that they do not know. What is marked keeps
its offset, and all other records theirs.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from ottla.record.batch import (
    LOG_APPEND_TIME,
    MAGIC,
    BatchHeader,
    Buffer,
    Record,
    assemble,
    build_batch,
    contents,
    records,
)
from ottla.record.compression.codecs import DEFAULT_LIMIT, Codec, compress
from ottla.record.control import COMMIT, control_type
from ottla.record.errors import InvalidRecord
from ottla.record.offset_set import OffsetRange
from ottla.record.spans import record_spans
from ottla.record.varint import decode_varlong, encode_varint

DELETION: Final = 0x4F54  # "OT"

_KEY = struct.Struct(">hh")  # version, type
_VERSION = struct.Struct(">h")
_END_OF_TRANSACTION = struct.Struct(">hi")
_NO_TIMESTAMP = -1
_LARGEST_DELTA: Final = 0x7FFFFFFF
_FOREVER: Final = 1 << 63
_NOTHING: Final = (_FOREVER, _FOREVER)
# What a mark takes beside its ranges (header, key, lengths), and a range at most.
MARK_OVERHEAD: Final = 96
LARGEST_RANGE: Final = 20


def build_mark(ranges: Sequence[OffsetRange], *, base_offset: int = 0) -> bytes:
    """The batch that marks these offsets: ranges in order, of which no two overlap. It has no time of
    its own, so that neither searches by time nor retention take notice of it."""
    parts = [_VERSION.pack(0), encode_varint(len(ranges))]
    previous = 0
    for start, end in ranges:
        if not previous <= start < end:
            raise ValueError(f"range {start} to {end} after {previous}")
        parts.append(encode_varint(start - previous))
        parts.append(encode_varint(end - start - 1))
        previous = end
    record = Record(base_offset, _NO_TIMESTAMP, _KEY.pack(0, DELETION), b"".join(parts))
    return build_batch([record], base_offset=base_offset, control=True)


def read_mark(batch: Buffer) -> list[OffsetRange] | None:
    """What a control batch without a producer marks; None if it is one of another kind."""
    for record in records(batch):
        return ranges_in(record)
    return None


def ranges_in(record: Record) -> list[OffsetRange] | None:
    """What a control record marks; None if it is of another type."""
    if control_type(record) != DELETION:
        return None
    value = record.value
    if value is None or len(value) < _VERSION.size:
        raise InvalidRecord("the value of a deletion mark is too short")
    (version,) = _VERSION.unpack_from(value)
    if version != 0:
        raise InvalidRecord(f"a deletion mark of version {version}")
    count, at = decode_varlong(value, _VERSION.size)
    if not 0 <= 2 * count <= len(value):
        raise InvalidRecord(f"a deletion mark with {count} ranges in {len(value)} bytes")
    found = []
    previous = 0
    for _ in range(count):
        gap, at = decode_varlong(value, at)
        length, at = decode_varlong(value, at)
        if gap < 0 or length < 0:
            raise InvalidRecord("a deletion mark whose ranges are out of order")
        start = previous + gap
        previous = start + length + 1
        found.append((start, previous))
    return found


def build_cover(start: int, end: int, leader_epoch: int) -> bytes:
    """A batch for consumers that stands for offsets none of which they may see: shaped like the end of
    a committed transaction, which every client skips, and of nobody's. It covers at most 2³¹ offsets;
    its one record has the last of them, so that whoever counts by records gets there too."""
    last = min(end - 1, start + _LARGEST_DELTA)
    key = _KEY.pack(0, COMMIT)
    record = Record(last, _NO_TIMESTAMP, key, _END_OF_TRANSACTION.pack(0, 0))
    return build_batch(
        [record], base_offset=start, leader_epoch=leader_epoch, transactional=True, control=True
    )


def strip(
    batch: memoryview,
    header: BatchHeader,
    hidden: Sequence[OffsetRange],
    limit: int = DEFAULT_LIMIT,
) -> bytes | memoryview | None:
    """A batch of data without the records at these offsets, which are in order; None if none is left,
    the batch itself if it has none of them. Base and last offset, producer, sequence and epochs stay,
    as compaction leaves them; the largest timestamp is that of what is left."""
    if header.magic < MAGIC:
        return _strip_old(batch, header, hidden, limit)
    data = contents(batch, header, limit)
    base_offset = header.base_offset
    kept = []
    ranges = iter(hidden)
    start, end = next(ranges, _NOTHING)
    for span in record_spans(data, header.record_count):
        offset = base_offset + span[2]
        while offset >= end:
            start, end = next(ranges, _NOTHING)
        if offset < start:
            kept.append(span)
    if len(kept) == header.record_count:
        return batch
    if not kept:
        return None
    payload = b"".join([data[span[0] : span[1]] for span in kept])
    max_timestamp = header.max_timestamp
    if header.timestamp_type != LOG_APPEND_TIME:
        max_timestamp = header.base_timestamp + max(span[3] for span in kept)
    if header.codec != Codec.NONE:
        payload = compress(header.codec, payload)
    return assemble(header._replace(max_timestamp=max_timestamp, record_count=len(kept)), payload)


def _strip_old(
    entry: memoryview, header: BatchHeader, hidden: Sequence[OffsetRange], limit: int
) -> bytes | memoryview | None:
    """`strip` for a message set; one that loses some of its messages becomes a batch of today's
    format."""
    from ottla.record.legacy import messages  # rarely needed

    every = list(messages(entry, limit))
    kept = [record for record in every if not hides(hidden, record.offset, record.offset)]
    if len(kept) == len(every):
        return entry
    if not kept:
        return None
    return build_batch(
        kept,
        base_offset=kept[0].offset,
        codec=header.codec,
        timestamp_type=header.timestamp_type,
        last_offset=header.base_offset,
    )


def hides(hidden: Sequence[OffsetRange], first: int, last: int) -> bool:
    """Whether one of the ranges, which are in order, has all offsets from the first to the last."""
    slot = bisect_right(hidden, (first, _FOREVER)) - 1
    return slot >= 0 and last < hidden[slot][1]
