"""Receiving in compiled code, for kernels that decode what has come while it is in the cache.

A part of `kernels`, as `walk_kernels` is.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
from numba import types
from numba.extending import register_jitable

# The C library's; its name goes into what is compiled, not its address, so that this can be cached.
_recv: Any = types.ExternalFunction(
    "recv", types.intp(types.int32, types.uintp, types.uintp, types.int32)
)
_place: Any = np.uintp

# Windows has sockets of another kind. A name that is not there would end the process.
CAN_RECEIVE = os.name == "posix" and hasattr(ctypes.CDLL(None), "recv")


@register_jitable
def _receive(descriptor: int, data: Any, start: int, end: int) -> int:
    """Receive into data[start:end]; how many bytes came, 0 or less if none did, for whatever reason."""
    if not 0 <= start < end <= len(data):
        return 0
    return int(_recv(descriptor, data.ctypes.data + _place(start), _place(end - start), 0))


@register_jitable
def receive_nothing(descriptor: int, data: Any, start: int, end: int) -> int:  # noqa: ARG001
    """Receives nothing, where sockets are of another kind."""
    return 0


receive: Any = _receive if CAN_RECEIVE else receive_nothing
