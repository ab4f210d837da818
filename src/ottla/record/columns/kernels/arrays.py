"""Numbers of a width and arrays as the kernels take them, and the limits that several of them know."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

# To the type checker numbers of a width are whatever they have to be.
int8: Any = np.int8
uint8: Any = np.uint8
int64: Any = np.int64
uint64: Any = np.uint64

# Arrays: of bytes that are only read, and of numbers that are written to.
INPUT = types.Array(types.uint8, 1, "C", readonly=True)
BYTES = types.uint8[::1]
INT8S = types.int8[::1]
INT32S = types.int32[::1]
INT64S = types.int64[::1]
TABLE = types.int64[:, ::1]

LARGEST_INT64 = 2**63 - 1
ALL_ONES = 0xFFFFFFFF  # of a checksum's register
