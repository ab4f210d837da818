"""What is compiled: the walk over the records of a batch, the same as `plain_walk`, 10 ns a record; and
the check of a frame that holds batches (`frames`), the same as the steps that it stands for.

Imported only by the process that compiles (`compile`) and by tests: the broker loads machine code, and
neither numba nor what it stands on.

Nothing in here may raise, allocate or call: the compiled function has to stand alone, and `compile`
refuses what does not. Positions are compared with the end of the record before each access; sums
cannot overflow, because every length has 32 bits and every position fits into 40. Times wrap as 64-bit
numbers do, in Kafka too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import register_jitable

from ottla.record.batch import (
    ATTRIBUTES_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    BATCH_LENGTH_AT,
    CRC_AT,
    LAST_CODEC,
    LAST_OFFSET_DELTA_AT,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
    RECORDS_AT,
)
from ottla.record.validation import findings
from ottla.record.validation.findings import (
    ACCEPTED,
    AFTER_MAX,
    BASE_TIMESTAMP,
    BATCH_END,
    BATCH_START,
    BEFORE_BYTES,
    BEFORE_MAX,
    CHECKS_TIMES,
    COUNT,
    END,
    FAULT,
    FOUND,
    FOUND_PLACES,
    FRAME_AFTER_MAX,
    FRAME_BEFORE_MAX,
    FRAME_CHECKS_TIMES,
    FRAME_END,
    FRAME_KEYS_REQUIRED,
    FRAME_NOW,
    FRAME_START,
    IS_COMPACT,
    KEYS_REQUIRED,
    LARGEST,
    MAX_TIMESTAMP,
    MISFIT_BITS,
    MISFIT_COUNT,
    MISFIT_ROOM,
    MOST_BATCHES,
    NO_TIMESTAMP,
    NOW,
    NUMBER,
    RECORD,
    SHORT_BATCH,
    START,
    VARINT_BYTES,
    VARLONG_BYTES,
)

# To the type checker numbers of a width are whatever they have to be.
int64: Any = np.int64
uint64: Any = np.uint64

_pointer: Any = types.CPointer
_bytes, _numbers = _pointer(types.uint8), _pointer(types.int64)
WALK_SIGNATURE = types.int64(_bytes, _numbers, _numbers)
ACCEPT_SIGNATURE = types.int64(_bytes, _numbers, _bytes, _pointer(types.uint32))

# numba takes numbers, not members of enumerations.
_RECORD_LENGTH = int(findings.Fault.RECORD_LENGTH)
_END_OF_BATCH = int(findings.Fault.END_OF_BATCH)
_VARINT = int(findings.Fault.VARINT)
_KEY_LENGTH = int(findings.Fault.KEY_LENGTH)
_VALUE_LENGTH = int(findings.Fault.VALUE_LENGTH)
_HEADER_COUNT = int(findings.Fault.HEADER_COUNT)
_HEADER_KEY = int(findings.Fault.HEADER_KEY)
_HEADER_VALUE = int(findings.Fault.HEADER_VALUE)
_BYTES_IN_RECORD = int(findings.Fault.BYTES_IN_RECORD)
_BYTES_AFTER_RECORDS = int(findings.Fault.BYTES_AFTER_RECORDS)
_OFFSET_DELTA = int(findings.Fault.OFFSET_DELTA)
_NO_KEY = int(findings.Misfit.NO_KEY)
_TIME_OUT_OF_RANGE = int(findings.Misfit.TIME_OUT_OF_RANGE)

_CUT = -1
# Of a frame, after what is known of it: a count, a number, a size, the header of a batch.
_SMALLEST_FRAME = 1 + 4 + 1 + RECORDS_AT


@register_jitable(forceinline=True)
def _varint(data: Any, at: int, end: int, most_bytes: int) -> Any:
    """The number at `at` and the position after it, which is _CUT if there is none."""
    if at >= end:
        return int64(0), int64(_CUT)
    byte = uint64(data[at])
    at += 1
    if byte < uint64(0x80):
        return int64(byte >> uint64(1)) ^ -int64(byte & uint64(1)), at
    value = byte & uint64(0x7F)
    shift = uint64(7)
    last = min(end, at + most_bytes - 1)
    while at < last:
        byte = uint64(data[at])
        at += 1
        value |= (byte & uint64(0x7F)) << shift
        if byte < uint64(0x80):
            if most_bytes == VARINT_BYTES:
                if value >> uint64(32):
                    return int64(0), int64(_CUT)
            elif shift == uint64(63) and byte > uint64(1):
                return int64(0), int64(_CUT)
            return int64(value >> uint64(1)) ^ -int64(value & uint64(1)), at
        shift += uint64(7)
    return int64(0), int64(_CUT)


@register_jitable(forceinline=True)
def _after_headers(data: Any, at: int, record_end: int) -> Any:
    """The position after a record's headers, or a fault."""
    count, at = _varint(data, at, record_end, VARINT_BYTES)
    if at < 0:
        return at, _VARINT
    if count < 0 or 2 * count > record_end - at:
        return at, _HEADER_COUNT
    for _ in range(count):
        length, at = _varint(data, at, record_end, VARINT_BYTES)
        if at < 0:
            return at, _VARINT
        if length < 0 or length > record_end - at:
            return at, _HEADER_KEY
        length, at = _varint(data, at + length, record_end, VARINT_BYTES)
        if at < 0:
            return at, _VARINT
        if length < -1 or length > record_end - at:
            return at, _HEADER_VALUE
        if length > 0:
            at += length
    return at, 0


