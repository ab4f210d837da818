"""Topics as the tables of SQL.

A table that a query names and Spark does not know is a topic. It is loaded anew for every query,
because a DataFrame plans once where it ends. Columns of every topic:

    topic, partition, offset, timestamp, key, value

`key` and `value` are strings where the records that sampling looks at are UTF-8 in them, binary where
not. The fields of those values that are JSON objects are columns, too (see json_fields for the types),
and `_corrupt` is the value of a record that does not fit them: it is no JSON object, or a field is not
of its column's type, which is null there. Such records are counted while a query runs (`misfits`). A
field that has the name of another column is called `value_` and its name; of two fields whose names
differ in case alone the first is a column.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from ottla.client.admin.client import Admin
from ottla.client.consumer import Consumer
from ottla.client.errors import OttlaError, TopicNotFound
from ottla.pipeline.spark.session import register_source
from ottla.pipeline.sql.sampling import Sample, sampled

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, Observation, SparkSession
    from pyspark.sql.types import StructType

    from ottla.client.admin.topics import TopicDescription

RECORD_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value")
CORRUPT: Final = "_corrupt"
# What a decimal column takes.
_WHOLE_NUMBER: Final = r"^-?[0-9]{1,38}$"
_METRIC_PATIENCE: Final = (
    3.0  # seconds, after the end of a query, until Spark tells what it counted
)

_NOT_FOUND: Final = "TABLE_OR_VIEW_NOT_FOUND"
_NAME_PART: Final = re.compile(r"`((?:[^`]|``)*)`")
_KAFKA: Final = "kafka."

Bounds = Callable[[str], Mapping[str, str]]


class UnknownTable(OttlaError):
    """A query names a table that is no topic; the message says how topics are written."""


@dataclass(frozen=True)
class _Counted:
    """The records of a topic that do not fit its columns, counted while a query reads it."""

    topic: str
    name: str
    observation: Observation

    def count(self, acted: DataFrame | None) -> int:
        """How many; `acted` is the DataFrame whose rows were taken, if rows were."""
        if getattr(self.observation, "_jo", None) is None:  # over Connect the answer brings it
            return int(self.observation.get.get("misfits", 0))
        if acted is not None:
            metrics = acted._jdf.queryExecution().observedMetrics()
            return int(metrics.apply(self.name).getLong(0)) if metrics.contains(self.name) else 0
        # A part of the plan that Spark has found to be empty is never counted.
        future = self.observation._jo.future()  # type: ignore[union-attr]
        deadline = time.monotonic() + _METRIC_PATIENCE
        while not future.isCompleted() and time.monotonic() < deadline:
            time.sleep(0.01)
        return int(self.observation.get["misfits"]) if future.isCompleted() else 0


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
        self._client = {
            name.removeprefix(_KAFKA): value
            for name, value in options.items()
            if name.startswith(_KAFKA)
        }
        self._open = ExitStack()
        self._tables: list[str] = []
        self._counted: list[_Counted] = []
        self._remarks: list[str] = []

    def close(self) -> None:
        self.forget()
        self._open.close()

    @cached_property
    def _admin(self) -> Admin:
        return self._open.enter_context(Admin(self._client))

    @cached_property
    def _consumer(self) -> Consumer:
        return self._open.enter_context(Consumer(self._client))

    def warm(self) -> None:
        """Have Spark load what queries need; the first of them then waits for less of it."""
        from pyspark.sql.functions import avg, col, from_json

        register_source(self._spark)
        # Its options are looked at, nothing is read.
        self._spark.read.format("ottla").options(**self._options, subscribe="warm").load()
        texts = self._spark.range(0, 1000, 1, 2).selectExpr("concat('{\"n\": ', id, '}') AS value")
        parsed = texts.mapInArrow(_unchanged, "value string").select(
            from_json(col("value"), "n bigint").alias("fields")
        )
        last = (col("fields.n") % 10).alias("last")
        parsed.groupBy(last).agg(avg("fields.n").alias("mean")).orderBy("mean").collect()

    def topics(self) -> list[TopicDescription]:
        topics: list[TopicDescription] = self._admin.list_topics(internal=True)
        return topics

    def columns(self, topic: str) -> StructType:
        """The columns that a topic has as a table."""
        return self._table(topic, follow=False).schema

    def query(self, text: str, *, follow: bool = False, topics: Iterable[str] = ()) -> DataFrame:
        """A query over topics as they are now; with `follow`, over all that will come. `topics`: those
        among its tables, where that is known: Spark need not find out then."""
        from pyspark.errors import AnalysisException

        self.forget()
        for known in topics:
            self._add(known, follow)
        while True:
            try:
                return self._spark.sql(text)
            except AnalysisException as error:
                topic = _missing_table(error)
                if topic is None or topic in self._tables:
                    raise
            self._add(topic, follow)

    def _add(self, topic: str, follow: bool) -> None:
        table = self._table(topic, follow)
        # Spark parses the name of a view as one in a query.
        table.createOrReplaceTempView("`" + topic.replace("`", "``") + "`")
        self._tables.append(topic)

    def forget(self) -> None:
        """Let the next query load its topics anew."""
        while self._tables:
            self._spark.catalog.dropTempView(self._tables.pop())
        self._counted.clear()
        self._remarks.clear()

    def remarks(self) -> list[str]:
        """What is to be known of the topics of the last query, from the records looked at."""
        return list(self._remarks)

    def misfits(self, acted: DataFrame | None = None) -> list[str]:
        """What is to be known of the records that the last query has read: those that do not fit the
        columns of their topics. `acted` is the DataFrame whose rows were taken; None after a write."""
        lines = []
        for each in self._counted:
            count = each.count(acted)
            if count:
                records, do = ("1 record", "does") if count == 1 else (f"{count:,} records", "do")
                lines.append(
                    f"{records} of '{each.topic}' {do} not fit the columns: what does not fit is "
                    f"null, and `{CORRUPT}` has the value"
                )
        return lines

    def _table(self, topic: str, follow: bool) -> DataFrame:
        from pyspark.sql.functions import col

        try:
            records, sample = self._records(topic, follow)
        except TopicNotFound:
            raise UnknownTable(
                f"there is no topic '{topic}'; `ottla topic list` shows those there are"
            ) from None
        columns: dict[str, Column] = {name: col(name) for name in RECORD_COLUMNS}
        for name, found in (("key", sample.keys), ("value", sample.values)):
            if all(_is_text(each) for each in found):
                columns[name] = columns[name].cast("string")
        if "headers" in records.columns:
            columns["headers"] = col("headers")
        from ottla.pipeline.sql.json_fields import json_fields

        fields = json_fields(sample.values)
        if not fields.struct.fields:
            return records.select(*(column.alias(name) for name, column in columns.items()))
        if fields.refused and follow:
            self._remarks.append(
                f"{fields.refused:,} of the {len(sample.values):,} values of '{topic}' that were "
                f"looked at are no JSON objects; `{CORRUPT}` has them"
            )
        return self._with_fields(topic, records, columns, fields.struct, follow)

    def _records(self, topic: str, follow: bool) -> tuple[DataFrame, Sample]:
        """The rows of a topic as the source has them, and those by which its columns are found."""
        # A streaming query would begin at the end.
        start = {"startingOffsets": "earliest"}
        bounds = self._bounds(topic)
        options = {**start, **self._options, **bounds, "subscribe": topic}
        # The sample is of the whole topic, whatever part of it is read; and Spark's Connect has ways of
        # its own.
        if not (follow or bounds) and getattr(self._spark, "_jvm", None) is not None:
            from ottla.pipeline.sql.small_topics import small_topic
            from pyspark_ottla.schema import spark_schema

            small = small_topic(options)
            if small is not None:
                schema = spark_schema(small.options.include_headers)
                table = self._spark.createDataFrame(small.table(), schema)
                # In one task a query over so little is done soonest: nothing has to be exchanged.
                return table.coalesce(1), small.sample()
        sample = sampled(self._admin, self._consumer, topic)
        reader = self._spark.readStream if follow else self._spark.read
        if follow:  # where a query at the prompt would end
            options.pop("endingOffsets", None)
        register_source(self._spark)
        return reader.format("ottla").options(**options).load(), sample

    def _with_fields(
        self,
        topic: str,
        records: DataFrame,
        columns: dict[str, Column],
        struct: StructType,
        follow: bool,
    ) -> DataFrame:
        """The records with a column for each field, and with `_corrupt`."""
        from pyspark.sql import Observation
        from pyspark.sql.functions import col, count_if, from_json, when
        from pyspark.sql.types import DecimalType, StringType, StructField, StructType

        kept = {field.name.lower(): field for field in reversed(struct.fields)}
        fields = [field for field in struct.fields if kept[field.name.lower()] is field]
        for field in struct.fields:
            if kept[field.name.lower()] is not field:
                self._remarks.append(
                    f"the field '{field.name}' of '{topic}' is no column: its name differs from that "
                    f"of '{kept[field.name.lower()].name}' in case alone"
                )
        spoilt = CORRUPT
        while spoilt.lower() in kept:
            spoilt += "_"
        # Spark's parser rounds to a decimal what is none: it gives the text, which is looked at here.
        decimals = {each.name for each in fields if isinstance(each.dataType, DecimalType)}
        read = [
            StructField(each.name, StringType()) if each.name in decimals else each
            for each in fields
        ]
        schema = StructType([*read, StructField(spoilt, StringType())])
        text = col("value").cast("string")
        parsed = records.withColumn(
            "_fields", from_json(text, schema, {"columnNameOfCorruptRecord": spoilt})
        )
        misfit = text.isNotNull() & (
            col("_fields").isNull() | col("_fields").getField(spoilt).isNotNull()
        )
        for name in decimals:
            number = col("_fields").getField(name)
            misfit = misfit | (number.isNotNull() & ~number.rlike(_WHOLE_NUMBER))
        if not follow:
            name = f"ottla-{uuid.uuid4().hex}"
            observation = Observation(name)
            parsed = parsed.observe(observation, count_if(misfit).alias("misfits"))
            self._counted.append(_Counted(topic, name, observation))
        reserved = {*(name.lower() for name in columns), CORRUPT}
        used = set(reserved)
        for field in fields:
            name = f"value_{field.name}" if field.name.lower() in reserved else field.name
            while name.lower() in used:
                name += "_"
            used.add(name.lower())
            found = col("_fields").getField(field.name)
            if field.name in decimals:
                found = when(found.rlike(_WHOLE_NUMBER), found.try_cast(field.dataType))
            columns[name] = found
        columns[CORRUPT] = when(misfit, columns["value"])
        return parsed.select(*(column.alias(name) for name, column in columns.items()))


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
