"""What Spark reads: the source `ottla` against Spark's own Kafka source, on both brokers.

`local[2]`, a topic of two partitions, batches of about 16 kB without compression, all of it read in one
batch query whose rows go, with all columns, into Spark's sink that drops them. Clock: the query, with
its plan. Spark's own source is measured with its defaults and with the settings that make it fast.

Beside that, the ceiling: a Python source that hands the same ready-made Arrow batch over again and
again. And the read of the broker's data folder (`path`), where the broker is ours to look into.

The column "Kafka" holds what ours is compared with; the setting names it.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from bench.harness.batch import Shape
from bench.harness.bench import Bench, Row
from bench.harness.broker import Broker, ManagedBroker
from bench.harness.load.fetch import Filled
from bench.harness.load.produce import Setting
from bench.harness.results import KAFKA, OTTLA, Measurement, Target
from bench.spark.sources import (
    OFFICIAL,
    OURS,
    TUNED,
    Source,
    ceiling_frame,
    seconds_to_read,
    spark_session,
    topic_frame,
    turns,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES = 2
FOLDER = "path"
CEILING = "the ceiling"
BATCH = 8 << 20  # bytes of the ceiling's batches, about those that our source makes
SCALES = ((1, 1), (1, 2), (2, 1), (2, 2), (2, 4), (2, 8))  # cores, partitions


class Case(NamedTuple):
    name: str
    claim: str
    shape: Shape
    size: int  # bytes in the topic


CASES = (
    Case("spark-read-100B", "batch read of 100 B records", Shape(150, 100), 640 << 20),
    Case("spark-read-1kB", "batch read of 1 kB records", Shape(16, 1000), 1 << 30),
)


def partitioned(partitions: int) -> Setting:
    return Setting("spark", version=12, acks=-1, idempotent=True, partitions=partitions)


def bootstrap_of(broker: Broker) -> str:
    host, port = broker.address
    return f"{host}:{port}"


Contender = Callable[[], float]  # reads everything; records/s


def _contenders(
    spark: SparkSession, broker: Broker, filled: Filled, sources: tuple[Source, ...]
) -> dict[str, Contender]:
    records = filled.end * filled.partitions
    size, parts = filled.shape.size, filled.partitions

    def read_topic(source: Source) -> float:
        frame = topic_frame(spark, source, bootstrap_of(broker), filled.topic)
        return records / seconds_to_read(frame)

    def read_ceiling() -> float:
        batch = BATCH // size
        frame = ceiling_frame(spark, rows=filled.end, size=size, partitions=parts, batch=batch)
        return records / seconds_to_read(frame)

    def read_folder(data: str) -> float:
        reader = spark.read.format("ottla").option("subscribe", filled.topic)
        return records / seconds_to_read(reader.load(data))

    found: dict[str, Contender] = {
        source.name: functools.partial(read_topic, source) for source in sources
    }
    found[CEILING] = read_ceiling
    if isinstance(broker, ManagedBroker):
        found[FOLDER] = functools.partial(read_folder, str(broker.data))
    return found


def _one_broker(bench: Bench, case: Case, spark: SparkSession, broker: Broker) -> list[Measurement]:
    filled = bench.filled_topic(
        broker, case.shape, partitioned(CORES), case.size // (4 if bench.quick else 1)
    )
    with broker.blamed():
        contenders = _contenders(spark, broker, filled, (OURS, OFFICIAL, TUNED))
        figures = turns(contenders, bench.rounds)
    broker.forget(filled.topic)

    def compared(ours: str, other: str, target: Target | None) -> Measurement:
        return Measurement(
            row=case.name,
            setting=f"broker {broker.name}, {'' if ours == OURS.name else f'{ours}, '}{other}",
            what=case.claim,
            unit="records/s",
            higher_is_better=True,
            values={OTTLA: figures[ours], KAFKA: figures[other]},
            target=target,
        )

    found = [
        compared(OURS.name, OFFICIAL.name, Target(2.0, 3.0)),
        compared(OURS.name, TUNED.name, Target(1.5, 2.0)),
        compared(OURS.name, CEILING, None),
    ]
    if FOLDER in figures:
        found.append(compared(FOLDER, CEILING, Target(0.8, 1.0)))
    return found


def _run(case: Case, bench: Bench) -> list[Measurement]:
    brokers = bench.pair("tmpfs")
    with spark_session(CORES) as spark:
        return [figure for broker in brokers for figure in _one_broker(bench, case, spark, broker)]


def _scale(bench: Bench) -> list[Measurement]:
    """How the figures grow with cores and partitions."""
    broker = bench.pair("tmpfs")[0]
    case = CASES[0]
    size = case.size // (8 if bench.quick else 2)
    found = []
    for cores, scales in itertools.groupby(SCALES, key=operator.itemgetter(0)):
        with spark_session(cores) as spark:
            for _, partitions in scales:
                filled = bench.filled_topic(broker, case.shape, partitioned(partitions), size)
                with broker.blamed():
                    contenders = _contenders(spark, broker, filled, (OURS, TUNED))
                    for name in (CEILING, FOLDER):
                        contenders.pop(name, None)
                    figures = turns(contenders, bench.rounds)
                broker.forget(filled.topic)
                found.append(
                    Measurement(
                        row="spark-read-scale",
                        setting=f"{cores} cores, {partitions} partitions, {TUNED.name}",
                        what=case.claim,
                        unit="records/s",
                        higher_is_better=True,
                        values={OTTLA: figures[OURS.name], KAFKA: figures[TUNED.name]},
                    )
                )
    return found


ROWS = (
    *(Row(case.name, case.claim, functools.partial(_run, case), heavy=True) for case in CASES),
    Row("spark-read-scale", "batch read by cores and partitions", _scale, heavy=True),
)
