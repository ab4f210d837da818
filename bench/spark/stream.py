"""What Spark streams and writes: the source and sink `ottla` beside Spark's own, on Ottla's broker.

Throughput: a topic of two partitions, read from its beginning by an available-now query in one large
micro-batch into Spark's sink that drops rows. Two clocks: that of Spark's own progress report, for the
micro-batch with its plan and its logs; and the query from start to end. Their difference is the start of
a query, where Spark starts a Python process to plan for a source in Python.

Latency: one record after the other, each produced when the one before has been seen. Clock: from
the call that produces it until a micro-batch with it has been counted on the driver.

Writes: rows that Spark generates, into a new topic. Clock: the query.

The column "Kafka" holds the figures of Spark's own.
"""

from __future__ import annotations

import functools
import queue
import random
import tempfile
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.harness.batch import Shape
from bench.harness.bench import Bench, Row
from bench.harness.errors import BenchError
from bench.harness.results import KAFKA, OTTLA, Measurement, Target
from bench.spark.read import CORES, bootstrap_of, partitioned
from bench.spark.sources import (
    OFFICIAL,
    OURS,
    TUNED,
    Source,
    spark_session,
    topic_stream,
    turns,
)
from ottla import Producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PATIENCE = 120.0  # seconds
SEEN_ONE_BY_ONE = 20  # records in a round
WARM_UP = 3  # rounds of streaming reads, whose sources share no code that a JVM could have compiled


class Case(NamedTuple):
    name: str
    shape: Shape
    size: int  # bytes


class Speed(NamedTuple):
    """Of one query, in records/s."""

    batch: float  # of its micro-batches
    query: float  # from its start to its end


READS = (
    Case("spark-stream-100B", Shape(150, 100), 640 << 20),
    Case("spark-stream-1kB", Shape(16, 1000), 1 << 30),
)
WRITES = (
    Case("spark-write-100B", Shape(150, 100), 200 << 20),
    Case("spark-write-1kB", Shape(16, 1000), 512 << 20),
)


def _throughput(case: Case, bench: Bench) -> list[Measurement]:
    broker = bench.pair("tmpfs")[0]
    size = case.size // (4 if bench.quick else 1)
    filled = bench.filled_topic(broker, case.shape, partitioned(CORES), size)

    records = filled.end * filled.partitions

    def read(spark: SparkSession, source: Source) -> Speed:
        frame = topic_stream(spark, source, bootstrap_of(broker), filled.topic)
        with tempfile.TemporaryDirectory(prefix="ottla-bench-stream-") as folder:
            writer = frame.writeStream.format("noop").option("checkpointLocation", folder)
            begin = time.perf_counter()
            query = writer.trigger(availableNow=True).start()
            if not query.awaitTermination(int(PATIENCE)):
                query.stop()
                raise BenchError(f"{source.name} did not end in {PATIENCE:.0f} s")
            taken = time.perf_counter() - begin
            batches = sum(each.durationMs["triggerExecution"] for each in query.recentProgress)
            return Speed(batch=records * 1000 / batches, query=records / taken)

    with spark_session(CORES) as spark, broker.blamed():
        figures = turns(
            {each.name: functools.partial(read, spark, each) for each in (OURS, OFFICIAL, TUNED)},
            bench.rounds,
            warm_up=WARM_UP,
        )
    broker.forget(filled.topic)
    batches = {name: [each.batch for each in rounds] for name, rounds in figures.items()}
    queries = {name: [each.query for each in rounds] for name, rounds in figures.items()}
    return [
        _measurement(case.name, other, what, "records/s", speeds, target)
        for other, least in ((OFFICIAL, Target(1.5, 2.0)), (TUNED, Target(1.0, 1.5)))
        for what, speeds, target in (
            ("streaming read, one large micro-batch", batches, least),
            ("streaming query of one large micro-batch, with its start", queries, None),
        )
    ]


