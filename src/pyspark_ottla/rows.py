"""The rows that Spark gets: the schema of its own Kafka source, as Arrow batches.

The kernels decode straight into Spark's types, so that little is left to do for each batch. Two
things differ from Ottla's own rows, because they do in Spark's source: a record without headers has
null in place of an empty list, and one without a timestamp has that of -1 ms.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ottla.client.consumer.rows import RowsLayout
from ottla.client.positions import TopicPartition
from ottla.record.columns import Layout

MAX_ROWS: Final = 200_000
MAX_BYTES: Final = 32 * 1024 * 1024

_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_COLUMNS: Final = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)
_DECODED: Final = ("key", "value", "offset", "timestamp", "timestamp_type")
_NO_TIMESTAMP: Final = pa.scalar(-1000, pa.timestamp("us", "UTC"))


def spark_schema(include_headers: bool) -> StructType:
    """The schema of the DataFrames."""
    headers = [StructField("headers", ArrayType(_HEADER))] if include_headers else []
    return StructType([*_COLUMNS, *headers])


class SparkRows(RowsLayout):
    """Makes batches of Spark's schema of record batches."""

    def __init__(self, include_headers: bool) -> None:
        super().__init__()
        self.decoded = Layout(
            columns=(*_DECODED, "headers") if include_headers else _DECODED,
            timestamp_unit="us",
            timestamp_type=pa.int32(),
        )
        # Spark compares the schema of batches with this one.
        self.schema = to_arrow_schema(spark_schema(include_headers), timezone="UTC")

    def complete(self, rows: pa.RecordBatch, partition: TopicPartition) -> pa.RecordBatch:
        count = rows.num_rows
        timestamps = rows.column("timestamp")
        if timestamps.null_count:
            timestamps = pyarrow.compute.fill_null(timestamps, _NO_TIMESTAMP)
        columns = [
            rows.column("key"),
            rows.column("value"),
            pa.repeat(pa.scalar(partition.topic, pa.string()), count),
            pa.array(np.full(count, partition.partition, np.int32)),
            rows.column("offset"),
            timestamps,
            rows.column("timestamp_type"),
        ]
        if "headers" in self.schema.names:
            columns.append(_null_where_empty(rows.column("headers"), self.schema))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _null_where_empty(headers: pa.Array, schema: pa.Schema) -> pa.Array:
    type_ = schema.field("headers").type
    entries = headers.values
    fields = list(type_.value_type)
    structs = pa.StructArray.from_arrays(
        [entries.field("key"), entries.field("value")], fields=fields
    )
    empty = pyarrow.compute.equal(pyarrow.compute.list_value_length(headers), 0)
    return pa.ListArray.from_arrays(headers.offsets, structs, type=type_, mask=empty)