@register_jitable(forceinline=True)
def _next_record(data: Any, at: int, end: int, index: int) -> Any:
    """One record: a fault, the position after it, its timestamp delta, whether it has a key."""
    length, at = _varint(data, at, end, VARINT_BYTES)
    if at < 0:
        return _VARINT, at, int64(0), False
    record_end = at + length
    if length <= 0 or record_end > end:
        return _RECORD_LENGTH, at, int64(0), False
    timestamp_delta, at = _varint(data, at + 1, record_end, VARLONG_BYTES)
    if at < 0:
        return _VARINT, at, int64(0), False
    offset_delta, at = _varint(data, at, record_end, VARINT_BYTES)
    if at < 0:
        return _VARINT, at, int64(0), False
    if offset_delta != index:
        return _OFFSET_DELTA, at, int64(0), False
    key_length, at = _varint(data, at, record_end, VARINT_BYTES)
    if at < 0:
        return _VARINT, at, int64(0), False
    if key_length < -1 or key_length > record_end - at:
        return _KEY_LENGTH, at, int64(0), False
    if key_length > 0:
        at += key_length
    length, at = _varint(data, at, record_end, VARINT_BYTES)
    if at < 0:
        return _VARINT, at, int64(0), False
    if length < -1 or length > record_end - at:
        return _VALUE_LENGTH, at, int64(0), False
    if length > 0:
        at += length
    if at >= record_end:
        return _VARINT, at, int64(0), False
    if data[at] == 0:
        at += 1
    else:
        at, fault = _after_headers(data, at, record_end)
        if fault != 0:
            return fault, at, int64(0), False
    if at != record_end:
        return _BYTES_IN_RECORD, at, int64(0), False
    return 0, at, timestamp_delta, key_length >= 0


@register_jitable(forceinline=True)
def _walk(
    data: Any,
    at: int,
    end: int,
    count: int,
    base_timestamp: int,
    rules: Any,
    now: int,
    room: int,
    misfits: Any,
) -> Any:
    """A fault and the record that has it, the largest time, how many misfits there are."""
    keys_required, checks_times, before_max, after_max = rules
    max_timestamp = int64(NO_TIMESTAMP)
    misfit_count = int64(0)
    index = int64(0)
    fault = 0
    while index < count:
        if at >= end:
            fault = _END_OF_BATCH
            break
        fault, at, delta, has_key = _next_record(data, at, end, index)
        if fault != 0:
            break
        timestamp = base_timestamp + delta
        if timestamp > max_timestamp:
            max_timestamp = timestamp
        misfit = 0
        if keys_required != 0 and not has_key:
            misfit = _NO_KEY
        elif checks_times != 0 and timestamp != NO_TIMESTAMP:
            age = now - timestamp
            if age > before_max or -age > after_max:
                misfit = _TIME_OUT_OF_RANGE
        if misfit != 0:
            if misfit_count < room:
                misfits[misfit_count] = (index << MISFIT_BITS) | misfit
            misfit_count += 1
        index += 1
    if fault == 0:
        index = int64(0)
        if at != end:
            fault = _BYTES_AFTER_RECORDS
            index = max(count - 1, int64(0))
    return fault, index, max_timestamp, misfit_count


