"""Runs streaming reads: without Spark, batch for batch in this process, and with it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_ottla import OttlaDataSource
from pyspark_ottla.streaming.reader import OttlaStreamReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Row = dict[str, Any]


class Stream:
    """A streaming query without Spark: calls the reader as Spark does, one batch at a time.

    In names of options, __ stands for a dot. `end` is what a checkpoint would hold of the last batch.
    """

    def __init__(self, end: dict[str, Any] | None = None, /, **options: Any) -> None:
        self._options = options
        self.end = end
        given = {name.replace("__", ".").lower(): str(value) for name, value in options.items()}
        source = OttlaDataSource(given)
        reader = source.streamReader(source.schema())
        assert isinstance(reader, OttlaStreamReader)
        self.reader = reader
        self.limit = reader.getDefaultReadLimit()

    def plan(self, *, everything: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
        """The start and the end of the next batch, as Spark would write them down."""
        start = self.reader.initialOffset() if self.end is None else self.end
        limit = ReadAllAvailable() if everything else self.limit
        end = self.reader.latestOffset(json.loads(json.dumps(start)), limit)
        return start, json.loads(json.dumps(end))

    def pieces(self, start: dict[str, Any], end: dict[str, Any]) -> list[list[Row]]:
        """What a batch reads, in each of Spark's partitions."""
        return [
            [row for batch in self.reader.read(piece) for row in batch.to_pylist()]
            for piece in self.reader.partitions(start, end)
        ]

    def batch(self, *, everything: bool = False) -> list[bytes]:
        """The values of the next batch; it is complete then."""
        start, end = self.plan(everything=everything)
        read = [row["value"] for piece in self.pieces(start, end) for row in piece]
        self.end = end
        return read

    def restarted(self, **options: Any) -> Stream:
        """The query, stopped and started again from its checkpoint; with further options."""
        return Stream(self.end, **(self._options | options))


@dataclass
class Run:
    """What a query of Spark's gave: the values of each batch, and Spark's report of each."""

    batches: list[list[bytes]] = field(default_factory=list)
    progress: list[Any] = field(default_factory=list)

    @property
    def values(self) -> list[bytes]:
        return [value for batch in self.batches for value in batch]


def stream(spark: SparkSession, format_: str = "ottla", **options: Any) -> DataFrame:
    """In names of options, __ stands for a dot."""
    reader = spark.readStream.format(format_)
    for name, value in options.items():
        reader = reader.option(name.replace("__", "."), value)
    return reader.load()


def started(frame: DataFrame, checkpoint: Path, run: Run, **trigger: Any) -> StreamingQuery:
    """A query that hands its batches over to `run`."""

    def keep(batch: DataFrame, _: int) -> None:
        rows = batch.select("value", "partition", "offset").collect()
        rows.sort(key=lambda row: (row["partition"], row["offset"]))
        run.batches.append([bytes(row["value"]) for row in rows])

    writer = frame.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(keep)
    if trigger:
        writer = writer.trigger(**trigger)
    return writer.start()


def available_now(frame: DataFrame, checkpoint: Path) -> Run:
    """Reads all there is now, and stops."""
    run = Run()
    query = started(frame, checkpoint, run, availableNow=True)
    query.awaitTermination()
    run.progress = list(query.recentProgress)
    return run
