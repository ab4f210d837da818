"""Record batches as Arrow columns: `decode` and `encode`, by compiled kernels where these help.

This room needs pyarrow and numpy, and numba for the kernels; the broker never enters it. Its modules
are imported when something of them is first used: `reach` and `set_producer` need none of the three.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.record.columns.cursor import Decoded
    from ottla.record.columns.decoding import IncrementalRecords, decode
    from ottla.record.columns.encoding import Encoded, buffer_size, encode, encode_in_turn
    from ottla.record.columns.kernels.readiness import compile_kernels
    from ottla.record.columns.layout import COLUMNS, DEFAULT_LAYOUT, HEADERS_TYPE, Layout
    from ottla.record.columns.pool import BufferPool
    from ottla.record.columns.sealing import set_producer
    from ottla.record.columns.walking import Reach, reach

_HOMES = {
    "IncrementalRecords": "decoding",
    "COLUMNS": "layout",
    "DEFAULT_LAYOUT": "layout",
    "Decoded": "cursor",
    "Encoded": "encoding",
    "HEADERS_TYPE": "layout",
    "Layout": "layout",
    "Reach": "walking",
    "BufferPool": "pool",
    "buffer_size": "encoding",
    "compile_kernels": "kernels.readiness",
    "decode": "decoding",
    "encode": "encoding",
    "encode_in_turn": "encoding",
    "reach": "walking",
    "set_producer": "sealing",
}

__all__ = [
    "COLUMNS",
    "DEFAULT_LAYOUT",
    "HEADERS_TYPE",
    "BufferPool",
    "Decoded",
    "Encoded",
    "IncrementalRecords",
    "Layout",
    "Reach",
    "buffer_size",
    "compile_kernels",
    "decode",
    "encode",
    "encode_in_turn",
    "reach",
    "set_producer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
