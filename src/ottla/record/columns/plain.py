"""Decoding and encoding without compiled code: for small inputs, old formats, and where numba is not.

The same results as the kernels give, one record at a time, by `ottla.record.batch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from ottla.record.batch import (
    LOG_APPEND_TIME,
    MAGIC,
    Record,
    contents,
    one_header,
    parse_records,
    readable_key,
)
from ottla.record.columns.cursor import Cursor, Decoded
from ottla.record.columns.layout import HEADER_TYPE, HEADERS_TYPE, Layout
from ottla.record.columns.walking import FoundBatch
from ottla.record.errors import InvalidBatch, InvalidRecord
from ottla.record.legacy import NO_TIMESTAMP, messages, timestamp_type

_NO_ENTRIES = pa.nulls(0, HEADER_TYPE)  # pa.array would import pandas
_LARGEST_INT64 = 2**63 - 1
_SMALLEST_INT64 = -(2**63)
_OFFSET_AND_LENGTHS = 21  # the most that a record has beside key, value and headers


def decode_plain(cursor: Cursor, *, older_only: bool) -> Iterator[Decoded]:
    """The rows of the cursor's next batches; with `older_only` up to the next batch of today."""
    rows = _Rows(cursor.layout)
    while (found := cursor.peek()) is not None and not (older_only and found.magic == MAGIC):
        cursor.take()
        try:
            timestamp_type, records = _read(found, cursor)
        except InvalidBatch as error:
            cursor.fail(error, found, rows.next_offset)
            break
        if rows.take_all(records, timestamp_type, cursor):
            records_left: list[Record] = []
        else:
            records_left = records
        for record in records_left:
            if record.offset < cursor.start_offset:
                continue
            if record.offset >= cursor.end_offset:
                cursor.stop(found, cursor.end_offset)
                break
            size = _size(record)
            if rows.count and (
                rows.count >= cursor.max_rows or rows.size + size > cursor.max_bytes
            ):
                yield Decoded(rows.record_batch(), rows.next_offset, found.start)
                rows = _Rows(cursor.layout)
            rows.add(record, timestamp_type, size)
        else:
            cursor.finish()
            if records:
                cursor.next_offset = max(cursor.next_offset, records[-1].offset + 1)
            rows.next_offset = cursor.next_offset
            continue
        break
    if rows.count:
        cursor.end()
        yield Decoded(rows.record_batch(), cursor.next_offset, cursor.consumed)


def _read(found: FoundBatch, cursor: Cursor) -> tuple[int, list[Record]]:
    """The timestamp type and the records of a batch, or of a message and what it wraps."""
    batch = cursor.view[found.start : found.end]
    if found.magic != MAGIC:
        return timestamp_type(batch), list(messages(batch, cursor.decompressed_limit))
    header = one_header(batch)
    records = list(parse_records(contents(batch, header, cursor.decompressed_limit), header))
    for record in records:
        if not _SMALLEST_INT64 <= record.timestamp <= _LARGEST_INT64:
            raise InvalidRecord(f"the timestamp of offset {record.offset} has more than 64 bits")
    return header.timestamp_type, records


def _size(record: Record) -> int:
    """About the bytes of a record, for the bound on a result."""
    _, _, key, value, headers = record
    size = _OFFSET_AND_LENGTHS + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += len(name) + len(content or b"")
    return size


class _Rows:
    """Records on their way into columns."""

    def __init__(self, layout: Layout) -> None:
        self.size = 0
        self.next_offset = 0
        self._layout = layout
        self._records: list[Record] = []
        self._timestamp_types: list[int] = []

    @property
    def count(self) -> int:
        return len(self._records)

    def add(self, record: Record, timestamp_type: int, size: int) -> None:
        self._records.append(record)
        self._timestamp_types.append(timestamp_type)
        self.size += size
        self.next_offset = record.offset + 1

    def take_all(self, records: list[Record], timestamp_type: int, cursor: Cursor) -> bool:
        """Add a whole batch, if all of it is wanted and it surely fits; most batches do."""
        if not records:
            return True
        if (
            records[0].offset < cursor.start_offset
            or records[-1].offset >= cursor.end_offset
            or self.count + len(records) > cursor.max_rows
        ):
            return False
        size = sum(map(_size, records))
        if self.size + size > cursor.max_bytes:
            return False
        self._records += records
        self._timestamp_types += [timestamp_type] * len(records)
        self.size += size
        self.next_offset = records[-1].offset + 1
        return True

    def record_batch(self) -> pa.RecordBatch:
        schema = self._layout.schema
        return pa.RecordBatch.from_arrays(
            [self._column(name, schema.field(name).type) for name in schema.names], schema=schema
        )

    def _column(self, name: str, type_: pa.DataType) -> pa.Array:
        records = self._records
        match name:
            case "offset":
                return pa.array([record.offset for record in records], type_)
            case "timestamp":
                times: list[int | None] = [record.timestamp for record in records]
                if self._layout.timestamp_scale != 1 or NO_TIMESTAMP in times:
                    times = [self._time(record.timestamp) for record in records]
                return pa.array(times, pa.int64()).cast(type_)
            case "timestamp_type":
                return pa.array(self._timestamp_types, type_)
            case "key":
                return pa.array([record.key for record in records], type_)
            case "value":
                return pa.array([record.value for record in records], type_)
            case _:
                return headers_column([record.headers for record in records])

    def _time(self, milliseconds: int) -> int | None:
        if milliseconds == NO_TIMESTAMP:
            return None
        time = milliseconds * self._layout.timestamp_scale
        return min(max(time, _SMALLEST_INT64), _LARGEST_INT64)


def headers_column(headers: Sequence[Sequence[tuple[str, bytes | None]]]) -> pa.Array:
    """Headers as Arrow has them; bytes of a key that are no UTF-8 become replacement characters."""
    if not any(headers):
        offsets = pa.array([0] * (len(headers) + 1), pa.int32())
        return pa.ListArray.from_arrays(offsets, _NO_ENTRIES, type=HEADERS_TYPE)
    return pa.array(
        [
            [{"key": readable_key(key), "value": value} for key, value in entries]
            for entries in headers
        ],
        HEADERS_TYPE,
    )


assert LOG_APPEND_TIME == 1  # as the column's documentation says
