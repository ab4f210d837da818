"""Where the rows of a query go: to a topic, to a folder of Parquet files, or to a program's function.

To a topic, a result whose columns are all of `key`, `value`, `headers`, `partition` and `topic`, with
`value` among them, is written as it is. The rows of any other become JSON objects of their columns, of
all but `key`, which is the record's key if there is one.

A folder appears when a batch query is done, as a whole; it must not be there before. A streaming query
adds to it (`_spark_metadata` in it tells Spark which files count).
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ottla.client.errors import OttlaError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_OF_RECORDS: Final = frozenset({"key", "value", "headers", "partition", "topic"})
_MODE_REFUSED: Final = "STREAMING_OUTPUT_MODE"
_NO_FILE_SYSTEM: Final = re.compile(
    r"ClassNotFoundException: Class org\.apache\.hadoop\.fs\.|UnsupportedFileSystemException"
)


class TargetError(OttlaError):
    """Rows cannot go where they are to go; the message says why."""


def as_records(rows: DataFrame) -> DataFrame:
    """Rows as records for the sink; see the module."""
    from pyspark.sql.functions import col, struct, to_json

    check_names(rows)
    names = set(rows.columns)
    if "value" in names and names <= _OF_RECORDS:
        return rows
    fields = [name for name in rows.columns if name != "key"]
    if not fields:
        raise TargetError("the query has no columns but `key`; what is to be the value?")
    quoted = ["`" + name.replace("`", "``") + "`" for name in fields]
    columns: list[Column] = [to_json(struct(*quoted)).alias("value")]
    if "key" in names:
        key = col("key")
        binary = dict(rows.dtypes)["key"] == "binary"
        columns.insert(0, (key if binary else key.cast("string")).alias("key"))
    return rows.select(*columns)


def check_names(rows: DataFrame) -> None:
    """Raise TargetError for columns of one name: of a JSON object's fields readers take the last."""
    names = rows.columns
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise TargetError(f"several columns are called '{twice}'; name each with AS")


def is_folder(target: str) -> bool:
    """Whether rows that are to go there go to a folder, and not to a topic."""
    return "/" in target or target in (".", "..")


def write_rows_to(rows: DataFrame, target: str, options: Mapping[str, str]) -> None:
    """Write to a folder, or append to a topic."""
    if is_folder(target):
        write_to_folder(rows, target)
    else:
        write_to_topic(rows, options, target)


def write_to_topic(rows: DataFrame, options: Mapping[str, str], topic: str) -> None:
    """Append to a topic, which is there."""
    writer = as_records(rows).write.format("ottla").mode("append")
    writer.options(**client_options(options)).option("topic", topic).save()


def write_to_folder(rows: DataFrame, folder: str) -> None:
    """Parquet files in a folder, which appears when all of them are there.

    In a file system that is not this machine's (an address, or Spark Connect) Spark writes to the
    place itself, and the file _SUCCESS tells that it is done.
    """
    from pyspark.sql.utils import is_remote

    if "://" in folder or is_remote():
        try:
            rows.write.mode("error").parquet(folder)  # Connect knows no "errorifexists"
        except Exception as error:
            if _NO_FILE_SYSTEM.search(str(error)) is None:
                raise
            scheme = folder.partition("://")[0]
            raise TargetError(
                f"Spark has nothing to write {scheme}:// with; name the packages with --conf "
                "spark.jars.packages=…, which is org.apache.hadoop:hadoop-aws for s3a"
            ) from None
        return
    target = Path(folder)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise TargetError(f"{folder} is there already; name a folder that is new or empty")
    target.parent.mkdir(parents=True, exist_ok=True)
    being_written = Path(tempfile.mkdtemp(".writing", f".{target.name}-", target.parent))
    try:
        rows.write.mode("overwrite").parquet(str(being_written))
        being_written.chmod(0o755)
        being_written.replace(target)
    finally:
        shutil.rmtree(being_written, ignore_errors=True)


def follow_to_topic(
    rows: DataFrame, options: Mapping[str, str], topic: str, checkpoint: str
) -> StreamingQuery:
    """Append results to a topic as they come; of aggregations, those that have changed."""
    from pyspark_ottla.writing.batches import write_batches

    sink = {**client_options(options), "topic": topic}
    records = as_records(rows)

    def writer() -> DataStreamWriter:
        return records.writeStream.option("checkpointLocation", checkpoint)

    try:
        return start({"append": writer().format("ottla").options(**sink)})
    except ModeRefused:
        changed = writer().foreachBatch(write_batches(sink))
        return start({"update": changed, "complete": changed})


def follow_to_folder(rows: DataFrame, folder: str, checkpoint: str) -> StreamingQuery:
    writer = rows.writeStream.format("parquet").option("path", folder)
    try:
        return start({"append": writer.option("checkpointLocation", checkpoint)})
    except ModeRefused as error:
        raise TargetError(
            "results that change (aggregations) cannot be followed into a folder of files; "
            "follow them into a topic, or leave --follow away"
        ) from error


def follow_to_functions(
    rows: DataFrame, handlers: Mapping[str, Callable[[DataFrame, int], None]]
) -> StreamingQuery:
    """Hand every batch to the function of the first output mode that suits the query."""
    from pyspark.sql.utils import is_remote

    if is_remote():
        raise TargetError(
            "over Spark Connect a query that follows can write to a topic or a folder only (--to)"
        )
    return start({mode: rows.writeStream.foreachBatch(handle) for mode, handle in handlers.items()})


class ModeRefused(Exception):
    """Spark offers none of the output modes that were tried for this query."""


def start(writers: Mapping[str, DataStreamWriter]) -> StreamingQuery:
    """Start a query in the first of these output modes that Spark offers for it."""
    from pyspark.errors import AnalysisException

    refused: AnalysisException | None = None
    for mode, writer in writers.items():
        try:
            return writer.outputMode(mode).start()
        except AnalysisException as error:
            if not (error.getCondition() or "").startswith(_MODE_REFUSED):
                raise
            refused = refused or error
    raise ModeRefused(str(refused)) from refused


def client_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options of the source that say where and how to connect."""
    return {name: value for name, value in options.items() if name.startswith("kafka.")}
