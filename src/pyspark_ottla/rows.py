"""The rows that Spark gets: the schema of its own Kafka source, as Arrow batches.

The kernels decode straight into Spark's types, so that little is left to do for each batch. Two
things differ from Ottla's own rows, because they do in Spark's source: a record without headers has
null in place of an empty list, and one without a timestamp has that of -1 ms. With `valueFormat` the
column `value` is decoded; see `values`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.compute
from pyspark.sql.pandas.types import to_arrow_schema

from ottla.client.consumer.rows import RowsLayout
from ottla.client.positions import TopicPartition
from ottla.record.columns import Layout
from pyspark_ottla.schema import spark_schema
from pyspark_ottla.values.columns import decoder
from pyspark_ottla.values.options import ValueOptions

MAX_ROWS: Final = 200_000
# Spark's JVM keeps memory for buffers of up to 16 MiB; larger ones are mapped and cleared each time.
MAX_BYTES: Final = 8 * 1024 * 1024

_DECODED: Final = ("key", "value", "offset", "timestamp", "timestamp_type")
_NO_TIMESTAMP: Final = -1000  # microseconds


class SparkRows(RowsLayout):
    """Makes batches of Spark's schema of record batches."""

    def __init__(self, include_headers: bool, values: ValueOptions | None = None) -> None:
        super().__init__()
        self._include_headers = include_headers
        self._decoder = None if values is None else decoder(values)
        self.decoded = Layout(
            columns=(*_DECODED, "headers") if include_headers else _DECODED,
            timestamp_unit="us",
            timestamp_type=pa.int32(),
        )
        # Spark compares the schema of batches with this one.
        self.schema = to_arrow_schema(spark_schema(include_headers, values), timezone="UTC")

    def complete(self, rows: pa.RecordBatch, partition: TopicPartition) -> pa.RecordBatch:
        count = rows.num_rows
        timestamps = rows.column("timestamp")
        if timestamps.null_count:
            none = pa.scalar(_NO_TIMESTAMP, timestamps.type)
            timestamps = pyarrow.compute.fill_null(timestamps, none)
        value = rows.column("value")
        corrupt = None
        if self._decoder is not None:
            value, corrupt = self._decoder.decode(value)
        columns = [
            rows.column("key"),
            value,
            _repeated(partition.topic, pa.string(), count),
            _repeated(partition.partition, pa.int32(), count),
            rows.column("offset"),
            timestamps,
            rows.column("timestamp_type"),
        ]
        if self._include_headers:
            columns.append(_null_where_empty(rows.column("headers"), self.schema))
        if corrupt is not None:
            columns.append(corrupt)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _repeated(value: str | int, type_: pa.DataType, count: int) -> pa.Array:
    return _longest(value, type_).slice(0, count)


@lru_cache(8)
def _longest(value: str | int, type_: pa.DataType) -> pa.Array:
    """The column of the most rows that a batch has, all the same: others are slices of it."""
    return pa.repeat(pa.scalar(value, type_), MAX_ROWS)


def _null_where_empty(headers: pa.Array, schema: pa.Schema) -> pa.Array:
    type_ = schema.field("headers").type
    entries = headers.values
    fields = list(type_.value_type)
    structs = pa.StructArray.from_arrays(
        [entries.field("key"), entries.field("value")], fields=fields
    )
    empty = pyarrow.compute.equal(pyarrow.compute.list_value_length(headers), 0)
    return pa.ListArray.from_arrays(headers.offsets, structs, type=type_, mask=empty)
