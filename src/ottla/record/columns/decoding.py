"""Bytes of record batches to Arrow columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from ottla.record.batch import MAGIC, Buffer
from ottla.record.codecs import DEFAULT_LIMIT
from ottla.record.columns.compiled import decode_compiled
from ottla.record.columns.cursor import Cursor, Decoded
from ottla.record.columns.layout import DEFAULT_LAYOUT, Layout
from ottla.record.columns.plain import decode_plain
from ottla.record.columns.readiness import kernels_for

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
    if max_rows < 1 or not 1 <= max_bytes <= LARGEST_MAX_BYTES:
        raise ValueError(f"a result cannot be bounded by {max_rows} rows and {max_bytes} bytes")
    view = memoryview(buffer)
    if view.ndim != 1 or view.itemsize != 1 or view.format != "B":
        view = view.cast("B")
    cursor = Cursor(
        view,
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


def _results(cursor: Cursor) -> Iterator[Decoded]:
    kernels = kernels_for(len(cursor.view))
    reported: tuple[int, int] | None = None
    while (found := cursor.peek()) is not None:
        if kernels is None or found.magic != MAGIC:
            results = decode_plain(cursor, older_only=kernels is not None)
        else:
            results = decode_compiled(cursor, kernels)
        for decoded in results:
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
