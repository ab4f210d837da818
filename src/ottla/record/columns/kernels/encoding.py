"""The compiled loop that writes record batches: a part of `decoding`, whose rules hold here.

Records are summed up soon after they are written, while the processor's fastest cache has them, and what
will be copied next is fetched from memory meanwhile: one keeps the processor busy, the other does not.
What stands before the records in the checksum, the header, is known only when the batch is full; as
`sealing` says, all that has to be known of the records then is their own sum, and how long they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import register_jitable

from ottla.record.batch import (
    ATTRIBUTES_AT,
    BASE_OFFSET_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    BATCH_LENGTH_AT,
    CRC_AT,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
)
from ottla.record.columns import sealing
from ottla.record.columns.kernels.arrays import (
    ALL_ONES,
    BYTES,
    INPUT,
    INT64S,
    TABLE,
    int64,
    uint8,
    uint64,
)
from ottla.record.columns.kernels.copying import copy, fetch
from ottla.record.columns.kernels.walking import (
    after_zeros,
    compiled,
    sum_of_word,
    summed,
    word_at,
    zeros_table,
)

# Places in the state of an encoding call: what the caller sets …
ROW_COUNT = 0
BATCH_LIMIT = 1  # bytes of a batch, header included, that the next record may not pass
TIMESTAMP = 2  # of all records, where there is no column
KEY_BIT = 3  # of the first row in the key's bitmap
VALUE_BIT = 4
HEADERS_BIT = 5
HEADER_VALUE_BIT = 6  # of the first entry of the header values' bitmap
HAS_KEY = 7
HAS_VALUE = 8
HAS_HEADERS = 9
SEALS = 10  # whether batches get their headers and checksums here
ATTRIBUTES = 11
PRODUCER_ID = 12
PRODUCER_EPOCH = 13
BASE_SEQUENCE = 14  # of the first row; -1 for none
# … and what the kernel keeps.
NEXT_ROW = 15
OUTPUT_SIZE = 16
BATCHES = 17
REQUIRED = 18  # the size of the output that the next record needs
ENCODE_STATE_SIZE = 19

# What an encoding call ends with.
ENCODED = 0  # all rows are
BATCHES_FULL = 1  # the table has no line for the next batch; those in it are whole
OUTPUT_FULL = 2  # the output has no room for a batch's first record; those before are whole
BATCH_CUT = 3  # the output has no room for the last batch's next record
BAD_INPUT = 4  # offsets of a column that do not lie in its data, or a row that is not there

# Places in a row of the table of batches.
BATCH_START = 0
BATCH_END = 1
BATCH_FIRST = 2
BATCH_COUNT = 3
BATCH_BASE_TIMESTAMP = 4
BATCH_MAX_TIMESTAMP = 5
BATCH_COLUMNS = 6

_LARGEST_SEQUENCE = 0x7FFFFFFF
# Records are summed up in three stretches of this many bytes side by side, as in `walk_kernels`; shorter
# ones than there, so that all that is fetched meanwhile has room in the fastest cache.
_STRETCH = 1024
_STRETCHES = 3 * _STRETCH
_LINE = 64  # bytes that memory gives at once
_AFTER_STRETCH = zeros_table(_STRETCH)
# What 1, 2, 4, … bytes multiply the sum's register with.
_POWERS = np.array([sealing.power_of_bytes(1 << bit) for bit in range(32)], np.uint64)

_inputs32 = types.Array(types.int32, 1, "C", readonly=True)
_inputs64 = types.Array(types.int64, 1, "C", readonly=True)


@register_jitable(forceinline=True)
def _is_valid(bitmap: Any, index: int) -> bool:
    return bool((bitmap[index >> 3] >> (index & 7)) & 1)


@register_jitable(forceinline=True)
def _varint_size(value: int) -> int:
    rest = uint64((value << 1) ^ (value >> 63))
    if rest < uint64(0x80):
        return 1
    if rest < uint64(0x4000):
        return 2
    size = 2
    while rest >= uint64(0x4000):
        rest >>= uint64(7)
        size += 1
    return size


@register_jitable(forceinline=True)
def _put_varint(output: Any, at: int, value: int) -> int:
    """Write `value` and give the position after it; the caller has made sure of the room."""
    rest = uint64((value << 1) ^ (value >> 63))
    if rest < uint64(0x80):
        output[at] = uint8(rest)
        return at + 1
    while rest >= uint64(0x80):
        output[at] = uint8(rest & uint64(0x7F)) | uint8(0x80)
        rest >>= uint64(7)
        at += 1
    output[at] = uint8(rest)
    return at + 1


@register_jitable
def _put(output: Any, at: int, value: int, size: int) -> None:
    """Write a number of so many bytes, the highest first."""
    for place in range(at + size - 1, at - 1, -1):
        output[place] = uint8(value & 0xFF)
        value >>= 8


@register_jitable(forceinline=True)
def _span(offsets: Any, data: Any, index: int) -> tuple[Any, Any]:
    """Start and length of an entry; a length of -2 if it does not lie in the data."""
    start = int64(offsets[index])
    end = int64(offsets[index + 1])
    if start < 0 or end < start or end > len(data):
        return int64(0), int64(-2)
    return start, end - start


@compiled(types.uint64(types.uint64, types.uint64))
def _product(one: Any, other: Any) -> Any:
    """The product of two polynomials, modulo the checksum's: see `sealing`."""
    result = uint64(0)
    for power in range(31, -1, -1):
        if (one >> uint64(power)) & uint64(1):
            result ^= other
        odd = other & uint64(1)
        other >>= uint64(1)
        if odd:
            other ^= uint64(sealing.POLYNOMIAL)
    return result


