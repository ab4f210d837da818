"""The walk over the records of a batch, to be compiled: the same as `plain_walk`, 10 ns a record.

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

from ottla.record.validation import findings
from ottla.record.validation.findings import (
    AFTER_MAX,
    BASE_TIMESTAMP,
    BEFORE_MAX,
    CHECKS_TIMES,
    COUNT,
    END,
    FAULT,
    KEYS_REQUIRED,
    MAX_TIMESTAMP,
    MISFIT_BITS,
    MISFIT_COUNT,
    MISFIT_ROOM,
    NO_TIMESTAMP,
    NOW,
    RECORD,
    START,
    VARINT_BYTES,
    VARLONG_BYTES,
)

# To the type checker numbers of a width are whatever they have to be.
int64: Any = np.int64
uint64: Any = np.uint64

_pointer: Any = types.CPointer
SIGNATURE = types.int64(_pointer(types.uint8), _pointer(types.int64), _pointer(types.int64))

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
def _is_out_of_range(timestamp: int, numbers: Any) -> bool:
    age = numbers[NOW] - timestamp
    return bool(age > numbers[BEFORE_MAX] or -age > numbers[AFTER_MAX])


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


def walk(data: Any, numbers: Any, misfits: Any) -> int:
    """Walk as the numbers say, and leave what was found among them."""
    at = numbers[START]
    end = numbers[END]
    count = numbers[COUNT]
    base_timestamp = numbers[BASE_TIMESTAMP]
    keys_required = numbers[KEYS_REQUIRED] != 0
    checks_times = numbers[CHECKS_TIMES] != 0
    room = numbers[MISFIT_ROOM]
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
        if keys_required and not has_key:
            misfit = _NO_KEY
        elif checks_times and timestamp != NO_TIMESTAMP and _is_out_of_range(timestamp, numbers):
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
    numbers[FAULT] = fault
    numbers[RECORD] = index
    numbers[MAX_TIMESTAMP] = max_timestamp
    numbers[MISFIT_COUNT] = misfit_count
    return 0
