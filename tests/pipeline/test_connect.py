"""Spark Connect: the session of a process that has no JVM.

The server is the one that pip's PySpark has, in the JVM of the tests' session, where it is a plugin; the
client is a process that knows its address only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ottla import Producer
from ottla.client.admin import Admin
from ottla.testing import BrokerProcess

sys.path.insert(0, str(Path(__file__).resolve().parent))

from pipeline_kit.reading import values
from pipeline_kit.remote_job import Job

RECORDS = 300

# A client must do without Java.
WITHOUT_JAVA = {"JAVA_HOME": "/nonexistent", "PATH": "/nonexistent"}


@pytest.fixture
def address(spark: SparkSession) -> str:
    service = getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    return f"sc://127.0.0.1:{getattr(service, 'MODULE$').localPort()}"


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