sealing.compiled_product = _product


@register_jitable
def _after_many_zeros(register: Any, count: int) -> Any:
    """The checksum's register after so many zero bytes."""
    bit = 0
    while count > 0 and bit < len(_POWERS):
        if count & 1:
            register = _product(_POWERS[bit], register)
        count >>= 1
        bit += 1
    return register


@register_jitable
def _sum_stretches(register: Any, data: Any, at: int, source: Any, source_at: int) -> Any:
    """The sum's register after the three stretches from `at` on; fetches as much of the source."""
    if at < 0 or at + _STRETCHES > len(data):
        raise IndexError("a checksum beyond a buffer")
    fetches = source_at >= 0 and source_at + _STRETCHES <= len(source)
    second = uint64(0)
    third = uint64(0)
    for line in range(at, at + _STRETCH, _LINE):
        if fetches:
            fetch(source, source_at)
            fetch(source, source_at + _LINE)
            fetch(source, source_at + 2 * _LINE)
            source_at += 3 * _LINE
        for place in range(line, line + _LINE, 8):
            register = sum_of_word(register, word_at(data, place))
            second = sum_of_word(second, word_at(data, place + _STRETCH))
            third = sum_of_word(third, word_at(data, place + 2 * _STRETCH))
    return after_zeros(_AFTER_STRETCH, after_zeros(_AFTER_STRETCH, register) ^ second) ^ third


@register_jitable
def _seal(output: Any, state: Any, table: Any, batch: int, sum_of_records: Any) -> None:
    """Write the header of a batch whose records are all there, with the checksum over both."""
    start = table[batch, BATCH_START]
    end = table[batch, BATCH_END]
    count = table[batch, BATCH_COUNT]
    if start < 0 or end - start < HEADER_SIZE or end > len(output):
        raise IndexError("a batch beyond a buffer")
    sequence = state[BASE_SEQUENCE]
    if sequence >= 0:
        sequence = (sequence + table[batch, BATCH_FIRST]) & _LARGEST_SEQUENCE
    _put(output, start + BASE_OFFSET_AT, 0, 8)
    _put(output, start + BATCH_LENGTH_AT, end - start - LENGTH_OVERHEAD, 4)
    _put(output, start + LEADER_EPOCH_AT, -1, 4)
    output[start + MAGIC_AT] = MAGIC
    _put(output, start + ATTRIBUTES_AT, state[ATTRIBUTES], 2)
    _put(output, start + LAST_OFFSET_DELTA_AT, count - 1, 4)
    _put(output, start + BASE_TIMESTAMP_AT, table[batch, BATCH_BASE_TIMESTAMP], 8)
    _put(output, start + MAX_TIMESTAMP_AT, table[batch, BATCH_MAX_TIMESTAMP], 8)
    _put(output, start + PRODUCER_ID_AT, state[PRODUCER_ID], 8)
    _put(output, start + PRODUCER_EPOCH_AT, state[PRODUCER_EPOCH], 2)
    _put(output, start + BASE_SEQUENCE_AT, sequence, 4)
    _put(output, start + RECORD_COUNT_AT, count, 4)
    records_at = start + HEADER_SIZE
    register = summed(uint64(ALL_ONES), output, start + ATTRIBUTES_AT, records_at)
    register = _after_many_zeros(register, end - records_at) ^ sum_of_records ^ uint64(ALL_ONES)
    _put(output, start + CRC_AT, int64(register), 4)