def _latency(bench: Bench) -> list[Measurement]:
    broker = bench.pair("tmpfs")[0]
    count = SEEN_ONE_BY_ONE // (2 if bench.quick else 1)

    def measure(spark: SparkSession, source: Source) -> float:
        """The median of one round, in milliseconds."""
        topic = bench.new_topic(broker, CORES)
        seen: queue.SimpleQueue[int] = queue.SimpleQueue()

        def note(batch: DataFrame, _: int) -> None:
            seen.put(batch.count())

        frame = topic_stream(spark, source, bootstrap_of(broker), topic)
        with (
            tempfile.TemporaryDirectory(prefix="ottla-bench-stream-") as folder,
            Producer(bootstrap_of(broker), linger_ms=0) as producer,
        ):
            query = (
                frame.writeStream.foreachBatch(note).option("checkpointLocation", folder).start()
            )
            try:
                _send_and_see(producer, topic, seen)  # the first batches of a query take longer
                _send_and_see(producer, topic, seen)
                taken = sorted(_send_and_see(producer, topic, seen) for _ in range(count))
            finally:
                query.stop()
        broker.forget(topic, wait=False)
        return taken[len(taken) // 2] * 1000

    with spark_session(CORES) as spark, broker.blamed():
        figures = turns(
            {each.name: functools.partial(measure, spark, each) for each in (OURS, OFFICIAL)},
            bench.rounds,
        )
    what = "from produce to a counted micro-batch, median of a round"
    found = _measurement("spark-stream-latency", OFFICIAL, what, "ms", figures)
    found.higher_is_better = False
    return [found]


def _send_and_see(producer: Producer, topic: str, seen: queue.SimpleQueue[int]) -> float:
    time.sleep(random.uniform(0.0, 0.2))  # at any time of a trigger's round
    begin = time.perf_counter()
    producer.send(topic, b"x" * 100).result()
    while not seen.get(timeout=PATIENCE):
        pass  # a batch of no records
    return time.perf_counter() - begin


def _written(case: Case, bench: Bench) -> list[Measurement]:
    broker = bench.pair("tmpfs")[0]
    records = case.size // case.shape.size // (4 if bench.quick else 1)

    def write(spark: SparkSession, source: Source) -> float:
        topic = bench.new_topic(broker, CORES)
        frame = spark.range(0, records, 1, CORES).selectExpr(
            "CAST(id AS STRING) AS key",
            f"rpad(CAST(id AS STRING), {case.shape.size}, 'x') AS value",
        )
        writer: Any = frame.write.format(source.format).mode("append").option("topic", topic)
        begin = time.perf_counter()
        writer.option("kafka.bootstrap.servers", bootstrap_of(broker)).save()
        taken = time.perf_counter() - begin
        broker.forget(topic)
        return records / taken

    with spark_session(CORES) as spark, broker.blamed():
        figures = turns(
            {each.name: functools.partial(write, spark, each) for each in (OURS, OFFICIAL)},
            bench.rounds,
        )
    target = Target(1.0, 1.0)
    return [_measurement(case.name, OFFICIAL, "batch write", "records/s", figures, target)]


def _measurement(
    row: str,
    other: Source,
    what: str,
    unit: str,
    figures: dict[str, list[float]],
    target: Target | None = None,
) -> Measurement:
    return Measurement(
        row=row,
        setting=other.name,
        what=what,
        unit=unit,
        higher_is_better=True,
        values={OTTLA: figures[OURS.name], KAFKA: figures[other.name]},
        target=target,
    )


ROWS = (
    *(
        Row(each.name, "streaming read", functools.partial(_throughput, each), heavy=True)
        for each in READS
    ),
    Row("spark-stream-latency", "a record from produce to micro-batch", _latency, heavy=True),
    *(
        Row(each.name, "batch write", functools.partial(_written, each), heavy=True)
        for each in WRITES
    ),
)
