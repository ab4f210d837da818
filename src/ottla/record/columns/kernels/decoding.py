"""The compiled loops: records to Arrow buffers, Arrow buffers to records.

Importing this module compiles them, or loads them from the cache on disk: `readiness` decides when
that happens, in which process, and where the cache is. What runs without them is in `plain`.

Rules that keep compiled code inside its buffers, whatever the bytes claim:

- positions are compared with the end of the record, of the contents, or of the output before each
  access; sums cannot overflow, because every length has 32 bits and every position 64;
- nothing is trusted because a header, a count or a length says so; the caller sizes buffers by the
  bytes that exist, never by a count in them;
- bytes are moved by `copy` alone, which checks both ranges once more;
- the tests run the same functions with numba's bounds checks switched on.

A decoding call can stop at any record and go on later: the caller's `state` holds all that it needs
to know, and whatever a half-read record has written is written again. So buffers can grow on
demand, and results can be bounded.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import register_jitable

from ottla.record.batch import (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    MAX_TIMESTAMP_AT,
    RECORD_COUNT_AT,
    SMALLEST_RECORD,
    TIMESTAMP_TYPE_BIT,
)
from ottla.record.columns.kernels.arrays import (
    BYTES,
    INPUT,
    INT8S,
    INT32S,
    INT64S,
    LARGEST_INT64,
    TABLE,
    int8,
    int64,
    uint8,
    uint64,
)
from ottla.record.columns.kernels.copying import copy
from ottla.record.columns.kernels.encoding import (
    ATTRIBUTES,
    BAD_INPUT,
    BASE_SEQUENCE,
    BATCH_COLUMNS,
    BATCH_COUNT,
    BATCH_CUT,
    BATCH_FIRST,
    BATCH_LIMIT,
    BATCH_START,
    BATCHES,
    BATCHES_FULL,
    ENCODE_STATE_SIZE,
    ENCODED,
    HAS_HEADERS,
    HAS_KEY,
    HAS_VALUE,
    HEADER_VALUE_BIT,
    HEADERS_BIT,
    KEY_BIT,
    NEXT_ROW,
    OUTPUT_FULL,
    OUTPUT_SIZE,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    REQUIRED,
    ROW_COUNT,
    SEALS,
    TIMESTAMP,
    VALUE_BIT,
    encode_records,
)
from ottla.record.columns.kernels.receiving import CAN_RECEIVE, receive
from ottla.record.columns.kernels.walking import (
    PLAN_END,
    PLAN_HEADER,
    PLAN_START,
    WALK_ARRIVED,
    WALK_CHECKS,
    WALK_END_OFFSET,
    WALK_LIMIT,
    WALK_MAX_RECORDS,
    WALK_PLANNED,
    WALK_POSITION,
    WALK_READ,
    WALK_RECORDS,
    WALK_SPECIAL,
    WALK_START_OFFSET,
    WALK_STATE_SIZE,
    WALK_UNTIL,
    big_endian,
    compiled,
    walk_plain,
)

__all__ = [
    "ATTRIBUTES",
    "BAD_INPUT",
    "BASE_SEQUENCE",
    "BATCHES",
    "BATCHES_FULL",
    "BATCH_COLUMNS",
    "BATCH_COUNT",
    "BATCH_CUT",
    "BATCH_FIRST",
    "BATCH_LIMIT",
    "BATCH_START",
    "CAN_RECEIVE",
    "ENCODED",
    "ENCODE_STATE_SIZE",
    "HAS_HEADERS",
    "HAS_KEY",
    "HAS_VALUE",
    "HEADERS_BIT",
    "HEADER_VALUE_BIT",
    "KEY_BIT",
    "NEXT_ROW",
    "OUTPUT_FULL",
    "OUTPUT_SIZE",
    "PRODUCER_EPOCH",
    "PRODUCER_ID",
    "REQUIRED",
    "ROW_COUNT",
    "SEALS",
    "TIMESTAMP",
    "VALUE_BIT",
    "WALK_ARRIVED",
    "WALK_CHECKS",
    "WALK_END_OFFSET",
    "WALK_LIMIT",
    "WALK_MAX_RECORDS",
    "WALK_PLANNED",
    "WALK_POSITION",
    "WALK_READ",
    "WALK_RECORDS",
    "WALK_SPECIAL",
    "WALK_START_OFFSET",
    "WALK_STATE_SIZE",
    "WALK_UNTIL",
    "decode_plain",
    "decode_records",
    "encode_records",
    "receive_plain",
    "walk_plain",
]

# What a decoding call ends with.
DONE = 0  # all batches of the plan are read
END = 1  # a record at or after the end offset has been met
LIMIT = 2  # the bounds of rows or bytes are reached
# … or because a buffer is full; `state[NEEDED]` is the size that would do for now.
ROWS_FULL = 3
KEY_FULL = 4
VALUE_FULL = 5
HEADERS_FULL = 6
HEADER_KEY_FULL = 7
HEADER_VALUE_FULL = 8
INVALID = 9  # the batch at `state[BATCH]` breaks the format; its rows start at `state[BATCH_ROW]`

# Places in `state`. First what the caller sets …
START_OFFSET = 0  # records below are dropped
END_OFFSET = 1  # records from here on are not wanted
MAX_ROWS = 2
MAX_BYTES = 3  # of keys, values and headers together; one record may have more
SCALE = 4  # what timestamps in milliseconds are multiplied by
WANT_KEY = 5
WANT_VALUE = 6
WANT_HEADERS = 7
# … then what the kernel keeps.
BATCH = 8  # the batch of the plan that is being read
POSITION = 9  # of its next record in the contents; -1 before its first
LEFT = 10  # records of it still to read
PREVIOUS_DELTA = 11
BATCH_ROW = 12
ROW = 13
KEY_BYTES = 14
VALUE_BYTES = 15
HEADERS = 16
HEADER_KEY_BYTES = 17
HEADER_VALUE_BYTES = 18
KEY_NULLS = 19
VALUE_NULLS = 20
HEADER_VALUE_NULLS = 21
WITHOUT_TIMESTAMP = 22
NEXT_OFFSET = 23  # one more than the offset of the last record that was read
NEEDED = 24
STATE_SIZE = 25

# Bytes of batches that are checked before they are read: few, so that the processor's fastest cache
# still has them the second time.
_STRETCH = 16 * 1024
# Bytes that are received before they are read: what the kernel has copied is in the cache then.
_RECEIVED_AT_ONCE = 256 * 1024

_NO_TIMESTAMP = -1
_SMALLEST_INT64 = -(2**63)
_LARGEST_INT32 = 2**31 - 1


# Both readers give a position beyond `end` for anything that is not a number of theirs; every use
# of a position is after a comparison with `end`, so that this needs no test of its own.


@register_jitable(forceinline=True)
def _varint(data: Any, at: int, end: int) -> tuple[Any, Any]:
    if at >= end:
        return int64(0), end + 1
    byte = int64(data[at])
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    value = byte & 0x7F
    shift = 7
    while shift < 35:
        if at >= end:
            return int64(0), end + 1
        byte = int64(data[at])
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 32:
                return int64(0), end + 1
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    return int64(0), end + 1


@register_jitable(forceinline=True)
def _varlong(data: Any, at: int, end: int) -> tuple[Any, Any]:
    if at >= end:
        return int64(0), end + 1
    byte = int64(data[at])
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    value = uint64(byte & 0x7F)
    shift = 7
    while shift < 70:
        if at >= end:
            return int64(0), end + 1
        byte = int64(data[at])
        at += 1
        value |= uint64(byte & 0x7F) << uint64(shift)
        if byte < 0x80:
            if shift == 63 and byte > 1:
                return int64(0), end + 1
            return int64(value >> uint64(1)) ^ -int64(value & uint64(1)), at
        shift += 7
    return int64(0), end + 1


@register_jitable(forceinline=True)
def _set_bit(bitmap: Any, index: int) -> None:
    bitmap[index >> 3] |= uint8(1 << (index & 7))


@compiled(
    types.int64(
        INPUT, INPUT, TABLE, INT64S,
        INT64S, INT64S, INT8S,
        INT32S, BYTES, BYTES, INT32S, BYTES, BYTES,
        INT32S, INT32S, BYTES, INT32S, BYTES, BYTES,
    )
)  # fmt: skip
def decode_records(
    headers: Any, contents: Any, plan: Any, state: Any,
    offsets: Any, timestamps: Any, timestamp_types: Any,
    key_offsets: Any, key_data: Any, key_valid: Any,
    value_offsets: Any, value_data: Any, value_valid: Any,
    list_offsets: Any, header_key_offsets: Any, header_key_data: Any,
    header_value_offsets: Any, header_value_data: Any, header_value_valid: Any,
) -> int:  # fmt: skip
    """Read the records of the plan's batches into the columns, from where `state` says.

    All buffers of a row's width have room for `len(offsets)` rows (offset buffers for one more,
    bitmaps, zeroed, for their bits), those of a header's width likewise by `header_key_offsets`.
    Columns that are not wanted may be empty.
    """
    start_offset = state[START_OFFSET]
    end_offset = state[END_OFFSET]
    max_rows = min(state[MAX_ROWS], len(offsets))
    max_bytes = min(state[MAX_BYTES], _LARGEST_INT32)
    scale = state[SCALE]
    want_key = state[WANT_KEY] != 0
    want_value = state[WANT_VALUE] != 0
    want_headers = state[WANT_HEADERS] != 0
    largest_timestamp = LARGEST_INT64 // scale
    row = state[ROW]
    key_bytes = state[KEY_BYTES]
    value_bytes = state[VALUE_BYTES]
    header_count = state[HEADERS]
    header_key_bytes = state[HEADER_KEY_BYTES]
    header_value_bytes = state[HEADER_VALUE_BYTES]
    batch = state[BATCH]
    status = DONE

    while batch < len(plan):
        header_at = plan[batch, PLAN_HEADER]
        content_start = plan[batch, PLAN_START]
        content_end = plan[batch, PLAN_END]
        if (
            header_at < 0
            or header_at + HEADER_SIZE > len(headers)
            or not 0 <= content_start <= content_end <= len(contents)
        ):
            status = INVALID
            break
        base_offset = big_endian(headers, header_at, 8)
        attributes = int64(headers[header_at + ATTRIBUTES_AT + 1])
        last_delta = big_endian(headers, header_at + LAST_OFFSET_DELTA_AT, 4)
        base_timestamp = big_endian(headers, header_at + BASE_TIMESTAMP_AT, 8)
        max_timestamp = big_endian(headers, header_at + MAX_TIMESTAMP_AT, 8)
        append_time = attributes & TIMESTAMP_TYPE_BIT != 0
        timestamp_type = int8(1 if append_time else 0)
        if state[POSITION] < 0:
            count = big_endian(headers, header_at + RECORD_COUNT_AT, 4)
            state[BATCH_ROW] = row
            state[POSITION] = content_start
            state[LEFT] = count
            state[PREVIOUS_DELTA] = -1
            if (
                count < 0
                or count * SMALLEST_RECORD > content_end - content_start
                or base_offset < 0
                or last_delta < 0
                or base_offset > LARGEST_INT64 - last_delta - 1
            ):
                status = INVALID
                break
        at = state[POSITION]
        left = state[LEFT]
        previous_delta = state[PREVIOUS_DELTA]

        while left > 0:
            record_at = at
            length, at = _varint(contents, at, content_end)
            if at > content_end or length <= 0 or length > content_end - at:
                status = INVALID
                break
            record_end = at + length
            at += 1  # the attributes, unused so far
            timestamp_delta, at = _varlong(contents, at, record_end)
            delta, at = _varint(contents, at, record_end)
            if at > record_end or delta <= previous_delta or delta > last_delta:
                status = INVALID
                break
            offset = base_offset + delta
            if offset >= end_offset:
                at = record_at
                status = END
                break
            key_length, at = _varint(contents, at, record_end)
            if at > record_end or key_length < -1 or key_length > record_end - at:
                status = INVALID
                break
            key_at = at
            at += max(key_length, 0)
            value_length, at = _varint(contents, at, record_end)
            if at > record_end or value_length < -1 or value_length > record_end - at:
                status = INVALID
                break
            value_at = at
            at += max(value_length, 0)
            if offset < start_offset:
                # Dropped, so its headers need not be understood.
                at = record_end
                previous_delta = delta
                left -= 1
                continue
            timestamp = max_timestamp
            if not append_time:
                timestamp = base_timestamp + timestamp_delta
                if ((timestamp ^ base_timestamp) & (timestamp ^ timestamp_delta)) < 0:
                    status = INVALID  # more than 64 bits
                    break
            if row >= max_rows:
                status = ROWS_FULL if row < state[MAX_ROWS] else LIMIT
                at = record_at
                break
            if row > 0 and (
                key_bytes + value_bytes + header_key_bytes + header_value_bytes + length > max_bytes
            ):
                status = LIMIT
                at = record_at
                break

            if want_key:
                if key_length > 0:
                    if key_length > len(key_data) - key_bytes:
                        state[NEEDED] = key_bytes + key_length
                        status = KEY_FULL
                        at = record_at
                        break
                    copy(key_data, key_bytes, contents, key_at, key_length)
                key_offsets[row] = key_bytes
            if want_value:
                if value_length > 0:
                    if value_length > len(value_data) - value_bytes:
                        state[NEEDED] = value_bytes + value_length
                        status = VALUE_FULL
                        at = record_at
                        break
                    copy(value_data, value_bytes, contents, value_at, value_length)
                value_offsets[row] = value_bytes

            if want_headers:
                entries, at = _varint(contents, at, record_end)
                if at > record_end or entries < 0 or 2 * entries > record_end - at:
                    status = INVALID
                    break
                list_offsets[row] = header_count
                if entries > 0:
                    if entries > len(header_key_offsets) - 1 - header_count:
                        state[NEEDED] = header_count + entries
                        status = HEADERS_FULL
                        at = record_at
                        break
                    keys = header_key_bytes
                    values = header_value_bytes
                    nulls = 0
                    for entry in range(header_count, header_count + entries):
                        size, at = _varint(contents, at, record_end)
                        if at > record_end or size < 0 or size > record_end - at:
                            status = INVALID
                            break
                        if size > len(header_key_data) - keys:
                            state[NEEDED] = keys + size
                            status = HEADER_KEY_FULL
                            break
                        copy(header_key_data, keys, contents, at, size)
                        header_key_offsets[entry] = keys
                        keys += size
                        at += size
                        size, at = _varint(contents, at, record_end)
                        if at > record_end or size < -1 or size > record_end - at:
                            status = INVALID
                            break
                        header_value_offsets[entry] = values
                        if size < 0:
                            nulls += 1
                            continue
                        if size > len(header_value_data) - values:
                            state[NEEDED] = values + size
                            status = HEADER_VALUE_FULL
                            break
                        copy(header_value_data, values, contents, at, size)
                        _set_bit(header_value_valid, entry)
                        values += size
                        at += size
                    if status != DONE:
                        if status != INVALID:
                            at = record_at
                        break
                    if at != record_end:
                        status = INVALID
                        break
                    header_count += entries
                    header_key_bytes = keys
                    header_value_bytes = values
                    state[HEADER_VALUE_NULLS] += nulls
                elif at != record_end:
                    status = INVALID
                    break

            # The record is whole: from here on it counts.
            if want_key:
                if key_length >= 0:
                    key_bytes += key_length
                    _set_bit(key_valid, row)
                else:
                    state[KEY_NULLS] += 1
            if want_value:
                if value_length >= 0:
                    value_bytes += value_length
                    _set_bit(value_valid, row)
                else:
                    state[VALUE_NULLS] += 1
            offsets[row] = offset
            if timestamp == _NO_TIMESTAMP:
                state[WITHOUT_TIMESTAMP] += 1
                timestamps[row] = _NO_TIMESTAMP
            elif -largest_timestamp <= timestamp <= largest_timestamp:
                timestamps[row] = timestamp * scale
            else:
                timestamps[row] = LARGEST_INT64 if timestamp > 0 else _SMALLEST_INT64
            timestamp_types[row] = timestamp_type
            row += 1
            state[NEXT_OFFSET] = offset + 1
            at = record_end
            previous_delta = delta
            left -= 1

        if status == DONE and at != content_end:
            status = INVALID  # bytes are left
        if status != DONE:
            state[POSITION] = at
            state[LEFT] = left
            state[PREVIOUS_DELTA] = previous_delta
            break
        batch += 1
        state[POSITION] = -1

    if len(key_offsets) > row:
        key_offsets[row] = key_bytes
    if len(value_offsets) > row:
        value_offsets[row] = value_bytes
    if len(list_offsets) > row:
        list_offsets[row] = header_count
    if len(header_key_offsets) > header_count:
        header_key_offsets[header_count] = header_key_bytes
        header_value_offsets[header_count] = header_value_bytes
    state[BATCH] = batch
    state[ROW] = row
    state[KEY_BYTES] = key_bytes
    state[VALUE_BYTES] = value_bytes
    state[HEADERS] = header_count
    state[HEADER_KEY_BYTES] = header_key_bytes
    state[HEADER_VALUE_BYTES] = header_value_bytes
    return status


@compiled(
    types.int64(
        INPUT, INT64S, TABLE, INT64S,
        INT64S, INT64S, INT8S,
        INT32S, BYTES, BYTES, INT32S, BYTES, BYTES,
        INT32S, INT32S, BYTES, INT32S, BYTES, BYTES,
    )
)  # fmt: skip
def decode_plain(
    data: Any, walk: Any, plan: Any, state: Any,
    offsets: Any, timestamps: Any, timestamp_types: Any,
    key_offsets: Any, key_data: Any, key_valid: Any,
    value_offsets: Any, value_data: Any, value_valid: Any,
    list_offsets: Any, header_key_offsets: Any, header_key_data: Any,
    header_value_offsets: Any, header_value_data: Any, header_value_valid: Any,
) -> int:  # fmt: skip
    """`walk_plain` and `decode_records` in turn, until nothing that is nothing special is next.

    Ends with DONE then, or as soon as a stretch cannot be read to its end: with what stopped it, to be
    called again.
    """
    while True:
        if walk[WALK_PLANNED] <= 0:
            walk[WALK_LIMIT] = walk[WALK_POSITION] + _STRETCH
            walk[WALK_PLANNED] = walk_plain(data, walk, plan)
            if walk[WALK_PLANNED] == 0:
                return DONE
            state[BATCH] = 0
            state[POSITION] = -1
        planned = min(walk[WALK_PLANNED], len(plan))
        status = decode_records(
            data, data, plan[:planned], state,
            offsets, timestamps, timestamp_types,
            key_offsets, key_data, key_valid,
            value_offsets, value_data, value_valid,
            list_offsets, header_key_offsets, header_key_data,
            header_value_offsets, header_value_data, header_value_valid,
        )  # fmt: skip
        if status != DONE:
            return status
        walk[WALK_READ] = plan[planned - 1, PLAN_HEADER]
        walk[WALK_PLANNED] = 0


@compiled(
    types.int64(
        types.int32, INPUT, INT64S, TABLE, INT64S,
        INT64S, INT64S, INT8S,
        INT32S, BYTES, BYTES, INT32S, BYTES, BYTES,
        INT32S, INT32S, BYTES, INT32S, BYTES, BYTES,
    )
)  # fmt: skip
def receive_plain(
    descriptor: int, data: Any, walk: Any, plan: Any, state: Any,
    offsets: Any, timestamps: Any, timestamp_types: Any,
    key_offsets: Any, key_data: Any, key_valid: Any,
    value_offsets: Any, value_data: Any, value_valid: Any,
    list_offsets: Any, header_key_offsets: Any, header_key_data: Any,
    header_value_offsets: Any, header_value_data: Any, header_value_valid: Any,
) -> int:  # fmt: skip
    """Receive from a socket that does not block, and `decode_plain` what has come, in turn.

    The bytes go into `data`, which nobody else may write to, after those that are there. Ends as
    `decode_plain` does; with DONE also when nothing more comes for now, or all that was wanted has come.
    """
    while True:
        arrived = max(0, min(walk[WALK_ARRIVED], len(data)))
        status = decode_plain(
            data[:arrived], walk, plan, state,
            offsets, timestamps, timestamp_types,
            key_offsets, key_data, key_valid,
            value_offsets, value_data, value_valid,
            list_offsets, header_key_offsets, header_key_data,
            header_value_offsets, header_value_data, header_value_valid,
        )  # fmt: skip
        if status != DONE:
            return status
        until = min(walk[WALK_UNTIL], arrived + _RECEIVED_AT_ONCE)
        count = receive(descriptor, data, arrived, until)
        if count <= 0:
            return DONE
        walk[WALK_ARRIVED] = arrived + count
