"""Whether the records of a produced batch can be read, and may be in their topic.

As in Apache Kafka's broker, every record of every batch is looked at: lengths, counts, offset deltas,
times, keys where the topic is compacted, headers; of a compressed batch after decompression, which is
bounded. A batch that passes can be read by every client. (Kafka itself is less strict in places and
stores batches that clients cannot read: docs/adr/0008-records-of-producers.md has the list.)

At first records are walked over in plain Python, then by compiled code once there is some
(`readiness`), which takes 1.5 µs and 10 ns a record. Both find the same.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ottla.record.batch import (
    ATTRIBUTES,
    BATCH_LENGTH,
    CODEC_MASK,
    MAX_TIMESTAMP,
    RECORD_COUNT,
    RECORDS_AT,
    HeaderFields,
    read_header_fields,
    set_max_timestamp,
)
from ottla.record.compression.codecs import (
    DEFAULT_LIMIT,
    Codec,
    decompress,
    decompress_frames,
    decompress_plain_lz4,
    frame_bound,
)
from ottla.record.compression.stream_frames import check_single_lz4_frame
from ottla.record.errors import (
    CorruptBatch,
    InvalidRecord,
    InvalidRecords,
    InvalidTimestamps,
)
from ottla.record.validation import plain_walk
from ottla.record.validation.findings import FAULTS, Fault, Misfit, Rules, Walked
from ottla.record.validation.readiness import readiness

if TYPE_CHECKING:
    from ottla.record.validation.machine_code import CompiledWalk

__all__ = ["INLINE_LIMIT", "QUICK_BYTES", "Rules", "check_and_correct", "check_records", "is_quick"]

# What an event loop can do beside its other work, in some hundred microseconds: so many bytes by
# compiled code, so many records without it, a compressed batch of so many bytes that unfolds to so many.
QUICK_BYTES = 1 << 20
_QUICK_RECORDS = 300
_QUICK_COMPRESSED_BYTES = 64 << 10
INLINE_LIMIT = 256 << 10

_MESSAGES = {
    Misfit.NO_KEY: "a record of a compacted topic needs a key",
    Misfit.TIME_OUT_OF_RANGE: "the timestamp is out of the range that the topic allows",
}


class _ThreadState(threading.local):
    """What each thread that checks records has for itself: loops of several brokers may run in one
    process, and others check in threads of a pool."""

    walker: CompiledWalk | None = None
    # For what most compressed batches hold: to allocate it each time would take as long as to walk
    # over it.
    room: memoryview | None = None


_thread_state = _ThreadState()


def is_quick(fields: HeaderFields) -> bool:
    """Whether the batch with this header may be checked on the event loop, with INLINE_LIMIT."""
    if readiness.compiled is None and fields[RECORD_COUNT] > _QUICK_RECORDS:
        return False
    is_compressed = fields[ATTRIBUTES] & CODEC_MASK
    return fields[BATCH_LENGTH] <= (_QUICK_COMPRESSED_BYTES if is_compressed else QUICK_BYTES)


def check_records(
    batch: memoryview,
    fields: HeaderFields,
    rules: Rules,
    now_ms: int,
    limit: int = DEFAULT_LIMIT,
    in_thread: bool = False,
) -> int:
    """Check the records of one batch whose checksum and header (`fields`) are right; the largest of
    their times. `in_thread`: by another thread than that of the event loop, which may go on meanwhile.

    InvalidRecord, InvalidRecords (which names those at fault), TooLarge beyond `limit` bytes.
    """
    (_, _, _, _, _, attributes, _, base_timestamp, _, _, _, _, count) = fields
    data: bytes | memoryview = batch
    at = RECORDS_AT
    if attributes & CODEC_MASK:
        data = _decompressed(attributes & CODEC_MASK, batch[RECORDS_AT:], limit)
        at = 0
    compiled = readiness.compiled
    if compiled is None:
        walked = plain_walk.walk(data, at, count, base_timestamp, rules, now_ms)
        readiness.walked(count)
        if not walked.fault and not walked.misfit_count:
            return walked.max_timestamp
        raise _refusal(walked)
    walker = _thread_state.walker
    if walker is None:
        walker = _thread_state.walker = compiled.for_another_thread()
    largest = walker.largest_time(data, at, count, base_timestamp, rules, now_ms, in_thread)
    if largest is None:
        raise _refusal(walker.walk(data, at, count, base_timestamp, rules, now_ms, in_thread))
    return largest


def check_and_correct(
    batch: memoryview,
    fields: HeaderFields,
    rules: Rules,
    now_ms: int,
    limit: int = DEFAULT_LIMIT,
    in_thread: bool = False,
) -> HeaderFields:
    """As `check_records`; the header, in which the largest time is that of the records from now on,
    whatever the producer has written there."""
    largest = check_records(batch, fields, rules, now_ms, limit, in_thread)
    # With the broker's times the log writes its own into the header.
    if largest == fields[MAX_TIMESTAMP] or not rules.checks_times:
        return fields
    set_max_timestamp(batch, 0, largest)
    return read_header_fields(batch)


def _decompressed(codec: int, packed: memoryview, limit: int) -> bytes | memoryview:
    """What the batch holds; valid until this thread decompresses the next one."""
    try:
        room = _thread_state.room
        if room is None:
            room = _thread_state.room = memoryview(bytearray(INLINE_LIMIT))
        most = min(limit, INLINE_LIMIT)
        size = None
        if codec == Codec.LZ4:
            size = decompress_plain_lz4(packed, room[:most])
            if size is None:
                check_single_lz4_frame(packed)
        if size is None:
            bound = frame_bound(codec, packed)
            if bound is None or bound > most:
                return decompress(codec, packed, limit)
            size = decompress_frames(codec, packed, room)
        return room[:size] if size else b""
    except CorruptBatch as error:
        # The checksum is right, so nothing was damaged on the way: to send it again would not help.
        raise InvalidRecord(error.reason) from None


def _refusal(walked: Walked) -> InvalidRecord:
    if walked.fault:
        return InvalidRecord(f"record {walked.record}: {FAULTS[Fault(walked.fault)]}")
    named = [(index, _MESSAGES[Misfit(kind)]) for index, kind in walked.misfits]
    first, why = named[0]
    reason = f"{walked.misfit_count} records may not be in this topic; record {first}: {why}"
    if any(kind == Misfit.TIME_OUT_OF_RANGE for _, kind in walked.misfits):
        return InvalidTimestamps(reason, named)
    return InvalidRecords(reason, named)
