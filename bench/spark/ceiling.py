"""A data source of Spark's that costs nothing: the same Arrow batch again and again.

What it reaches is what a source written in Python can reach at most: the rest is Spark's.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_ottla.rows import SparkRows
from pyspark_ottla.schema import spark_schema


class Ceiling(DataSource):
    """`rows` rows of `size` bytes in each of `partitions` partitions, `batch` rows at a time."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> StructType:
        return spark_schema(include_headers=False)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        names = ("rows", "size", "partitions", "batch")
        return _Reader(*(int(self.options[name]) for name in names))


class _Reader(DataSourceReader):
    def __init__(self, rows: int, size: int, partitions: int, batch: int) -> None:
        self._rows = rows
        self._size = size
        self._partitions = partitions
        self._batch = batch

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        whole = _batch(self._batch, self._size, partition.value)
        left = self._rows
        while left > 0:
            some = whole.slice(0, min(left, whole.num_rows))
            yield some
            left -= some.num_rows


def _batch(count: int, size: int, partition: int) -> pa.RecordBatch:
    values = pa.Array.from_buffers(
        pa.binary(),
        count,
        [
            None,
            pa.py_buffer(np.arange(count + 1, dtype=np.int32) * np.int32(size)),
            pa.py_buffer(np.full(count * size, ord("x"), np.uint8)),
        ],
    )
    columns = [
        pa.nulls(count, pa.binary()),
        values,
        pa.repeat(pa.scalar("ceiling", pa.string()), count),
        pa.array(np.full(count, partition, np.int32)),
        pa.array(np.arange(count, dtype=np.int64)),
        pa.array(np.full(count, 1_700_000_000_000_000, np.int64)).cast(pa.timestamp("us", "UTC")),
        pa.array(np.zeros(count, np.int32)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SparkRows(include_headers=False).schema)
