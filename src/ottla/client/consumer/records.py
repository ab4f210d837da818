"""One record at a time, for those who want it: rows of a batch as named tuples."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

# Rows that are turned into Python objects at a time.
_STRIDE = 512


class ConsumedRecord(NamedTuple):
    """A record as it was read."""

    topic: str
    partition: int
    offset: int
    timestamp: datetime | None  # in UTC
    timestamp_type: int  # 0 the producer's time, 1 the broker's, -1 none
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def records_of(rows: pa.RecordBatch) -> Iterator[ConsumedRecord]:
    """The rows of a batch with all columns."""
    for start in range(0, rows.num_rows, _STRIDE):
        part = rows.slice(start, _STRIDE)
        columns = [part.column(name).to_pylist() for name in ConsumedRecord._fields]
        for row in zip(*columns, strict=True):
            headers = tuple((header["key"], header["value"]) for header in row[-1])
            yield ConsumedRecord._make((*row[:-1], headers))
