"""Columns that a caller wants encoded, as the flat arrays that the encoding kernel reads.

Whatever Arrow type a column of bytes or text has, it is brought to 32-bit offsets; slices stay
slices of the same buffers.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Array: TypeAlias = npt.NDArray[Any]

# Differences of two timestamps have to fit into 64 bits.
_LARGEST_TIMESTAMP = 2**62


def _constant(dtype: type) -> Array:
    array: Array = np.empty(0, dtype)
    array.flags.writeable = False
    return array


_NO_BYTES = _constant(np.uint8)
_NO_OFFSETS = _constant(np.int32)
_NO_INTEGERS = _constant(np.int64)


class BytesColumn(NamedTuple):
    """Entries of bytes: `data[offsets[i]:offsets[i + 1]]`, null where bit `first_bit + i` is 0."""

    present: bool
    offsets: Array = _NO_OFFSETS
    data: Array = _NO_BYTES
    valid: Array = _NO_BYTES
    first_bit: int = 0

    def size_from(self, first: int) -> int:
        """Bytes of all entries together from this one on."""
        return int(self.offsets[-1]) - int(self.offsets[first]) if self.present else 0


class HeadersColumn(NamedTuple):
    """Lists of pairs of a key and a value."""

    present: bool
    offsets: Array = _NO_OFFSETS
    valid: Array = _NO_BYTES
    first_bit: int = 0
    keys: BytesColumn = BytesColumn(False)
    values: BytesColumn = BytesColumn(False)


def bytes_column(column: pa.Array | pa.ChunkedArray | None, name: str) -> BytesColumn:
    """A column of binary or string type of any kind; None and a column of nulls are the same."""
    if column is None or pa.types.is_null(column.type):
        return BytesColumn(False)
    array = _one_chunk(column)
    if not (pa.types.is_binary(array.type) or pa.types.is_string(array.type)):
        try:
            array = _one_chunk(array.cast(pa.binary()))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise TypeError(
                f"{name} are bytes or text, not {column.type}: choose a format for them ({error})"
            ) from None
    valid, offsets, data = array.buffers()
    return BytesColumn(
        True,
        _offsets(offsets, array),
        _flat(data, np.uint8, _NO_BYTES),
        _bitmap(valid, array),
        array.offset,
    )


def headers_column(column: pa.Array | pa.ChunkedArray | None) -> HeadersColumn:
    """A column of lists of structs with a key and a value, or of maps."""
    if column is None or pa.types.is_null(column.type):
        return HeadersColumn(False)
    array = _one_chunk(column)
    type_ = array.type
    if pa.types.is_large_list(type_):
        array = array.cast(pa.list_(type_.value_field))
    elif not (pa.types.is_list(type_) or pa.types.is_map(type_)):
        raise TypeError(f"headers are a list of structs or a map, not {type_}")
    if pa.types.is_map(type_):
        keys, values = array.keys, array.items
    else:
        entries = array.values
        if not pa.types.is_struct(entries.type) or entries.type.num_fields != 2:
            raise TypeError(f"a header is a struct of key and value, not {entries.type}")
        keys, values = entries.flatten()
    if keys.null_count:
        raise ValueError("the key of a header is null")
    valid, offsets = array.buffers()[:2]
    value_column = bytes_column(values, "header values")
    if not value_column.present:  # all null
        value_column = bytes_column(pa.nulls(len(keys), pa.binary()), "header values")
    return HeadersColumn(
        True,
        _offsets(offsets, array),
        _bitmap(valid, array),
        array.offset,
        bytes_column(keys, "header keys"),
        value_column,
    )


def timestamps_column(column: pa.Array | pa.ChunkedArray | None, default: int) -> Array:
    """Milliseconds since 1970; where there are none, `default`. Empty without a column."""
    if column is None or pa.types.is_null(column.type):
        return _NO_INTEGERS
    array = _one_chunk(column)
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("ms", array.type.tz), safe=False).cast(pa.int64())
    elif pa.types.is_integer(array.type):
        array = array.cast(pa.int64())
    else:
        raise TypeError(f"timestamps are times, or milliseconds as integers, not {array.type}")
    if array.null_count:
        array = pc.fill_null(array, default)
    times = _flat(array.buffers()[1], np.int64, _NO_INTEGERS)
    times = times[array.offset : array.offset + len(array)]
    if len(times) and (times.min() < -_LARGEST_TIMESTAMP or times.max() > _LARGEST_TIMESTAMP):
        raise ValueError("a timestamp is too far from today to be written")
    return times


def rows_column(rows: Array | pa.Array | None) -> Array:
    """Which rows are to be encoded, in which order; empty for all."""
    if rows is None:
        return _NO_INTEGERS
    if isinstance(rows, pa.Array):
        rows = rows.to_numpy()
    chosen = np.ascontiguousarray(rows, np.int64).view()
    chosen.flags.writeable = False
    return chosen


def now() -> int:
    return time.time_ns() // 1_000_000


def _one_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks == 1:
            return column.chunk(0)
        combined = column.combine_chunks()
        if isinstance(combined, pa.ChunkedArray):
            raise ValueError("a column has more than 2 GiB: encode it in pieces")
        return combined
    return column


def _offsets(buffer: pa.Buffer | None, array: pa.Array) -> Array:
    if not len(array):
        return _zero_offset
    offsets = _flat(buffer, np.int32, _NO_OFFSETS)[array.offset : array.offset + len(array) + 1]
    if len(offsets) != len(array) + 1:
        raise ValueError("a column has fewer offsets than entries")
    return offsets


def _bitmap(buffer: pa.Buffer | None, array: pa.Array) -> Array:
    bitmap = _flat(buffer, np.uint8, _NO_BYTES)
    if len(bitmap) and len(bitmap) * 8 < array.offset + len(array):
        raise ValueError("a column has fewer validity bits than entries")
    return bitmap


def _flat(buffer: pa.Buffer | None, dtype: type, nothing: Array) -> Array:
    if buffer is None or not buffer.size:
        return nothing
    size = np.dtype(dtype).itemsize
    array: Array = np.frombuffer(buffer, dtype, count=buffer.size // size)
    array.flags.writeable = False
    return array


_zero_offset = np.zeros(1, np.int32)
_zero_offset.flags.writeable = False
