"""Topics as the tables of SQL.

A table that a query names and Spark does not know is a topic. It is loaded anew for every query,
because a DataFrame plans once where it ends. Columns of every topic:

    topic, partition, offset, timestamp, key, value

`key` and `value` are strings where the newest records of the topic are UTF-8 in them, binary where not.
If their values are JSON objects, every field is a column, too (see json_fields for the types). A field
that has the name of one of the six columns is called `value_` and its name; of two fields whose names
differ in case alone the first is a column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from ottla.client.admin.client import Admin
from ottla.client.consumer import Consumer
from ottla.client.errors import OttlaError, TopicNotFound

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from ottla.client.admin.topics import TopicDescription

RECORD_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value")
SAMPLE: Final = 1000  # of the newest records, all partitions together

_NOT_FOUND: Final = "TABLE_OR_VIEW_NOT_FOUND"
_NAME_PART: Final = re.compile(r"`((?:[^`]|``)*)`")
_KAFKA: Final = "kafka."

Bounds = Callable[[str], Mapping[str, str]]


class UnknownTable(OttlaError):
    """A query names a table that is no topic; the message says how topics are written."""


class TopicTables:
    """The topics of a cluster as tables of a Spark session.

    `options` are those of the source; `bounds` gives more of them for a topic (where to begin, where to
    end).
    """

    def __init__(
        self, spark: SparkSession, options: Mapping[str, str], bounds: Bounds | None = None
    ) -> None:
        self._spark = spark
        self._options = dict(options)
        self._bounds: Bounds = bounds or (lambda topic: {})  # noqa: ARG005
        client = {
            name.removeprefix(_KAFKA): value
            for name, value in options.items()
            if name.startswith(_KAFKA)
        }
        self._admin = Admin(client)
        self._consumer = Consumer(client)
        self._tables: list[str] = []

    def close(self) -> None:
        self.forget()
        self._consumer.close()
        self._admin.close()

    def warm(self) -> None:
        """Have Spark load what queries need; the first of them then waits for less of it."""
        from pyspark.sql.functions import avg, col, from_json

        # Its options are looked at, nothing is read.
        self._spark.read.format("ottla").options(**self._options, subscribe="warm").load()
        texts = self._spark.range(0, 1000, 1, 2).selectExpr("concat('{\"n\": ', id, '}') AS value")
        parsed = texts.mapInArrow(_unchanged, "value string").select(
            from_json(col("value"), "n bigint").alias("fields")
        )
        last = (col("fields.n") % 10).alias("last")
        parsed.groupBy(last).agg(avg("fields.n").alias("mean")).orderBy("mean").collect()

    def topics(self) -> list[TopicDescription]:
        topics: list[TopicDescription] = self._admin.list_topics()
        return topics

    def columns(self, topic: str) -> StructType:
        """The columns that a topic has as a table."""
        return self._table(topic, follow=False).schema

    def query(self, text: str, *, follow: bool = False) -> DataFrame:
        """A query over topics as they are now; with `follow`, over all that will come."""
        from pyspark.errors import AnalysisException

        self.forget()
        while True:
            try:
                return self._spark.sql(text)
            except AnalysisException as error:
                topic = _missing_table(error)
                if topic is None or topic in self._tables:
                    raise
            table = self._table(topic, follow)
            # Spark parses the name of a view as one in a query.
            table.createOrReplaceTempView("`" + topic.replace("`", "``") + "`")
            self._tables.append(topic)

    def forget(self) -> None:
        """Let the next query load its topics anew."""
        while self._tables:
            self._spark.catalog.dropTempView(self._tables.pop())

    def _table(self, topic: str, follow: bool) -> DataFrame:
        from pyspark.sql.functions import col, from_json

        sample = self._sample(topic)
        values = [value for value in sample["value"].to_pylist() if value is not None]
        reader = self._spark.readStream if follow else self._spark.read
        # A streaming query would begin at the end.
        start = {"startingOffsets": "earliest"}
        options = {**start, **self._options, **self._bounds(topic), "subscribe": topic}
        records = reader.format("ottla").options(**options).load()
        columns: dict[str, Column] = {name: col(name) for name in RECORD_COLUMNS}
        for name, found in (("key", sample["key"].to_pylist()), ("value", values)):
            if all(_is_text(each) for each in found if each is not None):
                columns[name] = columns[name].cast("string")
        if "headers" in records.columns:
            columns["headers"] = col("headers")
        from ottla.pipeline.sql.json_fields import json_fields

        fields = json_fields(values)
        if fields is None:
            return records.select(*(column.alias(name) for name, column in columns.items()))
        taken = {name.lower() for name in columns}
        parsed = records.withColumn("_fields", from_json(columns["value"], fields))
        for field in fields.fieldNames():
            name = f"value_{field}" if field.lower() in RECORD_COLUMNS else field
            if name.lower() not in taken:
                taken.add(name.lower())
                columns[name] = col("_fields").getField(field)
        return parsed.select(*(column.alias(name) for name, column in columns.items()))

    def _sample(self, topic: str) -> pa.Table:
        try:
            partitions = len(self._admin.describe_topics(topic)[topic].partitions)
            newest = -max(1, SAMPLE // max(1, partitions))
            sample: pa.Table = self._consumer.read(topic, newest, columns=["key", "value"])
        except TopicNotFound:
            raise UnknownTable(
                f"there is no topic '{topic}'; `ottla topic list` shows those there are"
            ) from None
        return sample


def _missing_table(error: object) -> str | None:
    """The topic that a query wants, if that is why it failed."""
    from pyspark.errors import AnalysisException

    assert isinstance(error, AnalysisException)
    if error.getCondition() != _NOT_FOUND:
        return None
    name = (error.getMessageParameters() or {}).get("relationName", "")
    parts = [part.replace("``", "`") for part in _NAME_PART.findall(name)]
    if len(parts) > 1:
        topic = ".".join(parts)
        raise UnknownTable(f"a topic with a dot in its name is written `{topic}`, in backticks")
    return parts[0] if parts else None


def _unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
