"""Fixtures of the pipeline's tests: one Spark session and one broker for all of them.

A session takes seconds to start and a process holds one at most, so one worker runs all tests that
need it. Those that start Spark in other processes run on one worker, too: a machine with two cores has
enough to do with two of them at a time.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# The kits of the connection's and the interop tests serve here, too.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "wire"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "interop"))

from interop_kit import toolchain
from wire_kit.kafka import running_kafka

from ottla.client.admin.client import Admin
from ottla.pipeline.examples import make_importable
from ottla.testing import BrokerProcess

make_importable()

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from wire_kit.certificates import Certificates

# Spark's own Kafka source; the versions are those that work with the Spark that is installed.
CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)


STARTING_SPARK = (
    "test_cluster.py",
    "test_demo.py",
    "test_java.py",
    "test_pipeline_command.py",
    "test_programs.py",
    "test_secured.py",
    "test_server.py",
    "test_speculation.py",
)
# Commands of tests leave no Spark behind; those that are about it say so.
os.environ["OTTLA_SPARK_SERVER"] = "0"


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).resolve().parent
    for item in items:
        if item.path.is_relative_to(here):
            if {"spark", "apache"} & _names_of(item):
                item.add_marker(pytest.mark.xdist_group("spark"))
            elif item.path.name in STARTING_SPARK:
                item.add_marker(pytest.mark.xdist_group("spark-programs"))
            if item.get_closest_marker("timeout") is None:
                # Spark's start, and what a cold machine fetches, are no part of a test's time.
                item.add_marker(pytest.mark.timeout(120, func_only=True))


def _names_of(item: pytest.Item) -> set[object]:
    """The fixtures of a test, and its parameters, which may be names of fixtures."""
    callspec = getattr(item, "callspec", None)
    parameters = [] if callspec is None else callspec.params.values()
    names = [name for name in parameters if isinstance(name, str)]
    return {*getattr(item, "fixturenames", ()), *names}


@dataclass(frozen=True)
class Connector:
    """The jars of Spark's own source, or why there are none."""

    jars: tuple[Path, ...] = ()
    missing: str = ""


@pytest.fixture(scope="session")
def connector() -> Connector:
    def build(folder: Path) -> None:
        goal = f"{toolchain.MAVEN_DEPENDENCY_PLUGIN}:copy"
        with toolchain.locked("maven"):
            for artifact in CONNECTOR:
                wanted = [f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"]
                command = [toolchain.tool("mvn"), "--batch-mode", "--quiet", goal, *wanted]
                toolchain.run_build(command, folder)

    try:
        folder = toolchain.built("spark-connector", list(CONNECTOR), build)
    except (pytest.skip.Exception, pytest.fail.Exception) as reason:
        return Connector(missing=str(reason))
    return Connector(tuple(sorted(folder.glob("*.jar"))))


@pytest.fixture(scope="session")
def spark(connector: Connector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from ottla.pipeline import session

    made = session(
        "local[2]",
        settings={
            "spark.ui.enabled": "false",
            # A JVM that lives for a minute: what starts fast is better than what runs fast.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
            "spark.jars": ",".join(map(str, connector.jars)),
            # The same JVM is the server of the tests with Spark Connect.
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
        },
    )
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"auto.create.topics.enable": "false"}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings=settings) as process:
        yield process


@pytest.fixture(scope="session")
def admin(broker: BrokerProcess) -> Iterator[Admin]:
    with Admin(broker.bootstrap) as client:
        yield client


@dataclass(frozen=True)
class KafkaFolder:
    """A running Apache Kafka and its data folder."""

    bootstrap: str
    data: Path


@pytest.fixture(scope="session")
def apache(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[KafkaFolder]:
    folder = tmp_path_factory.mktemp("kafka")
    with running_kafka(folder, certificates) as process:
        yield KafkaFolder(process.bootstrap, folder / "data")


@pytest.fixture
def topic() -> str:
    """A name that no other test has."""
    return f"pipeline-{uuid.uuid4().hex[:12]}"