@compiled(
    types.int64(
        INT64S, _inputs64, _inputs64,
        _inputs32, INPUT, INPUT, _inputs32, INPUT, INPUT,
        _inputs32, INPUT, _inputs32, INPUT, _inputs32, INPUT, INPUT,
        BYTES, TABLE,
    )
)  # fmt: skip
def encode_records(
    state: Any, rows: Any, timestamps: Any,
    key_offsets: Any, key_data: Any, key_valid: Any,
    value_offsets: Any, value_data: Any, value_valid: Any,
    list_offsets: Any, list_valid: Any, header_key_offsets: Any, header_key_data: Any,
    header_value_offsets: Any, header_value_data: Any, header_value_valid: Any,
    output: Any, table: Any,
) -> int:  # fmt: skip
    """Write batches of the columns' rows; each gets a line in `table`.

    `rows` says which and in which order; when empty, all. `timestamps`, bitmaps and columns that do
    not exist are empty. Where `state` does not say that batches are sealed here, there is room for a
    header before each batch's records, which is the caller's to write.
    """
    row_count = state[ROW_COUNT]
    limit = state[BATCH_LIMIT]
    seals = state[SEALS] != 0
    gathers = len(rows) > 0
    has_key = state[HAS_KEY] != 0
    has_value = state[HAS_VALUE] != 0
    has_headers = state[HAS_HEADERS] != 0
    index = state[NEXT_ROW]
    at = state[OUTPUT_SIZE]
    batch = state[BATCHES] - 1
    # Of the batch that is being written.
    start = first = base_timestamp = max_timestamp = summed_to = int64(0)
    sum_of_records = uint64(0)
    if batch >= 0:
        start = table[batch, BATCH_START]
        summed_to = start + HEADER_SIZE
        first = table[batch, BATCH_FIRST]
        base_timestamp = table[batch, BATCH_BASE_TIMESTAMP]
        max_timestamp = table[batch, BATCH_MAX_TIMESTAMP]
    status = ENCODED
    while index < row_count:
        row = rows[index] if gathers else index
        if row < 0:
            status = BAD_INPUT
            break
        timestamp = state[TIMESTAMP]
        if len(timestamps) > 0:
            if row >= len(timestamps):
                status = BAD_INPUT
                break
            timestamp = timestamps[row]
        key_at, key_length = int64(0), int64(-1)
        if has_key:
            if row + 1 >= len(key_offsets):
                status = BAD_INPUT
                break
            if len(key_valid) == 0 or _is_valid(key_valid, state[KEY_BIT] + row):
                key_at, key_length = _span(key_offsets, key_data, row)
        value_at, value_length = int64(0), int64(-1)
        if has_value:
            if row + 1 >= len(value_offsets):
                status = BAD_INPUT
                break
            if len(value_valid) == 0 or _is_valid(value_valid, state[VALUE_BIT] + row):
                value_at, value_length = _span(value_offsets, value_data, row)
        if key_length == -2 or value_length == -2:
            status = BAD_INPUT
            break
        # Everything but the two deltas, which depend on the batch.
        fixed = 1 + _varint_size(key_length) + max(key_length, 0)
        fixed += _varint_size(value_length) + max(value_length, 0)
        first_entry, entries = int64(0), int64(0)
        if has_headers:
            if row + 1 >= len(list_offsets):
                status = BAD_INPUT
                break
            if len(list_valid) == 0 or _is_valid(list_valid, state[HEADERS_BIT] + row):
                first_entry = int64(list_offsets[row])
                entries = int64(list_offsets[row + 1]) - first_entry
            if (
                first_entry < 0
                or entries < 0
                or first_entry + entries > len(header_key_offsets) - 1
                or first_entry + entries > len(header_value_offsets) - 1
            ):
                status = BAD_INPUT
                break
            for entry in range(first_entry, first_entry + entries):
                _, size = _span(header_key_offsets, header_key_data, entry)
                if size < 0:
                    status = BAD_INPUT
                    break
                fixed += _varint_size(size) + size
                size = int64(-1)
                if len(header_value_valid) == 0 or _is_valid(
                    header_value_valid, state[HEADER_VALUE_BIT] + entry
                ):
                    _, size = _span(header_value_offsets, header_value_data, entry)
                    if size < 0:
                        status = BAD_INPUT
                        break
                fixed += _varint_size(size) + max(size, 0)
            if status != ENCODED:
                break
        fixed += _varint_size(entries)

        body = int64(0)
        starts_batch = batch < 0
        if not starts_batch:
            body = fixed + _varint_size(timestamp - base_timestamp) + _varint_size(index - first)
            starts_batch = at + _varint_size(body) + body - start > limit
        if starts_batch:
            body = fixed + 2
        needed = at + _varint_size(body) + body
        if starts_batch:
            needed += HEADER_SIZE
            if batch + 1 >= len(table):
                status = BATCHES_FULL
                break
        if needed > len(output):
            state[REQUIRED] = needed
            status = OUTPUT_FULL if starts_batch else BATCH_CUT
            break
        if starts_batch:
            if batch >= 0:
                table[batch, BATCH_END] = at
                table[batch, BATCH_COUNT] = index - first
                table[batch, BATCH_MAX_TIMESTAMP] = max_timestamp
                if seals:
                    sum_of_records = summed(sum_of_records, output, summed_to, at)
                    _seal(output, state, table, batch, sum_of_records)
            batch += 1
            start = at
            first = index
            base_timestamp = max_timestamp = timestamp
            table[batch, BATCH_START] = start
            table[batch, BATCH_FIRST] = first
            table[batch, BATCH_BASE_TIMESTAMP] = base_timestamp
            at += HEADER_SIZE
            summed_to = at
            sum_of_records = uint64(0)

        at = _put_varint(output, at, body)
        output[at] = 0
        at = _put_varint(output, at + 1, timestamp - base_timestamp)
        at = _put_varint(output, at, index - first)
        at = _put_varint(output, at, key_length)
        if key_length > 0:
            copy(output, at, key_data, key_at, key_length)
            at += key_length
        at = _put_varint(output, at, value_length)
        if value_length > 0:
            copy(output, at, value_data, value_at, value_length)
            at += value_length
        at = _put_varint(output, at, entries)
        for entry in range(first_entry, first_entry + entries):
            start_of, size = _span(header_key_offsets, header_key_data, entry)
            at = _put_varint(output, at, size)
            copy(output, at, header_key_data, start_of, size)
            at += size
            if len(header_value_valid) > 0 and not _is_valid(
                header_value_valid, state[HEADER_VALUE_BIT] + entry
            ):
                at = _put_varint(output, at, int64(-1))
                continue
            start_of, size = _span(header_value_offsets, header_value_data, entry)
            at = _put_varint(output, at, size)
            copy(output, at, header_value_data, start_of, size)
            at += size
        max_timestamp = max(max_timestamp, timestamp)
        index += 1
        if seals:
            # The next row's value is most often after this one's.
            next_at = int64(-1) if gathers else value_at + value_length
            while at - summed_to >= _STRETCHES:
                sum_of_records = _sum_stretches(
                    sum_of_records, output, summed_to, value_data, next_at
                )
                summed_to += _STRETCHES
                next_at += _STRETCHES
    if batch >= 0:
        table[batch, BATCH_END] = at
        table[batch, BATCH_COUNT] = index - first
        table[batch, BATCH_MAX_TIMESTAMP] = max_timestamp
        if seals and status in (ENCODED, BATCHES_FULL, OUTPUT_FULL):
            sum_of_records = summed(sum_of_records, output, summed_to, at)
            _seal(output, state, table, batch, sum_of_records)
    state[NEXT_ROW] = index
    state[OUTPUT_SIZE] = at
    state[BATCHES] = batch + 1
    return status
