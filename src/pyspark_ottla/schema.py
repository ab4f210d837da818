"""The schema of what Spark reads: that of its own Kafka source, or with decoded values."""

from __future__ import annotations

from typing import Final

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

from pyspark_ottla.values.options import ValueOptions

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


def spark_schema(include_headers: bool, values: ValueOptions | None = None) -> StructType:
    """The schema of the DataFrames; with `values` (settled), that of decoded ones."""
    headers = [StructField("headers", ArrayType(_HEADER))] if include_headers else []
    if values is None:
        return StructType([*_COLUMNS, *headers])
    from pyspark_ottla.values.columns import corrupt_field, value_field

    key, _, *others = _COLUMNS
    return StructType([key, value_field(values), *others, *headers, corrupt_field()])
