"""A Spark session for the benchmarks, Spark's own Kafka source beside Ottla's, and the ceiling of both.

The jars of Spark's own source come from Maven Central once, into the cache folder of `bench.peer`, or
from the folder that `SPARK_KAFKA_JARS` names.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from bench import peer
from bench.harness.errors import BenchError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Figure = TypeVar("Figure")

CONNECTOR_VERSION = "4.2.0"
# Those that work with the Spark that is installed.
CONNECTOR = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR_VERSION}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
_MAVEN_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"


class Source(NamedTuple):
    """One way to read a topic in Spark."""

    name: str
    format: str
    options: Mapping[str, str] = {}


OURS = Source("ottla", "ottla")
OFFICIAL = Source("Spark's own, defaults", "kafka")
TUNED = Source(
    "Spark's own, tuned",
    "kafka",
    {
        "kafka.max.poll.records": "10000",
        "kafka.max.partition.fetch.bytes": "8388608",
        "kafka.fetch.min.bytes": "1000000",
    },
)


def unavailable() -> str | None:
    """Why there can be no session here; None when there can."""
    from ottla.pipeline.spark.java import JavaMissing, java_home

    if importlib.util.find_spec("pyspark") is None:
        return "PySpark is not installed"
    try:
        java_home()
    except JavaMissing as missing:
        return str(missing)
    return None


def connector_jars() -> list[Path]:
    """The jars of Spark's own source; fetched when they are not there."""
    given = os.environ.get("SPARK_KAFKA_JARS")
    folder = Path(given) if given else peer.cache_folder() / f"spark-kafka-{CONNECTOR_VERSION}"
    if not folder.is_dir():
        if shutil.which("mvn") is None:
            raise BenchError(f"no Maven to fetch Spark's Kafka source with, and none in {folder}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix="spark-kafka-", dir=folder.parent))
        for artifact in CONNECTOR:
            command = ["mvn", "--quiet", "--batch-mode", _MAVEN_COPY, f"-Dartifact={artifact}"]
            fetched = subprocess.run(
                [*command, f"-DoutputDirectory={partial}"], capture_output=True, text=True
            )
            if fetched.returncode:
                raise BenchError(f"Maven could not fetch {artifact}:\n{fetched.stdout[-2000:]}")
        partial.rename(folder)
    jars = sorted(folder.glob("*.jar"))
    if len(jars) < len(CONNECTOR):
        raise BenchError(f"{folder} lacks jars of Spark's Kafka source")
    return jars


@contextlib.contextmanager
def spark_session(cores: int) -> Iterator[SparkSession]:
    """A session on so many cores, with both sources and the ceiling's; stopped in the end."""
    if reason := unavailable():
        raise BenchError(reason)
    from bench.spark.ceiling import Ceiling
    from ottla.pipeline import session

    jars = connector_jars()
    with tempfile.TemporaryDirectory(prefix="ottla-bench-spark-") as folder:
        spark = session(
            f"local[{cores}]",
            settings={
                "spark.ui.enabled": "false",
                "spark.jars": ",".join(map(str, jars)),
                "spark.local.dir": folder,
                "spark.sql.warehouse.dir": f"{folder}/warehouse",
                "spark.sql.shuffle.partitions": str(cores),
                "spark.log.level": "OFF",
            },
        )
        try:
            spark.dataSource.register(Ceiling)
            yield spark
        finally:
            spark.stop()


def topic_frame(spark: SparkSession, source: Source, bootstrap: str, topic: str) -> DataFrame:
    reader = spark.read.format(source.format).options(**source.options)
    return reader.option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()


def topic_stream(spark: SparkSession, source: Source, bootstrap: str, topic: str) -> DataFrame:
    """From the first record on."""
    reader = spark.readStream.format(source.format).options(**source.options)
    reader = reader.option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    return reader.option("startingOffsets", "earliest").load()


def seconds_to_read(frame: DataFrame) -> float:
    """Every row, with all its columns, into Spark's sink that drops them."""
    begin = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin


def turns(
    contenders: Mapping[str, Callable[[], Figure]], rounds: int, *, warm_up: int = 1
) -> dict[str, list[Figure]]:
    """What each contender says in each round; their order turns. A JVM compiles what it has seen
    often, so the first rounds do not count."""
    figures: dict[str, list[Figure]] = {name: [] for name in contenders}
    for number in range(-warm_up, rounds):
        for name in list(contenders)[:: 1 if number % 2 == 0 else -1]:
            figure = contenders[name]()
            if number >= 0:
                figures[name].append(figure)
    return figures


def ceiling_frame(spark: SparkSession, **options: Any) -> DataFrame:
    return spark.read.format("ceiling").options(**options).load()
