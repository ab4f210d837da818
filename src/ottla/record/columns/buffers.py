"""The Arrow buffers of one result while the decoding kernel fills them."""

from __future__ import annotations

from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.record.columns.layout import HEADER_TYPE, HEADERS_TYPE, Layout
from ottla.record.columns.pool import Memory

Array: TypeAlias = npt.NDArray[Any]

# Rows, headers or bytes for which a first buffer has room, if there is no better guess.
_SMALL = 64
# A buffer may be larger than its contents by this factor before it is copied into a smaller one:
# results live long, and Arrow counts and sends whole buffers.
_ACCEPTABLE_SLACK = 1.5
# From this size on memory is used again, where the C library, and Arrow's allocator after a while, give
# it back, and the kernel clears as much anew each time.
_LARGE = 1024 * 1024
_memory = Memory(limit=32 * 1024 * 1024)

_NO_ENTRIES = pa.nulls(0, HEADER_TYPE)  # pa.array would import pandas


class ColumnBuffers:
    """Growable buffers for all columns of a layout; those that are not in it stay empty."""

    def __init__(self, layout: Layout, kernels: ModuleType, max_rows: int) -> None:
        self._layout = layout
        self._kernels = kernels
        self._max_rows = max_rows
        self._has_key = "key" in layout.columns
        self._has_value = "value" in layout.columns
        self._has_headers = "headers" in layout.columns
        nothing = np.empty(0, np.uint8)
        no_offsets = np.empty(0, np.int32)
        self._offsets = np.empty(0, np.int64)
        self._timestamps = np.empty(0, np.int64)
        self._timestamp_types = np.empty(0, np.int8)
        self._key_offsets = self._value_offsets = self._list_offsets = no_offsets
        self._key_data = self._value_data = nothing
        self._key_valid = self._value_valid = nothing
        self._header_key_offsets = self._header_value_offsets = np.zeros(1, np.int32)
        self._header_key_data = self._header_value_data = nothing
        self._header_value_valid = nothing

    def arguments(self) -> tuple[Array, ...]:
        """The buffers in the order in which the kernel takes them."""
        return (
            self._offsets, self._timestamps, self._timestamp_types,
            self._key_offsets, self._key_data, self._key_valid,
            self._value_offsets, self._value_data, self._value_valid,
            self._list_offsets, self._header_key_offsets, self._header_key_data,
            self._header_value_offsets, self._header_value_data, self._header_value_valid,
        )  # fmt: skip

    def reserve(
        self, rows: int, size: int, state: Array, rows_after: int = 0, size_after: int = 0
    ) -> None:
        """Make room before a group of batches: `rows` in all, `size` more bytes of contents.

        Values may take all of the bytes; the other columns grow when they have to. If there has to be
        more room, it is made for what is likely to come after the group, too.
        """
        rows = min(rows, self._max_rows)
        if rows > len(self._offsets):
            rows += rows_after
            self._widen(min(max(rows, _somewhat_more(len(self._offsets))), self._max_rows))
        if self._has_value:
            bytes_ = int(state[self._kernels.VALUE_BYTES])
            most = int(state[self._kernels.MAX_BYTES])
            # A record that is larger than all that is wanted makes room for itself.
            if min(bytes_ + size, most) > len(self._value_data):
                room = max(bytes_ + size + size_after, _somewhat_more(len(self._value_data)))
                self._value_data = resized(self._value_data, min(room, most), bytes_)

    def grow(self, status: int, state: Array) -> None:
        """Give the buffer that the kernel found too small room for what it needs, and to spare."""
        kernels = self._kernels
        needed = int(state[kernels.NEEDED])
        if status == kernels.ROWS_FULL:
            self._widen(min(2 * len(self._offsets) + _SMALL, self._max_rows))
        elif status == kernels.KEY_FULL:
            used = int(state[kernels.KEY_BYTES])
            self._key_data = _grown(self._key_data, needed, used)
        elif status == kernels.VALUE_FULL:
            used = int(state[kernels.VALUE_BYTES])
            self._value_data = _grown(self._value_data, needed, used)
        elif status == kernels.HEADERS_FULL:
            room = max(needed, 2 * len(self._header_key_offsets), _SMALL)
            used = int(state[kernels.HEADERS]) + 1
            self._header_key_offsets = resized(self._header_key_offsets, room + 1, used)
            self._header_value_offsets = resized(self._header_value_offsets, room + 1, used)
            self._header_value_valid = _bitmap(self._header_value_valid, room)
        elif status == kernels.HEADER_KEY_FULL:
            used = int(state[kernels.HEADER_KEY_BYTES])
            self._header_key_data = _grown(self._header_key_data, needed, used)
        elif status == kernels.HEADER_VALUE_FULL:
            used = int(state[kernels.HEADER_VALUE_BYTES])
            self._header_value_data = _grown(self._header_value_data, needed, used)
        else:
            raise AssertionError(f"the kernel ended with {status}")

    def _widen(self, rows: int) -> None:
        used = len(self._offsets)
        self._offsets = resized(self._offsets, rows, used)
        self._timestamps = resized(self._timestamps, rows, used)
        self._timestamp_types = resized(self._timestamp_types, rows, used)
        if self._has_key:
            self._key_offsets = resized(self._key_offsets, rows + 1, used)
            self._key_valid = _bitmap(self._key_valid, rows)
        if self._has_value:
            self._value_offsets = resized(self._value_offsets, rows + 1, used)
            self._value_valid = _bitmap(self._value_valid, rows)
        if self._has_headers:
            self._list_offsets = resized(self._list_offsets, rows + 1, used)

    def record_batch(self, rows: int, state: Array) -> pa.RecordBatch:
        """The first `rows` rows. The buffers belong to it from now on."""
        schema = self._layout.schema
        return pa.RecordBatch.from_arrays(
            [self._column(name, rows, state) for name in schema.names], schema=schema
        )

    def _column(self, name: str, rows: int, state: Array) -> pa.Array:
        kernels = self._kernels
        match name:
            case "offset":
                return _fixed(pa.int64(), self._offsets, rows)
            case "timestamp":
                bitmap = None
                if state[kernels.WITHOUT_TIMESTAMP]:
                    known = self._timestamps[:rows] != -1
                    bitmap = np.packbits(known, bitorder="little")
                type_ = pa.timestamp(self._layout.timestamp_unit, "UTC")
                return _fixed(type_, self._timestamps, rows, bitmap)
            case "timestamp_type":
                column = _fixed(pa.int8(), self._timestamp_types, rows)
                wanted = self._layout.timestamp_type
                return column if wanted == column.type else column.cast(wanted)
            case "key":
                bitmap = self._key_valid if state[kernels.KEY_NULLS] else None
                return _variable(pa.binary(), self._key_offsets, self._key_data, rows, bitmap)
            case "value":
                bitmap = self._value_valid if state[kernels.VALUE_NULLS] else None
                return _variable(pa.binary(), self._value_offsets, self._value_data, rows, bitmap)
            case _:
                return self._headers(rows, state)

    def _headers(self, rows: int, state: Array) -> pa.Array:
        if not rows:
            return pa.array([], HEADERS_TYPE)
        count = int(self._list_offsets[rows])
        entries = self._entries(count, state) if count else _NO_ENTRIES
        return pa.Array.from_buffers(
            HEADERS_TYPE,
            rows,
            [None, _buffer(self._list_offsets, rows + 1)],
            null_count=0,
            children=[entries],
        )

    def _entries(self, count: int, state: Array) -> pa.Array:
        keys = _text(self._header_key_offsets, self._header_key_data, count)
        bitmap = self._header_value_valid if state[self._kernels.HEADER_VALUE_NULLS] else None
        values = _variable(
            pa.binary(), self._header_value_offsets, self._header_value_data, count, bitmap
        )
        return pa.StructArray.from_arrays([keys, values], fields=list(HEADER_TYPE))