def walk(data: Any, numbers: Any, misfits: Any) -> int:
    """Walk as the numbers say, and leave what was found among them."""
    rules = (
        numbers[KEYS_REQUIRED],
        numbers[CHECKS_TIMES],
        numbers[BEFORE_MAX],
        numbers[AFTER_MAX],
    )
    fault, index, max_timestamp, misfit_count = _walk(
        data,
        numbers[START],
        numbers[END],
        numbers[COUNT],
        numbers[BASE_TIMESTAMP],
        rules,
        numbers[NOW],
        numbers[MISFIT_ROOM],
        misfits,
    )
    numbers[FAULT] = fault
    numbers[RECORD] = index
    numbers[MAX_TIMESTAMP] = max_timestamp
    numbers[MISFIT_COUNT] = misfit_count
    return 0


@register_jitable(forceinline=True)
def _big_endian(data: Any, at: int, size: int) -> Any:
    """The unsigned number of so many bytes."""
    value = uint64(0)
    for step in range(size):
        value = (value << uint64(8)) | uint64(data[at + step])
    return value


@register_jitable(forceinline=True)
def _signed(value: Any, bits: int) -> Any:
    shift = uint64(64 - bits)
    return int64(value << shift) >> int64(64 - bits)


@register_jitable(forceinline=True)
def _little_endian(data: Any, at: int) -> Any:
    value = uint64(0)
    for step in range(4):
        value |= uint64(data[at + step]) << uint64(8 * step)
    return value


@register_jitable(forceinline=True)
def _crc32c(data: Any, at: int, end: int, tables: Any) -> Any:
    """Eight bytes at a time, with a table for each."""
    crc = uint64(0xFFFFFFFF)
    low = uint64(0xFF)
    while end - at >= 8:
        one = crc ^ _little_endian(data, at)
        two = _little_endian(data, at + 4)
        crc = (
            uint64(tables[uint64(1792) + (one & low)])
            ^ uint64(tables[uint64(1536) + ((one >> uint64(8)) & low)])
            ^ uint64(tables[uint64(1280) + ((one >> uint64(16)) & low)])
            ^ uint64(tables[uint64(1024) + (one >> uint64(24))])
            ^ uint64(tables[uint64(768) + (two & low)])
            ^ uint64(tables[uint64(512) + ((two >> uint64(8)) & low)])
            ^ uint64(tables[uint64(256) + ((two >> uint64(16)) & low)])
            ^ uint64(tables[two >> uint64(24)])
        )
        at += 8
    while at < end:
        crc = uint64(tables[(crc ^ uint64(data[at])) & low]) ^ (crc >> uint64(8))
        at += 1
    return crc ^ uint64(0xFFFFFFFF)


