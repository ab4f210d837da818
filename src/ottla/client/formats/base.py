"""What every format of values has in common: decode to Arrow, encode from Arrow, and reject by row.

A topic's values are a binary column. `Format.decode` turns it into a typed column of the same
length, `Format.encode` does the reverse. Both work on whole columns: the formats hand them to
compiled parsers, and look at single rows only to find the ones that a parser refused.

The rows of a topic come from strangers, so a bad one is data, not an exception: it becomes null and
its reason stands in `Decoded.rejected`. Exceptions are for the caller's own mistakes: a schema that
the format cannot express, a package that is not installed, a column that cannot be encoded.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.client.formats.errors import MissingPackage, UnsupportedColumn

# What a parser may raise over the contents of a row. (Arrow's own invalid-data error and Unicode
# errors are ValueErrors.)
ROW_ERRORS = (ValueError, OverflowError, EOFError, IndexError, KeyError, TypeError)


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded column.

    `array` has one entry per value: null where the value was null, and where it was rejected.
    `rejected` is a string column of the same length: the reason, or null for a good row.
    """

    array: pa.Array
    rejected: pa.Array

    @property
    def rejected_count(self) -> int:
        return len(self.rejected) - int(self.rejected.null_count)

    @property
    def rejected_mask(self) -> pa.Array:
        """True for the rows that could not be decoded."""
        return pc.is_valid(self.rejected)


class Format(ABC):
    """One way to write a structured value as bytes."""

    #: The name under which `format=` finds it.
    name: str

    @abstractmethod
    def decode(self, values: pa.Array | pa.ChunkedArray) -> Decoded:
        """The typed column for a column of bytes; a row that cannot be decoded is rejected."""

    @abstractmethod
    def encode(self, column: pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table) -> pa.Array:
        """The binary column for a typed one; null stays null (a tombstone)."""


def required(module: str, extra: str) -> ModuleType:
    """Import an optional package, or say which extra of Ottla's brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingPackage(
            f"this format needs the package {package!r}: pip install 'ottla[{extra}]'"
        ) from error


def available(module: str) -> ModuleType | None:
    """An optional package that only makes things faster, if it is installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The column in one piece."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    combined = column.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        raise UnsupportedColumn(
            "the column is larger than 2 GiB: hand it over in smaller record batches"
        )
    return combined


def binary_column(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Values as a plain binary array, whatever kind of byte or text column they came in."""
    array = one_array(values)
    if pa.types.is_binary(array.type):
        return array
    kinds = (
        pa.types.is_large_binary,
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_binary_view,
        pa.types.is_string_view,
        pa.types.is_fixed_size_binary,
        pa.types.is_null,
    )
    if not any(kind(array.type) for kind in kinds):
        raise UnsupportedColumn(f"values are bytes or text, not {array.type}")
    return array.cast(pa.binary())


def struct_column(column: pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table) -> pa.Array:
    """A table's columns as one struct column; an array as it is."""
    if isinstance(column, pa.Table):
        return one_array(column.to_struct_array())
    if isinstance(column, pa.RecordBatch):
        return column.to_struct_array()
    return one_array(column)


def decode_rows(
    values: pa.Array,
    decode_all: Callable[[pa.Array], pa.Array],
    result_type: pa.DataType,
    reasons: dict[int, str] | None = None,
) -> Decoded:
    """Decode the values that are there with `decode_all`, finding by halving the rows it refuses.

    `decode_all` takes an array without nulls and gives one of the same length and of `result_type`,
    or raises. Rows that are already in `reasons` (by position) are not tried. Halving costs some
    2 × bad × log₂(rows / bad) calls, so good neighbours of a bad row stay on the fast path.
    """
    known = reasons or {}
    present = np.flatnonzero(_valid_mask(values))
    if known:
        present = present[~np.isin(present, np.fromiter(known, np.int64, len(known)))]
    candidates = values if len(present) == len(values) else values.take(pa.array(present))
    pieces: list[pa.Array] = []
    found: dict[int, str] = {}
    # Ranges yet to decode, the leftmost on top: pieces come out in order.
    ranges = [(0, len(candidates))] if len(candidates) else []
    while ranges:
        start, end = ranges.pop()
        try:
            pieces.append(decode_all(candidates.slice(start, end - start)))
        except ROW_ERRORS as error:
            if end - start == 1:
                found[int(present[start])] = _reason(error)
            else:
                middle = (start + end) // 2
                ranges += [(middle, end), (start, middle)]
    decoded = pa.concat_arrays(pieces) if pieces else pa.array([], result_type)
    if known or found:
        found = {**known, **found}
        present = present[~np.isin(present, np.fromiter(found, np.int64, len(found)))]
    return Decoded(_spread(decoded, present, len(values)), reasons_column(found, len(values)))


def reasons_column(reasons: dict[int, str], length: int) -> pa.Array:
    """The column of reasons: null but for the rows named."""
    if not reasons:
        return pa.nulls(length, pa.string())
    positions = np.full(length, -1, np.int64)
    positions[np.fromiter(reasons, np.int64, len(reasons))] = np.arange(len(reasons))
    return pa.array(list(reasons.values()), pa.string()).take(
        pa.array(positions, mask=positions < 0)
    )


def _spread(decoded: pa.Array, present: np.ndarray[Any, Any], length: int) -> pa.Array:
    """Put decoded rows back to their positions, with nulls between them."""
    if len(present) == length:
        return decoded
    if not len(decoded):
        return pa.nulls(length, decoded.type)
    positions = np.full(length, -1, np.int64)
    positions[present] = np.arange(len(present))
    return decoded.take(pa.array(positions, mask=positions < 0))


def _valid_mask(values: pa.Array) -> np.ndarray[Any, Any]:
    if not values.null_count:
        return np.ones(len(values), np.bool_)
    mask: np.ndarray[Any, Any] = pc.is_valid(values).to_numpy(zero_copy_only=False)
    return mask


def _reason(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    return text or type(error).__name__
