"""Arrow columns from bytes and numpy, for a command that is to be quick.

`pyarrow.array` and `pyarrow.scalar` import pandas where it is installed, which takes a quarter of a
second, as long as sending half a million lines. Whatever is here does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa


def binary_column(data: bytes, ends: np.ndarray[Any, Any]) -> pa.Array:
    """Values that lie one after the other in `data`, by the places where they end."""
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(ends), buffers)


def same_bytes(value: bytes, count: int) -> pa.Array:
    """A column that holds one value `count` times."""
    return binary_column(value * count, np.arange(1, count + 1) * len(value))


def same_number(number: int, count: int) -> pa.Array:
    """An int32 column that holds one number `count` times."""
    return pa.Array.from_buffers(
        pa.int32(), count, [None, pa.py_buffer(np.full(count, number, np.int32))]
    )
