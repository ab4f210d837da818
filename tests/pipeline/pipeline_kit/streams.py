"""A streaming query whose output tells at a glance whether every row was written once.

Its source makes the same rows for a batch whenever it is asked: numbers from 0 on. So a topic must hold
all numbers up to some batch's last, each once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from ottla import Consumer

ROWS = 30  # in a batch
TASKS = 3


@dataclass(frozen=True)
class Numbers:
    """The query: numbers to a topic."""

    spark: SparkSession
    bootstrap: str
    topic: str
    checkpoint: Path
    options: dict[str, str] = field(default_factory=dict)

    def start(self, options: dict[str, str] | None = None, *, once: bool = False) -> StreamingQuery:
        """One more run of it, which ends by itself if it is to run `once`.

        `options` are those of a fault.
        """
        options = options or {}
        trigger = {"availableNow": True} if once else {"processingTime": "0 seconds"}
        rows = (
            self.spark.readStream.format("rate-micro-batch")
            .options(rowsPerBatch=ROWS, numPartitions=TASKS)
            .load()
            .selectExpr("CAST(value AS STRING) AS key", "CAST(value AS STRING) AS value")
        )
        return (
            rows.writeStream.format("ottla-faulty" if "fault" in options else "ottla")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("topic", self.topic)
            .option("checkpointLocation", str(self.checkpoint))
            .options(**self.options, **options)
            .trigger(**trigger)
            .start()
        )

    def run_until(self, batch: int, options: dict[str, str] | None = None) -> int:
        """Start it again and again until this batch is done; how often it failed."""
        failures = 0
        while True:
            query = self.start(options)
            try:
                wait_for(query, batch)
            except StreamingQueryException:
                failures += 1
                continue
            finally:
                query.stop()
            return failures

    def finish(self) -> None:
        """Do what is unfinished, and one more batch."""
        query = self.start(once=True)
        assert query.awaitTermination(60)

    def written(self) -> list[int]:
        """What counts, sorted."""
        with Consumer(self.bootstrap) as consumer:
            values = consumer.read(self.topic, columns=["value"])["value"].to_pylist()
        return sorted(map(int, values))

    def check(self, batches: int) -> None:
        """At least so many batches were written, every row of them once, and nothing besides."""
        written = self.written()
        assert written == list(range(len(written)))
        assert len(written) % ROWS == 0
        assert len(written) >= batches * ROWS


def wait_for(query: StreamingQuery, batch: int) -> None:
    """Until the query has done this batch. Raises what it failed with."""
    deadline = time.monotonic() + 60
    while not any(each["batchId"] >= batch for each in query.recentProgress):
        if not query.isActive:
            problem = query.exception()
            assert problem is not None, "the query ended by itself"
            raise problem
        assert time.monotonic() < deadline, f"batch {batch} did not come to an end"
        time.sleep(0.02)
