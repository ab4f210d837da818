"""Arrow columns to record batches."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from ottla.record.batch import (
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    assemble,
)
from ottla.record.codecs import Codec, compress
from ottla.record.columns.buffers import resized
from ottla.record.columns.inputs import (
    Array,
    BytesColumn,
    HeadersColumn,
    bytes_column,
    headers_column,
    now,
    rows_column,
    timestamps_column,
)
from ottla.record.columns.readiness import kernels_for
from ottla.record.columns.sealing import seal
from ottla.record.varint import encode_varint

DEFAULT_MAX_BYTES = 1000 * 1000  # brokers take about 1 MiB by default

_LARGEST_SEQUENCE = 0x7FFFFFFF
_RECORD_OVERHEAD = 24  # a guess at the bytes of a record beside its contents
_HEADER_OVERHEAD = 4
_FIRST_BATCHES = 64


class Encoded(NamedTuple):
    """One batch: bytes to send, and the rows that are in it.

    `first_row` and `row_count` say which: of the columns, or of the `rows` that were chosen.
    """

    data: memoryview
    first_row: int
    row_count: int
    max_timestamp: int


class _Fields(NamedTuple):
    """What the headers of all batches of a call have in common."""

    codec: int
    level: int | None
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool


def encode(
    values: pa.Array | pa.ChunkedArray | None,
    *,
    keys: pa.Array | pa.ChunkedArray | None = None,
    headers: pa.Array | pa.ChunkedArray | None = None,
    timestamps: pa.Array | pa.ChunkedArray | None = None,
    default_timestamp: int | None = None,
    rows: Array | pa.Array | None = None,
    count: int | None = None,
    codec: int = Codec.NONE,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> list[Encoded]:
    """Batches of these columns' rows, in order, each of at most `max_bytes` before compression.

    A record that is larger comes in a batch of its own. Columns have equal lengths; None stands for
    nulls, and if all are None, `count` says how many. `rows` picks rows by number (for one
    partition of many), without the columns being copied first. Records without a timestamp get
    `default_timestamp`, in milliseconds, or the present.
    """
    default = now() if default_timestamp is None else default_timestamp
    chosen = rows_column(rows)
    total = _length(values, keys, headers, timestamps, count)
    if rows is not None:
        if len(chosen) and not 0 <= int(chosen.min()) <= int(chosen.max()) < total:
            raise IndexError(f"rows {chosen.min()} to {chosen.max()} of a column of {total}")
        total = len(chosen)
    if not total:
        return []
    columns = _Columns(
        bytes_column(keys, "keys"),
        bytes_column(values, "values"),
        headers_column(headers),
        timestamps_column(timestamps, default),
        chosen,
        total,
        default,
    )
    fields = _Fields(codec, level, producer_id, producer_epoch, base_sequence, transactional)
    kernels = kernels_for(columns.estimated_size)
    if kernels is None:
        output, table = _encode_plain(columns, max_bytes)
    else:
        output, table = _encode_compiled(columns, max_bytes, kernels)
    return [_finished(output, fields, *line) for line in table]


class _Columns(NamedTuple):
    keys: BytesColumn
    values: BytesColumn
    headers: HeadersColumn
    timestamps: Array
    rows: Array
    total: int
    default_timestamp: int

    @property
    def estimated_size(self) -> int:
        """About the bytes that the records will take."""
        size = self.keys.size + self.values.size
        entries = 0
        if self.headers.present:
            size += self.headers.keys.size + self.headers.values.size
            entries = int(self.headers.offsets[-1] - self.headers.offsets[0])
        if len(self.rows):
            columns = (self.keys.offsets, self.values.offsets, self.headers.offsets)
            length = max((len(offsets) - 1 for offsets in columns), default=1)
            size = size * len(self.rows) // max(length, 1)
        return size + self.total * _RECORD_OVERHEAD + entries * _HEADER_OVERHEAD


def _length(
    values: pa.Array | pa.ChunkedArray | None,
    keys: pa.Array | pa.ChunkedArray | None,
    headers: pa.Array | pa.ChunkedArray | None,
    timestamps: pa.Array | pa.ChunkedArray | None,
    count: int | None,
) -> int:
    lengths = {len(column) for column in (values, keys, headers, timestamps) if column is not None}
    if count is not None:
        lengths.add(count)
    if len(lengths) != 1:
        raise ValueError(f"columns of different lengths: {sorted(lengths) or 'none is given'}")
    return lengths.pop()


# A line of the table: start, end, first row, rows, base timestamp, max timestamp.
_Line: TypeAlias = tuple[int, int, int, int, int, int]


def _encode_compiled(
    columns: _Columns, max_bytes: int, kernels: ModuleType
) -> tuple[memoryview, list[_Line]]:
    headers = columns.headers
    state = np.zeros(kernels.ENCODE_STATE_SIZE, np.int64)
    state[kernels.ROW_COUNT] = columns.total
    state[kernels.BATCH_LIMIT] = max_bytes
    state[kernels.TIMESTAMP] = columns.default_timestamp
    state[kernels.KEY_BIT] = columns.keys.first_bit
    state[kernels.VALUE_BIT] = columns.values.first_bit
    state[kernels.HEADERS_BIT] = headers.first_bit
    state[kernels.HEADER_VALUE_BIT] = headers.values.first_bit
    state[kernels.HAS_KEY] = columns.keys.present
    state[kernels.HAS_VALUE] = columns.values.present
    state[kernels.HAS_HEADERS] = headers.present
    table = np.zeros((_FIRST_BATCHES, kernels.BATCH_COLUMNS), np.int64)
    size = columns.estimated_size
    output = resized(np.empty(0, np.uint8), size + (size // max_bytes + 2) * HEADER_SIZE, 0)
    while True:
        status = kernels.encode_records(
            state, columns.rows, columns.timestamps,
            columns.keys.offsets, columns.keys.data, columns.keys.valid,
            columns.values.offsets, columns.values.data, columns.values.valid,
            headers.offsets, headers.valid, headers.keys.offsets, headers.keys.data,
            headers.values.offsets, headers.values.data, headers.values.valid,
            output, table,
        )  # fmt: skip
        if status == kernels.DONE:
            break
        if status == kernels.OUTPUT_FULL:
            room = max(int(state[kernels.REQUIRED]), len(output) * 3 // 2)
            output = resized(output, room, int(state[kernels.OUTPUT_SIZE]))
        elif status == kernels.BATCHES_FULL:
            table = np.concatenate((table, np.zeros_like(table)))
        else:
            row = int(state[kernels.NEXT_ROW])
            raise ValueError(f"row {row} of a column does not lie in its buffers")
    lines = table[: int(state[kernels.BATCHES])].tolist()
    return output.data, [tuple(line) for line in lines]


def _encode_plain(columns: _Columns, max_bytes: int) -> tuple[memoryview, list[_Line]]:
    """The same, a record at a time."""
    output = bytearray()
    lines: list[_Line] = []
    start = first = base = latest = 0
    for index, (timestamp, contents) in enumerate(_plain_records(columns)):
        record = _plain_record(contents, timestamp - base, index - first)
        if index == 0 or len(output) + len(record) - start > max_bytes:
            if index:
                lines.append((start, len(output), first, index - first, base, latest))
            start, first, base, latest = len(output), index, timestamp, timestamp
            output += bytes(HEADER_SIZE)
            record = _plain_record(contents, 0, 0)
        output += record
        latest = max(latest, timestamp)
    lines.append((start, len(output), first, columns.total - first, base, latest))
    return memoryview(output), lines


def _plain_record(contents: bytes, timestamp_delta: int, offset_delta: int) -> bytes:
    body = b"".join(
        (b"\x00", encode_varint(timestamp_delta), encode_varint(offset_delta), contents)
    )
    return encode_varint(len(body)) + body


def _plain_records(columns: _Columns) -> Iterator[tuple[int, bytes]]:
    """Timestamp and encoded contents of each record."""
    headers = columns.headers
    for index in range(columns.total):
        row = int(columns.rows[index]) if len(columns.rows) else index
        timestamp = columns.default_timestamp
        if len(columns.timestamps):
            timestamp = int(columns.timestamps[row])
        parts: list[bytes] = []
        _add(parts, columns.keys, row)
        _add(parts, columns.values, row)
        entries = range(0)
        if headers.present and _is_valid(headers.valid, headers.first_bit + row):
            entries = range(int(headers.offsets[row]), int(headers.offsets[row + 1]))
        parts.append(encode_varint(len(entries)))
        for entry in entries:
            _add(parts, headers.keys, entry)
            _add(parts, headers.values, entry)
        yield timestamp, b"".join(parts)


def _add(parts: list[bytes], column: BytesColumn, index: int) -> None:
    if not column.present or not _is_valid(column.valid, column.first_bit + index):
        parts.append(b"\x01")  # -1
        return
    start, end = int(column.offsets[index]), int(column.offsets[index + 1])
    if not 0 <= start <= end <= len(column.data):
        raise ValueError(f"row {index} of a column does not lie in its buffers")
    parts.append(encode_varint(end - start))
    parts.append(column.data[start:end].tobytes())


def _is_valid(bitmap: Array, index: int) -> bool:
    return not len(bitmap) or bool(bitmap[index >> 3] >> (index & 7) & 1)


def _finished(
    output: memoryview,
    fields: _Fields,
    start: int,
    end: int,
    first: int,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
) -> Encoded:
    """The batch between `start` and `end` with its header, compressed if that is asked for."""
    sequence = fields.base_sequence
    if sequence >= 0:
        sequence = (sequence + first) & _LARGEST_SEQUENCE
    header = BatchHeader(
        base_offset=0,
        batch_length=end - start - LENGTH_OVERHEAD,
        partition_leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=fields.codec | (TRANSACTIONAL_BIT if fields.transactional else 0),
        last_offset_delta=count - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=fields.producer_id,
        producer_epoch=fields.producer_epoch,
        base_sequence=sequence,
        record_count=count,
    )
    if fields.codec != Codec.NONE:
        packed = compress(fields.codec, output[start + HEADER_SIZE : end], fields.level)
        batch = memoryview(bytearray(assemble(header, packed)))
        return Encoded(batch, first, count, max_timestamp)
    batch = output[start:end]
    HEADER.pack_into(batch, 0, *header)
    seal(batch)
    return Encoded(batch, first, count, max_timestamp)