def _somewhat_more(size: int) -> int:
    """Room for a bit more than was announced, where that was not enough."""
    return size + size // 8 + _SMALL


def _grown(array: Array, needed: int, used: int) -> Array:
    return resized(array, max(needed, 2 * len(array), _SMALL), used)


def resized(array: Array, size: int, used: int) -> Array:
    """A buffer of `size` entries with the `used` first ones of `array`."""
    larger: Array
    if size * array.itemsize < _LARGE:
        larger = np.empty(size, array.dtype)
    else:
        larger = _memory.take(size * array.itemsize)[: size * array.itemsize].view(array.dtype)
    larger[:used] = array[:used]
    return larger


def _bitmap(bitmap: Array, bits: int) -> Array:
    larger = np.zeros((bits + 7) // 8, np.uint8)
    larger[: len(bitmap)] = bitmap
    return larger


def _buffer(array: Array, used: int) -> pa.Buffer:
    if len(array) > used * _ACCEPTABLE_SLACK + _SMALL:
        array = array[:used].copy()
    return pa.py_buffer(array[:used])


def _fixed(type_: pa.DataType, array: Array, rows: int, bitmap: Array | None = None) -> pa.Array:
    return pa.Array.from_buffers(type_, rows, [_valid(bitmap, rows), _buffer(array, rows)])


def _variable(
    type_: pa.DataType, offsets: Array, data: Array, rows: int, bitmap: Array | None
) -> pa.Array:
    if not rows:
        return pa.array([], type_)
    bytes_ = int(offsets[rows])
    return pa.Array.from_buffers(
        type_, rows, [_valid(bitmap, rows), _buffer(offsets, rows + 1), _buffer(data, bytes_)]
    )


def _valid(bitmap: Array | None, rows: int) -> pa.Buffer | None:
    return None if bitmap is None else _buffer(bitmap, (rows + 7) // 8)


def _text(offsets: Array, data: Array, rows: int) -> pa.Array:
    """Strings, with replacement characters for what is no UTF-8: Arrow's readers trust it to be."""
    used = int(offsets[rows]) if rows else 0
    if not used or int(data[:used].max()) < 0x80:
        return _variable(pa.string(), offsets, data, rows, None)
    column = _variable(pa.binary(), offsets, data, rows, None)
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([str(key, "utf-8", "replace") for key in column.to_pylist()], pa.string())
