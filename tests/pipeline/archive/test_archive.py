"""`ottla archive` on Spark: files and tables, through kills and lost checkpoints."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest
from pyspark.sql import SparkSession

from ottla import Admin, Consumer, Producer
from ottla.pipeline.archive import merging as archive_merging
from ottla.pipeline.archive.folder import ArchiveError
from ottla.pipeline.archive.job import ArchiveOptions, Archiving, archiving
from ottla.testing import BrokerProcess
from ottla.testing.guardian import end_with_this_program

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline_kit.reading import write_transactions

COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")
NOON = 1_773_489_600_000  # milliseconds, on 2026-03-14
FOREVER = {"retention.ms": "-1"}  # the records are of long ago
SOAK = int(os.environ.get("KILL_ROUNDS", "10"))

Rows = list[tuple[Any, ...]]


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_merging, "LISTING", 0.0)


def fill(broker: BrokerProcess, topic: str, count: int, first: int = 0) -> None:
    """Records over two partitions and two days, with nulls and headers."""
    with Producer(broker.bootstrap) as producer:
        for number in range(first, first + count):
            producer.send(
                topic,
                None if number % 11 == 0 else b"value %d" % number,
                key=None if number % 3 else b"%d" % number,
                partition=number % 2,
                timestamp=NOON + (number % 5) * 12_000_000,
                headers=[("n", b"%d" % number), ("none", None)] if number % 2 else None,
            )


def in_topic(broker: BrokerProcess, topic: str) -> Rows:
    with Consumer(broker.bootstrap) as consumer:
        return _sorted(consumer.read(topic).select(COLUMNS).to_pylist())


def _sorted(rows: list[dict[str, Any]]) -> Rows:
    found = []
    for row in rows:
        headers = [tuple(header.values()) for header in row["headers"] or ()]
        found.append((*(row[name] for name in COLUMNS[:-1]), tuple(headers)))
    return sorted(found, key=lambda row: row[:2])


def by_duckdb(folder: Path) -> Rows:
    connection = duckdb.connect()
    connection.sql("set timezone = 'UTC'")
    names = ", ".join(f'"{name}"' for name in COLUMNS)
    found = connection.sql(f"select {names} from '{folder}/**/*.parquet'")
    return _sorted(found.to_arrow_table().to_pylist())


def by_polars(folder: Path) -> Rows:
    frame = polars.scan_parquet(folder).select(COLUMNS).collect()
    return _sorted(frame.to_arrow().to_pylist())


def by_spark(spark: SparkSession, folder: Path) -> Rows:
    return _sorted(spark.read.parquet(str(folder)).select(*COLUMNS).toArrow().to_pylist())


def run(spark: SparkSession, options: ArchiveOptions) -> None:
    with archiving(spark, options) as query:
        query.awaitTermination()


def check(spark: SparkSession, broker: BrokerProcess, options: ArchiveOptions) -> None:
    expected = in_topic(broker, options.topic)
    assert by_duckdb(options.root) == expected
    assert by_polars(options.folder.rows) == expected
    assert by_spark(spark, options.root) == expected


def test_an_archive(
    spark: SparkSession, broker: BrokerProcess, admin: Admin, topic: str, tmp_path: Path
) -> None:
    """Run after run, with transactions among the records; small files are merged."""
    admin.create_topic(topic, 2, settings=FOREVER)
    options = ArchiveOptions(
        broker.bootstrap, topic, tmp_path / "archive", fewest=3, batch_rows=100
    )
    fill(broker, topic, 300)
    run(spark, options)
    assert [len(options.folder.files(date)) for date in ("2026-03-14", "2026-03-15")] == [2, 2]
    check(spark, broker, options)
    write_transactions(broker.bootstrap, topic)
    fill(broker, topic, 50, first=300)
    run(spark, options)
    check(spark, broker, options)
    files = options.folder.files("2026-03-14")
    assert len(files) == 4
    shutil.rmtree(options.folder.checkpoint)  # all is read again, and nothing is written
    run(spark, replace(options, batch_rows=10_000))
    assert options.folder.files("2026-03-14") == files
    assert spark.read.parquet(str(options.root)).where("date = '2026-03-15'").count() > 0


class Crash(Exception):
    """The driver dies here."""


@pytest.mark.parametrize(
    "kind",
    [
        "parquet",
        pytest.param("delta", marks=pytest.mark.long),
        pytest.param("iceberg", marks=pytest.mark.long),
    ],
)
def test_a_batch_whose_end_spark_does_not_hear_of(
    spark: SparkSession,
    broker: BrokerProcess,
    admin: Admin,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: Any,
) -> None:
    """The batch is done, and the driver dies before Spark's checkpoint says so: it runs again."""
    admin.create_topic(topic, 2, settings=FOREVER)
    fill(broker, topic, 200)
    options = ArchiveOptions(broker.bootstrap, topic, tmp_path / kind, kind)
    real = Archiving.write_batch

    def dying(self: Archiving, frame: Any, batch: int) -> None:
        real(self, frame, batch)
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Archiving, "write_batch", dying)
        with pytest.raises(Exception, match="Crash"):
            run(spark, options)
    fill(broker, topic, 100, first=200)
    run(spark, options)
    assert rows_of(options) == in_topic(broker, topic)


