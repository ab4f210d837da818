"""Bytes of record batches to Arrow columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from ottla.record.batch import Buffer
from ottla.record.columns.compiled import CompiledReader
from ottla.record.columns.cursor import Cursor, Decoded
from ottla.record.columns.kernels.readiness import kernels_for
from ottla.record.columns.layout import DEFAULT_LAYOUT, Layout
from ottla.record.columns.plain import decode_plain
from ottla.record.compression.codecs import DEFAULT_LIMIT

DEFAULT_MAX_ROWS = 256 * 1024
DEFAULT_MAX_BYTES = 32 * 1024 * 1024
# Offsets of Arrow's binary columns have 32 bits.
LARGEST_MAX_BYTES = 2**31 - 1


def decode(
    buffer: Buffer,
    *,
    layout: Layout = DEFAULT_LAYOUT,
    start_offset: int = 0,
    end_offset: int | None = None,
    aborted: Iterable[tuple[int, int]] = (),
    check_crc: bool = True,
    max_rows: int = DEFAULT_MAX_ROWS,
    max_bytes: int = DEFAULT_MAX_BYTES,
    decompressed_limit: int = DEFAULT_LIMIT,
) -> Iterator[Decoded]:
    """The records of the whole batches in `buffer`, in results of bounded size.

    `buffer` is anything that has bytes: a Fetch answer's records, a mapped segment. A piece of a
    batch at its end is left. Control batches are left out, so are records below `start_offset`,
    from `end_offset` on, and those of the `aborted` transactions (producer id and first offset).

    Each result has at most `max_rows` rows and about `max_bytes` bytes of keys, values and headers;
    a record that is larger comes alone. There is always one result, if only to tell the position.
    A batch that cannot be read raises InvalidBatch after the results of those before it;
    `decompressed_limit` is what a compressed batch may unfold to.
    """
    cursor = _cursor(
        buffer,
        layout=layout,
        start_offset=start_offset,
        end_offset=end_offset,
        aborted=aborted,
        check_crc=check_crc,
        max_rows=max_rows,
        max_bytes=max_bytes,
        decompressed_limit=decompressed_limit,
    )
    return _results(cursor)


class IncrementalRecords:
    """Decodes a buffer that is still being filled: `advance` reads what is there already.

    Iterate over it once the buffer is full; then it gives what `decode` gives. Bytes that have been
    there for `advance` must not change.
    """

    def __init__(
        self,
        buffer: Buffer,
        *,
        layout: Layout = DEFAULT_LAYOUT,
        start_offset: int = 0,
        end_offset: int | None = None,
        aborted: Iterable[tuple[int, int]] = (),
        check_crc: bool = True,
        max_rows: int = DEFAULT_MAX_ROWS,
        max_bytes: int = DEFAULT_MAX_BYTES,
        decompressed_limit: int = DEFAULT_LIMIT,
    ) -> None:
        self._cursor = _cursor(
            buffer,
            layout=layout,
            start_offset=start_offset,
            end_offset=end_offset,
            aborted=aborted,
            check_crc=check_crc,
            max_rows=max_rows,
            max_bytes=max_bytes,
            decompressed_limit=decompressed_limit,
        )
        self._reader: CompiledReader | None = None

    def advance(self, size: int) -> None:
        """The first `size` bytes are there: read of them what the kernels can read."""
        if self._reader is None:
            kernels = kernels_for(0)
            if kernels is None:
                return
            self._reader = CompiledReader(self._cursor, kernels)
        self._reader.advance(size)

    def receive(self, descriptor: int, size: int, most: int) -> int:
        """Receive up to `most` bytes after the first `size` ones from a socket that does not block,
        and read them; the number of those that came, 0 also if others have to receive them."""
        return 0 if self._reader is None else self._reader.receive(descriptor, size, most)

    @property
    def left(self) -> int:
        """Bytes that have not been read yet."""
        return len(self._cursor.view) - self._cursor.read_to

    @property
    def last_read(self) -> int:
        """Where the last batch starts of those that have been read; 0 if none has."""
        return self._cursor.last_start

    def __iter__(self) -> Iterator[Decoded]:
        return _results(self._cursor, self._reader)


def _cursor(buffer: Buffer, *, max_rows: int, max_bytes: int, **bounds: Any) -> Cursor:
    if max_rows < 1 or not 1 <= max_bytes <= LARGEST_MAX_BYTES:
        raise ValueError(f"a result cannot be bounded by {max_rows} rows and {max_bytes} bytes")
    view = memoryview(buffer)
    if view.ndim != 1 or view.itemsize != 1 or view.format != "B":
        view = view.cast("B")
    return Cursor(view, max_rows=max_rows, max_bytes=max_bytes, **bounds)


def _results(cursor: Cursor, begun: CompiledReader | None = None) -> Iterator[Decoded]:
    kernels = kernels_for(len(cursor.view)) if begun is None else begun.kernels
    reported: tuple[int, int] | None = None
    while True:
        if kernels is not None:
            reader = begun or CompiledReader(cursor, kernels)
            begun = None
            for decoded in reader.results():
                yield decoded
                reported = (decoded.next_offset, decoded.consumed)
        if cursor.peek() is None:
            break
        # Without kernels all that is left, else what only the plain reader knows.
        for decoded in decode_plain(cursor, older_only=kernels is not None):
            yield decoded
            reported = (decoded.next_offset, decoded.consumed)
    cursor.end()
    if reported != (cursor.next_offset, cursor.consumed) and (
        cursor.failure is None or cursor.consumed > (reported[1] if reported else 0)
    ):
        schema = cursor.layout.schema
        nothing = pa.RecordBatch.from_arrays(
            [pa.array([], field.type) for field in schema], schema=schema
        )
        yield Decoded(nothing, cursor.next_offset, cursor.consumed)
    if cursor.failure is not None:
        raise cursor.failure
