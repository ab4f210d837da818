"""Arrow columns to record batches.

`encode` gives all batches of some columns at once, `encode_in_turn` one buffer full of them after the
other, so that the first are under way while the next are made.
"""

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
)
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
from ottla.record.columns.kernels.readiness import kernels_for, load_compiled
from ottla.record.columns.pool import BufferPool
from ottla.record.columns.sealing import seal
from ottla.record.compression.codecs import Codec, compress
from ottla.record.varint import encode_varint

DEFAULT_MAX_BYTES = 1000 * 1000  # brokers take about 1 MiB by default

_LARGEST_SEQUENCE = 0x7FFFFFFF
_RECORD_OVERHEAD = 24  # a guess at the bytes of a record beside its contents
_HEADER_OVERHEAD = 4
# Bytes of small batches that are made in one go: few, so that they are sent early and the processor's
# cache still has them then.
_IN_ONE_GO = 1024 * 1024
# Records for which it is quicker to wait for the kernels, where these only have to be loaded, than to
# begin without.
_WORTH_WAITING = 250_000


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

    @property
    def attributes(self) -> int:
        return self.codec | (TRANSACTIONAL_BIT if self.transactional else 0)


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
    columns = _columns(values, keys, headers, timestamps, default_timestamp, rows, count)
    fields = _Fields(codec, level, producer_id, producer_epoch, base_sequence, transactional)
    return [each for some in _groups(columns, fields, max_bytes, None) for each in some]


def encode_in_turn(
    values: pa.Array | pa.ChunkedArray | None,
    *,
    keys: pa.Array | pa.ChunkedArray | None = None,
    headers: pa.Array | pa.ChunkedArray | None = None,
    timestamps: pa.Array | pa.ChunkedArray | None = None,
    rows: Array | pa.Array | None = None,
    count: int | None = None,
    codec: int = Codec.NONE,
    level: int | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
    pool: BufferPool | None = None,
) -> Iterator[list[Encoded]]:
    """The batches that `encode` gives, some at a time, in buffers of the pool where these are of use.

    These have the `buffer_size` of such batches.
    """
    columns = _columns(values, keys, headers, timestamps, None, rows, count)
    fields = _Fields(codec, level, -1, -1, -1, False)
    return _groups(columns, fields, max_bytes, pool)


