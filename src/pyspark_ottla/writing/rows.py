"""Which columns of a DataFrame become what of a record.

    key        string or binary; records without the column have no key
    value      string or binary; needed
    topic      string; needed, unless the option topic names one, which wins
    partition  int; where it is null the partitioner chooses
    headers    array<struct<key string, value binary>>
    timestamp  timestamp; only with includeTimestamp, as Spark's own sink passes it over

Other columns are passed over, as Spark's own sink does.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_ottla.errors import SourceError
from pyspark_ottla.writing.options import SinkOptions

_HEADERS: Final = "array<struct<key:string,value:binary>>"


class UnfitRows(SourceError, ValueError):
    """The DataFrame, or one of its rows, cannot be written; the message names the column."""


class RecordColumns:
    """The columns that are written, checked against the DataFrame's schema."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        """Finds out how to read the rows. Raises UnfitRows."""
        self.topic = options.topic
        self._schema = schema
        names = ["key", "value", "partition", "headers"]
        if options.topic is None:
            names.append("topic")
        if options.include_timestamp:
            names.append("timestamp")
        self._check(options)
        self.chosen = [
            (index, each.name) for index, each in enumerate(schema.fields) if each.name in names
        ]

    def _check(self, options: SinkOptions) -> None:
        self._expect("key", "string or binary", StringType, BinaryType)
        if not self._expect("value", "string or binary", StringType, BinaryType):
            raise UnfitRows(
                "the DataFrame has no column value: that is what is written (key, topic, "
                "partition and headers may be there besides)"
            )
        self._expect("partition", "int", IntegerType)
        headers = self._find("headers")
        if headers is not None and not _are_headers(headers.dataType):
            raise self._wrong(headers, _HEADERS)
        if options.topic is None and not self._expect("topic", "string", StringType):
            raise UnfitRows("no topic: set the option topic, or give the DataFrame a column topic")
        if options.include_timestamp and not self._expect("timestamp", "timestamp", TimestampType):
            raise UnfitRows("includeTimestamp is true, and the DataFrame has no column timestamp")

    def _find(self, name: str) -> StructField | None:
        found = [each for each in self._schema.fields if each.name == name]
        if len(found) > 1:
            raise UnfitRows(f"the DataFrame has {len(found)} columns called {name}")
        return found[0] if found else None

    def _expect(self, name: str, wanted: str, *types: type[DataType]) -> bool:
        """Whether there is such a column; it must have one of the types."""
        column = self._find(name)
        if column is not None and not isinstance(column.dataType, types):
            raise self._wrong(column, wanted)
        return column is not None

    def _wrong(self, column: StructField, wanted: str) -> UnfitRows:
        given = column.dataType.simpleString()
        cast = f"; cast it, or use to_json({column.name})" if column.name == "value" else ""
        return UnfitRows(f"the column {column.name} must be {wanted}, and it is {given}{cast}")

    def records(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What of a batch of Spark's is written; UnfitRows where a row has no topic."""
        chosen = pa.RecordBatch.from_arrays(
            [batch.column(index) for index, _ in self.chosen],
            names=[name for _, name in self.chosen],
        )
        if self.topic is None and chosen.column("topic").null_count:
            raise UnfitRows(
                "the column topic is null in some row; set the option topic to write all rows to "
                "one topic"
            )
        return chosen


def _are_headers(given: DataType) -> bool:
    if not isinstance(given, ArrayType) or not isinstance(given.elementType, StructType):
        return False
    fields = given.elementType.fields
    return (
        [each.name for each in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, BinaryType)
    )
