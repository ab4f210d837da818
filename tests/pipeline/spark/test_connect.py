"""Spark Connect: the session of a process that has no JVM.

The server is the one that pip's PySpark has, in the JVM of the tests' session, where it is a plugin; the
client is a process that knows its address only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from ottla import Producer
from ottla.client.admin.client import Admin
from ottla.testing import BrokerProcess

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline_kit.reading import values
from pipeline_kit.remote_job import Job

RECORDS = 300

# A client must do without Java.
WITHOUT_JAVA = {"JAVA_HOME": "/nonexistent", "PATH": "/nonexistent"}


@pytest.fixture
def address(spark: SparkSession) -> str:
    service = getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    return f"sc://127.0.0.1:{getattr(service, 'MODULE$').localPort()}"


@pytest.mark.long
def test_reads_writes_and_streams(
    address: str, broker: BrokerProcess, admin: Admin, topic: str, tmp_path: Path
) -> None:
    copies = f"{topic}-batch", f"{topic}-stream"
    for name in (topic, *copies):
        admin.create_topic(name, 2)
    with Producer(broker.bootstrap) as producer:
        for number in range(RECORDS):
            producer.send(topic, b"%d" % number, partition=number % 2)
    checkpoint = str(tmp_path / "checkpoint")
    seen = Job(address, broker.bootstrap, topic, *copies, checkpoint).run(tmp_path, WITHOUT_JAVA)
    assert sorted(int(value) for _, _, value in seen["rows"]) == list(range(RECORDS))
    for copy in copies:
        found = values(kafka__bootstrap__servers=broker.bootstrap, subscribe=copy)
        assert sorted(found, key=int) == [b"%d" % number for number in range(RECORDS)]


WRONG_OPTION = """
import sys
from pyspark.errors import PySparkException
from ottla.pipeline import session

options = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders", "startingOffset": "3"}
try:
    session(sys.argv[1]).read.format("ottla").options(**options).load().schema
except PySparkException as error:
    print(error)
"""


@pytest.mark.long
def test_a_wrong_option_is_told_by_its_name(address: str) -> None:
    """As in a session with a JVM; only later, for over Connect a plan is looked at when it is used."""
    done = subprocess.run(
        [sys.executable, "-c", WRONG_OPTION, address],
        capture_output=True,
        text=True,
        env={**os.environ, **WITHOUT_JAVA},
        check=False,
    )
    assert "did you mean startingOffsets?" in done.stdout, done.stderr


def run_ottla(*words: object, state: Path) -> tuple[str, str]:
    """A command, without Java; what it printed and what it told."""
    done = subprocess.run(
        [sys.executable, "-m", "ottla.cli.main", *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, **WITHOUT_JAVA, "XDG_STATE_HOME": str(state)},
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "Warning" not in done.stderr
    return done.stdout, done.stderr


@pytest.mark.long
def test_sql(address: str, broker: BrokerProcess, admin: Admin, topic: str, tmp_path: Path) -> None:
    """A query on standard output, to a topic and to a folder."""
    results = f"{topic}-results"
    admin.create_topic(topic, 2)
    admin.create_topic(results, 1)
    with Producer(broker.bootstrap) as producer:
        for number in range(RECORDS):
            producer.send(topic, f'{{"n": {number}}}', partition=number % 2)
    words = ("--server", broker.bootstrap, "--master", address)
    query = f"SELECT n % 3 AS rest, count(*) AS count FROM `{topic}` GROUP BY rest ORDER BY rest"
    printed, _ = run_ottla("sql", query, "--csv", *words, state=tmp_path)
    assert printed.splitlines() == ["rest,count", "0,100", "1,100", "2,100"]
    run_ottla("sql", query, "--to", results, *words, state=tmp_path)
    found = values(kafka__bootstrap__servers=broker.bootstrap, subscribe=results)
    assert sorted(found) == [b'{"rest":%d,"count":100}' % rest for rest in range(3)]
    run_ottla("sql", query, "--to", tmp_path / "rows", *words, state=tmp_path)
    assert pyarrow.parquet.read_table(tmp_path / "rows").num_rows == 3


@pytest.mark.long
def test_a_project(
    address: str,
    spark: SparkSession,
    broker: BrokerProcess,
    admin: Admin,
    topic: str,
    tmp_path: Path,
) -> None:
    """Its tables are those of the server, which remembers them as long as it lives."""
    admin.create_topic(topic, 2)
    database = topic.replace("-", "_")
    spark.sql(f"CREATE DATABASE {database}")
    project = tmp_path / "shop"
    words = ("--topic", topic, "--server", broker.bootstrap)
    run_ottla("pipeline", "init", project, *words, state=tmp_path)
    with (project / "spark-pipeline.yml").open("a") as file:
        file.write(f"database: {database}\n")
    for round_ in (1, 2):
        with Producer(broker.bootstrap) as producer:
            for number in range(10):
                producer.send(topic, str(number), timestamp=60_000 * round_)
        _, told = run_ottla("pipeline", "run", project, "--master", address, state=tmp_path)
        assert "Run is COMPLETED" in told
        for table in ("records", "records_per_minute"):
            spark.catalog.refreshTable(
                f"{database}.{table}"
            )  # of which this session knows the files
        assert spark.table(f"{database}.records").count() == 10 * round_
        counted = spark.table(f"{database}.records_per_minute").sort("minute").collect()
        assert [row["records"] for row in counted] == [10] * round_