def buffer_size(max_bytes: int) -> int:
    """The size of a pool's buffers, for batches of this size: one, or as many as are made in one go."""
    return max_bytes * max(1, _IN_ONE_GO // max_bytes)


def _columns(
    values: pa.Array | pa.ChunkedArray | None,
    keys: pa.Array | pa.ChunkedArray | None,
    headers: pa.Array | pa.ChunkedArray | None,
    timestamps: pa.Array | pa.ChunkedArray | None,
    default_timestamp: int | None,
    rows: Array | pa.Array | None,
    count: int | None,
) -> _Columns:
    default = now() if default_timestamp is None else default_timestamp
    chosen = rows_column(rows)
    total = _length(values, keys, headers, timestamps, count)
    if rows is not None:
        if len(chosen) and not 0 <= int(chosen.min()) <= int(chosen.max()) < total:
            raise IndexError(f"rows {chosen.min()} to {chosen.max()} of a column of {total}")
        total = len(chosen)
    return _Columns(
        bytes_column(keys, "keys"),
        bytes_column(values, "values"),
        headers_column(headers),
        timestamps_column(timestamps, default),
        chosen,
        total,
        default,
    )


class _Columns(NamedTuple):
    keys: BytesColumn
    values: BytesColumn
    headers: HeadersColumn
    timestamps: Array
    rows: Array
    total: int
    default_timestamp: int

    def size_from(self, first: int) -> int:
        """About the bytes that the records will take from this row on."""
        # Of chosen rows nothing is known but how many there are.
        row = 0 if len(self.rows) else first
        size = self.keys.size_from(row) + self.values.size_from(row)
        if self.headers.present:
            entry = int(self.headers.offsets[row])
            size += self.headers.keys.size_from(entry) + self.headers.values.size_from(entry)
            size += (int(self.headers.offsets[-1]) - entry) * _HEADER_OVERHEAD
        if len(self.rows):
            columns = (self.keys.offsets, self.values.offsets, self.headers.offsets)
            length = max((len(offsets) - 1 for offsets in columns), default=1)
            size = size * (self.total - first) // max(length, 1)
        return size + (self.total - first) * _RECORD_OVERHEAD


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


def _groups(
    columns: _Columns, fields: _Fields, max_bytes: int, pool: BufferPool | None
) -> Iterator[list[Encoded]]:
    """Batches of all rows, some at a time."""
    first = 0
    while first < columns.total:
        # Where there were no kernels before, they may have come meanwhile.
        kernels = kernels_for(0 if first else columns.size_from(0))
        if kernels is None and columns.total - first >= _WORTH_WAITING and load_compiled():
            kernels = kernels_for(0)
        if kernels is not None:
            yield from _Compiled(columns, fields, max_bytes, kernels, first).groups(pool)
            return
        output, lines, first = _encode_plain(columns, max_bytes, first)
        yield [_finished(output, fields, *line) for line in lines]


class _Compiled:
    """The rows from `first` on, on their way through the kernel."""

    def __init__(
        self, columns: _Columns, fields: _Fields, max_bytes: int, kernels: ModuleType, first: int
    ) -> None:
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
        # What is compressed gets its header and checksum afterwards.
        state[kernels.SEALS] = fields.codec == Codec.NONE
        state[kernels.ATTRIBUTES] = fields.attributes
        state[kernels.PRODUCER_ID] = fields.producer_id
        state[kernels.PRODUCER_EPOCH] = fields.producer_epoch
        state[kernels.BASE_SEQUENCE] = fields.base_sequence
        state[kernels.NEXT_ROW] = first
        self._state = state
        self._columns = columns
        self._fields = fields
        self._max_bytes = max_bytes
        self._kernels = kernels
        self._inputs = (
            columns.rows, columns.timestamps,
            columns.keys.offsets, columns.keys.data, columns.keys.valid,
            columns.values.offsets, columns.values.data, columns.values.valid,
            headers.offsets, headers.valid, headers.keys.offsets, headers.keys.data,
            headers.values.offsets, headers.values.data, headers.values.valid,
        )  # fmt: skip
        in_one_go = max(1, _IN_ONE_GO // max_bytes)
        self._table = np.zeros((in_one_go, kernels.BATCH_COLUMNS), np.int64)

    def groups(self, pool: BufferPool | None) -> Iterator[list[Encoded]]:
        kernels, state, total = self._kernels, self._state, self._columns.total
        plain = self._fields.codec == Codec.NONE
        most = buffer_size(self._max_bytes)
        scratch: Array | None = None  # what is compressed is copied on the way
        while int(state[kernels.NEXT_ROW]) < total:
            left = self._columns.size_from(int(state[kernels.NEXT_ROW]))
            size = min(left + (left // self._max_bytes + 2) * HEADER_SIZE, most)
            if scratch is not None:
                output = scratch
            elif pool is not None and pool.size // 2 < size <= pool.size:
                output = pool.take()
            else:
                output = resized(np.empty(0, np.uint8), size, 0)
            output, lines = self._fill(output)
            if plain:
                data = output.data
                yield [
                    Encoded(data[start:end], first, count, latest)
                    for start, end, first, count, _, latest in lines
                ]
            else:
                scratch = output
                yield [_finished(output.data, self._fields, *line) for line in lines]
            # Whoever was given them decides how long they live.
            del output

    def _fill(self, output: Array) -> tuple[Array, list[_Line]]:
        """The next batches, in this buffer or, if it is too small for any, in a larger one."""
        kernels, state, table = self._kernels, self._state, self._table
        state[kernels.OUTPUT_SIZE] = 0
        state[kernels.BATCHES] = 0
        while True:
            status = int(kernels.encode_records(state, *self._inputs, output, table))
            batches = int(state[kernels.BATCHES])
            if status == kernels.BAD_INPUT:
                row = int(state[kernels.NEXT_ROW])
                raise ValueError(f"row {row} of a column does not lie in its buffers")
            if status == kernels.BATCH_CUT and batches > 1:
                # It comes as a whole in the next buffer.
                batches -= 1
                state[kernels.NEXT_ROW] = table[batches, kernels.BATCH_FIRST]
                break
            if status == kernels.BATCH_CUT or (status == kernels.OUTPUT_FULL and not batches):
                room = max(int(state[kernels.REQUIRED]), len(output) * 3 // 2)
                output = resized(output, room, int(state[kernels.OUTPUT_SIZE]))
                continue
            break
        return output, [tuple(line) for line in table[:batches].tolist()]


def _encode_plain(
    columns: _Columns, max_bytes: int, begin: int
) -> tuple[memoryview, list[_Line], int]:
    """Encode a record at a time: some batches of the rows from `begin` on, and the next row."""
    output = bytearray()
    lines: list[_Line] = []
    start, first, base, latest = 0, begin, 0, 0
    for index, (timestamp, contents) in enumerate(_plain_records(columns, begin), begin):
        record = _plain_record(contents, timestamp - base, index - first)
        if index == begin or len(output) + len(record) - start > max_bytes:
            if index > begin:
                lines.append((start, len(output), first, index - first, base, latest))
            if len(output) >= _IN_ONE_GO:
                return memoryview(output), lines, index
            start, first, base, latest = len(output), index, timestamp, timestamp
            output += bytes(HEADER_SIZE)
            record = _plain_record(contents, 0, 0)
        output += record
        latest = max(latest, timestamp)
    lines.append((start, len(output), first, columns.total - first, base, latest))
    return memoryview(output), lines, columns.total


def _plain_record(contents: bytes, timestamp_delta: int, offset_delta: int) -> bytes:
    body = b"".join(
        (b"\x00", encode_varint(timestamp_delta), encode_varint(offset_delta), contents)
    )
    return encode_varint(len(body)) + body


def _plain_records(columns: _Columns, begin: int) -> Iterator[tuple[int, bytes]]:
    """Timestamp and encoded contents of each record from this one on."""
    headers = columns.headers
    for index in range(begin, columns.total):
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
        attributes=fields.attributes,
        last_offset_delta=count - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=fields.producer_id,
        producer_epoch=fields.producer_epoch,
        base_sequence=sequence,
        record_count=count,
    )
    batch = output[start:end]
    if fields.codec != Codec.NONE:
        packed = compress(fields.codec, batch[HEADER_SIZE:], fields.level)
        whole = bytearray(HEADER_SIZE)
        whole += packed
        header = header._replace(batch_length=len(whole) - LENGTH_OVERHEAD)
        batch = memoryview(whole)
    HEADER.pack_into(batch, 0, *header)
    seal(batch)
    return Encoded(batch, first, count, max_timestamp)
