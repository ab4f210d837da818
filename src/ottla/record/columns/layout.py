"""Which columns a decoder makes of records, and in which Arrow types.

offset           int64
timestamp        timestamp in UTC, milliseconds unless told otherwise; null where a record has none
timestamp_type   int8: 0 the producer's time, 1 the broker's (log append time), -1 none (format v0)
key, value       binary, null where the record says so
headers          list<struct<key: string, value: binary>>, empty where there are none
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import pyarrow as pa

COLUMNS: Final = ("offset", "timestamp", "timestamp_type", "key", "value", "headers")

HEADER_TYPE: Final = pa.struct(
    [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]
)
HEADERS_TYPE: Final = pa.list_(pa.field("item", HEADER_TYPE, nullable=False))

_UNITS = {"ms": 1, "us": 1000}
_INT8 = pa.int8()


@dataclass(frozen=True)
class Layout:
    """The columns to make, in this order; what is not named is skipped while decoding.

    `timestamp_unit` is "ms" or "us". Times that do not fit into 64 bits of microseconds become the
    largest or the smallest that do. `timestamp_type` is the integer type of the column of that name.
    """

    columns: tuple[str, ...] = COLUMNS
    timestamp_unit: str = "ms"
    timestamp_type: pa.DataType = _INT8

    def __post_init__(self) -> None:
        unknown = [name for name in self.columns if name not in COLUMNS]
        if unknown or len(set(self.columns)) != len(self.columns):
            raise ValueError(
                f"columns are some of {', '.join(COLUMNS)}, each once: not {', '.join(self.columns)}"
            )
        if self.timestamp_unit not in _UNITS:
            raise ValueError(f"a timestamp's unit is ms or us, not {self.timestamp_unit}")
        if not pa.types.is_signed_integer(self.timestamp_type):
            raise ValueError(f"timestamp types are signed integers, not {self.timestamp_type}")

    @property
    def timestamp_scale(self) -> int:
        """What milliseconds are multiplied by."""
        return _UNITS[self.timestamp_unit]

    @cached_property
    def schema(self) -> pa.Schema:
        types = {
            "offset": pa.int64(),
            "timestamp": pa.timestamp(self.timestamp_unit, "UTC"),
            "timestamp_type": self.timestamp_type,
            "key": pa.binary(),
            "value": pa.binary(),
            "headers": HEADERS_TYPE,
        }
        return pa.schema([pa.field(name, types[name]) for name in self.columns])


DEFAULT_LAYOUT: Final = Layout()


def only(columns: Iterable[str]) -> Layout:
    """The default layout with these columns alone."""
    return Layout(columns=tuple(columns))