def rows_of(options: ArchiveOptions) -> Rows:
    match options.kind:
        case "delta":
            frame = polars.read_delta(str(options.folder.rows))
            return _sorted(frame.select(COLUMNS).to_arrow().to_pylist())
        case "iceberg":
            from ottla.pipeline.archive.iceberg import catalogue

            table = catalogue(options.root).load_table(("ottla", options.topic))
            return _sorted(table.scan(selected_fields=COLUMNS).to_arrow().to_pylist())
        case _:
            return by_duckdb(options.root)


def test_values_as_columns(
    spark: SparkSession, broker: BrokerProcess, admin: Admin, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 1, settings=FOREVER)
    with Producer(broker.bootstrap) as producer:
        for number in range(10):
            producer.send(topic, b'{"item": "pen", "price": %d}' % number, timestamp=NOON)
    source = {"valueFormat": "json", "valueSchema": "item STRING, price DOUBLE"}
    options = ArchiveOptions(broker.bootstrap, topic, tmp_path, source=source)
    run(spark, options)
    found = duckdb.connect().sql(
        f"select value.item, sum(value.price) from '{options.folder.rows}/**/*.parquet' group by 1"
    )
    assert found.fetchall() == [("pen", 45.0)]
    plain = ArchiveOptions(broker.bootstrap, topic, tmp_path)
    with pytest.raises(ArchiveError, match="another schema"):
        run(spark, plain)


@pytest.mark.long
def test_a_topic_that_was_made_anew(
    spark: SparkSession, broker: BrokerProcess, admin: Admin, topic: str, tmp_path: Path
) -> None:
    options = ArchiveOptions(broker.bootstrap, topic, tmp_path)
    for again in (False, True):
        admin.create_topic(topic, 2, settings=FOREVER)
        fill(broker, topic, 10)
        if again:
            with pytest.raises(ArchiveError, match="an earlier topic of this name"):
                run(spark, options)
        else:
            run(spark, options)
        admin.delete_topics(topic)


# Kills of the whole program


def job(broker: BrokerProcess, topic: str, root: Path, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ottla.cli.main", "archive", topic, "--to", str(root)]
    command += ["--server", broker.bootstrap, "--master", "local[2]", "--batch", "200"]
    environment = {**os.environ, "XDG_STATE_HOME": str(root.parent)}
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    end_with_this_program(process.pid)
    return process


def has_files(root: Path, process: subprocess.Popen[bytes], count: int) -> bool:
    """Wait until the archive has so many files, or the job is over; whether it has them."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        if sum(1 for _ in root.rglob("*.parquet")) >= count:
            return True
        time.sleep(0.01)
    return False


def kill_and_check(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path, rounds: int
) -> None:
    """kill -9 in the middle, `rounds` times; then to the end: the engines see what the topic has."""
    chance = random.Random(topic)
    root, log = tmp_path / "archive", tmp_path / "job.log"
    expected = in_topic(broker, topic)
    for _ in range(rounds):
        process = job(broker, topic, root, log)
        try:
            if has_files(root, process, 1 + sum(1 for _ in root.rglob("*.parquet"))):
                time.sleep(chance.random() / 2)
            assert process.poll() in (None, 0), log.read_text()
        finally:
            process.kill()  # the JVM follows when it sees that the program is gone
            process.wait()
        if any(root.rglob("*.parquet")):
            found = by_duckdb(root)
            assert len({row[:2] for row in found}) == len(found)
            assert set(found) <= set(expected)
            assert by_polars(root / topic) == found
    options = ArchiveOptions(broker.bootstrap, topic, root)
    run(spark, options)
    check(spark, broker, options)


@pytest.mark.long
@pytest.mark.timeout(300)  # Spark starts once more
def test_a_job_that_is_killed(
    spark: SparkSession, broker: BrokerProcess, admin: Admin, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 2, settings=FOREVER)
    fill(broker, topic, 1000)
    kill_and_check(spark, broker, topic, tmp_path, rounds=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_job_that_is_killed_again_and_again(
    spark: SparkSession, broker: BrokerProcess, admin: Admin, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 2, settings=FOREVER)
    fill(broker, topic, 20_000)
    kill_and_check(spark, broker, topic, tmp_path, rounds=SOAK)