@register_jitable(forceinline=True)
def _is_right(data: Any, at: int, end: int, numbers: Any, tables: Any) -> Any:
    """Whether data[at:end] is one batch that is right in every respect (as far as that can be seen from
    outside, if it is compressed) and asks for nothing special."""
    size = end - at
    if size <= RECORDS_AT or size > numbers[LARGEST]:
        return False
    # Beyond the codec nothing may be set: no transaction, no control batch, no time of the broker's.
    attributes = _big_endian(data, at + ATTRIBUTES_AT, 2)
    count = _signed(_big_endian(data, at + RECORD_COUNT_AT, 4), 32)
    base_timestamp = int64(_big_endian(data, at + BASE_TIMESTAMP_AT, 8))
    if (
        _big_endian(data, at, 8) != 0
        or int64(_big_endian(data, at + BATCH_LENGTH_AT, 4)) + LENGTH_OVERHEAD != size
        or data[at + MAGIC_AT] != MAGIC
        or attributes > LAST_CODEC
        or count <= 0
        or count != _signed(_big_endian(data, at + LAST_OFFSET_DELTA_AT, 4), 32) + 1
    ):
        return False
    if int64(_big_endian(data, at + PRODUCER_ID_AT, 8)) >= 0 and (
        _signed(_big_endian(data, at + PRODUCER_EPOCH_AT, 2), 16) < 0
        or _signed(_big_endian(data, at + BASE_SEQUENCE_AT, 4), 32) < 0
    ):
        return False
    if size <= SHORT_BATCH and _crc32c(data, at + ATTRIBUTES_AT, end, tables) != _big_endian(
        data, at + CRC_AT, 4
    ):
        return False
    # What is compressed is walked over once it is not.
    if attributes != 0:
        return True
    rules = (
        numbers[FRAME_KEYS_REQUIRED],
        numbers[FRAME_CHECKS_TIMES],
        numbers[FRAME_BEFORE_MAX],
        numbers[FRAME_AFTER_MAX],
    )
    fault, _, max_timestamp, misfit_count = _walk(
        data, at + RECORDS_AT, end, count, base_timestamp, rules, numbers[FRAME_NOW], 0, numbers
    )
    return (
        fault == 0
        and misfit_count == 0
        and max_timestamp == int64(_big_endian(data, at + MAX_TIMESTAMP_AT, 8))
    )


@register_jitable(forceinline=True)
def _framed_batch(data: Any, at: int, stop: int, is_compact: Any) -> Any:
    """Where the batch begins and ends whose size stands at `at`; if it does not end before `stop`, the
    beginning is _CUT."""
    if is_compact != 0:
        size = int64(0)
        shift = int64(0)
        byte = int64(0x80)
        while byte >= 0x80:
            if shift > 14 or at >= stop:
                return int64(_CUT), at
            byte = int64(data[at])
            size |= (byte & 0x7F) << shift
            shift += 7
            at += 1
        end = at + size - 1
    else:
        if stop - at < 4:
            return int64(_CUT), at
        end = at + 4 + _signed(_big_endian(data, at, 4), 32)
        at += 4
    if end > stop or end < at:
        return int64(_CUT), at
    return at, end


def accept(data: Any, numbers: Any, before: Any, tables: Any) -> int:
    """Whether a frame is what the numbers say, around batches of which each `_is_right`: ACCEPTED is how
    many then, and 0 if somebody has to take a closer look."""
    numbers[ACCEPTED] = 0
    at = numbers[FRAME_START]
    stop = numbers[FRAME_END]
    length = numbers[BEFORE_BYTES]
    is_compact = numbers[IS_COMPACT]
    if at + length + _SMALLEST_FRAME > stop:
        return 0
    for step in range(length):
        if data[at + step] != before[step]:
            return 0
    at += length
    if is_compact != 0:
        # More than fit into one byte are more than MOST_BATCHES.
        count = int64(data[at]) - 1
        at += 1
    else:
        count = _signed(_big_endian(data, at, 4), 32)
        at += 4
    if count <= 0 or count > MOST_BATCHES:
        return 0
    for batch in range(count):
        if stop - at < 4:
            return 0
        number = _signed(_big_endian(data, at, 4), 32)
        start, end = _framed_batch(data, at + 4, stop, is_compact)
        if start < 0 or not _is_right(data, start, end, numbers, tables):
            return 0
        found = FOUND + FOUND_PLACES * batch
        numbers[found + NUMBER] = number
        numbers[found + BATCH_START] = start
        numbers[found + BATCH_END] = end
        at = end
        if is_compact != 0:
            if at >= stop or data[at] != 0:
                return 0
            at += 1
    if is_compact != 0:
        # Of the topic and of the request.
        if at + 2 != stop or data[at] != 0 or data[at + 1] != 0:
            return 0
    elif at != stop:
        return 0
    numbers[ACCEPTED] = count
    return 0
