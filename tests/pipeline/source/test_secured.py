"""Spark over TLS and SASL, with executors that are processes of their own, and where secrets are not.

They are in the file that `kafka.config.file` names, or in options; nowhere in what Spark shows or keeps:
plans, the UI's pages, the log of its events, the output of the driver and of the executors.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from ottla import Admin, Consumer, Producer
from ottla.testing import BrokerProcess

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
# The kit of the server's tests has the certificates.
sys.path.append(str(Path(__file__).resolve().parents[2] / "server"))

from pipeline_kit.programs import QUICK, Start, finish, start
from pipeline_kit.secured_job import SecuredJob
from pipeline_kit.standalone import SHORT_LIVED
from server_kit.secured_process import (
    SASL_TLS,
    SECRETS,
    TOKENS,
    Secured,
    secured_process,
)

__all__ = ["start"]

# A job starts three JVMs.
pytestmark = [pytest.mark.long, pytest.mark.timeout(600, func_only=True)]

CANARY = "a-word-that-the-search-must-find"
PARTITIONS, RECORDS = 3, 90


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_process(tmp_path_factory.mktemp("secured")) as running:
        yield running


def spark_home(folder: Path) -> Path:
    """A SPARK_HOME whose executors work in this folder."""
    folder.mkdir()
    installed = Path(pyspark.__file__).parent
    for each in ("bin", "conf", "jars", "python", "sbin"):
        if (installed / each).exists():
            (folder / each).symlink_to(installed / each)
    return folder


def holding(folder: Path, text: str) -> list[Path]:
    """The files that hold a text; those of Spark's home that are links are not its own."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and text.encode() in path.read_bytes()
    ]


@pytest.mark.parametrize(
    ("way", "mechanism"),
    [("file", "SCRAM-SHA-512"), ("environment", TOKENS), ("options", "PLAIN"), ("jaas", "PLAIN")],
)
def test_executors_authenticate_and_secrets_are_nowhere(
    secured: Secured, tmp_path: Path, topic: str, way: str, mechanism: str
) -> None:
    copies = f"{topic}-batch", f"{topic}-stream"
    inside = secured.broker.bootstrap
    with Admin(inside) as admin:
        for name in (topic, *copies):
            admin.create_topic(name, PARTITIONS)
    with Producer(inside) as producer:
        for number in range(RECORDS):
            producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
    client = secured.options(SASL_TLS, mechanism)
    address = client.pop("bootstrap.servers")
    file = secured.file(tmp_path / "client.properties", SASL_TLS, mechanism)
    shown = tmp_path / "shown"
    shown.mkdir()
    (shown / "events").mkdir()
    environment = {"SPARK_HOME": str(spark_home(shown / "home"))}
    options: dict[str, str] = {}
    if way == "file":
        options["kafka.config.file"] = str(file)
    elif way == "environment":
        environment["OTTLA_CLIENT_CONFIG"] = str(file)
    else:
        given = client if way == "options" else secured.java_options(SASL_TLS, mechanism)
        options = {f"kafka.{name}": value for name, value in given.items()}
    job = SecuredJob(
        address,
        topic,
        *copies,
        folder=str(shown),
        options=options,
        settings={
            "spark.executor.extraJavaOptions": SHORT_LIVED,
            "spark.driver.extraJavaOptions": SHORT_LIVED,
            # No task before both executors are there.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "true",
            "spark.ui.port": "0",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": (shown / "events").as_uri(),
            "spark.local.dir": str(tmp_path / "local"),
            "spark.canary": CANARY,
            "spark.sql.planChangeLog.level": "warn",
        },
    )
    seen = job.run(environment)
    assert seen["rows"] == [
        [partition, offset, str(offset * PARTITIONS + partition)]
        for partition in range(PARTITIONS)
        for offset in range(RECORDS // PARTITIONS)
    ]
    for copy in copies:
        with Consumer(inside) as consumer:
            found = consumer.read(copy, columns=["value"])["value"].to_pylist()
        assert sorted(found, key=int) == [b"%d" % number for number in range(RECORDS)]
    assert len(set(seen["places"])) == 2, "both tasks ran in one executor"
    assert str(shown) in seen["places"][0]
    # The search finds what is there: in the UI, in the log of events; and plans are in what is searched.
    found_in = {path.parent.name for path in holding(shown, CANARY)}
    assert {"pages"} < found_in
    assert any("eventlog" in str(path) or "events" in str(path) for path in holding(shown, CANARY))
    assert any("/SQL/execution" in page for page in seen["pages"])
    assert any("/environment" in page for page in seen["pages"])
    assert "ottla" in (shown / "plans.txt").read_text()
    assert holding(shown / "home", "Running Spark version") or list(
        (shown / "home").rglob("stderr")
    )
    # No secret is.
    for secret in SECRETS:
        assert holding(shown, secret) == []


def in_topic(servers: str, topic: str) -> list[bytes]:
    with Consumer(servers) as consumer:
        return sorted(consumer.read(topic, columns=["value"])["value"].to_pylist())


def test_commands_on_spark(secured: Secured, tmp_path: Path, topic: str, start: Start) -> None:
    """`ottla --client-config FILE`: archive, restore, sql, mirror and a deletion by a condition."""
    inside, address = secured.broker.bootstrap, secured.address(SASL_TLS)
    given = ("--client-config", secured.file(tmp_path / "c.properties", SASL_TLS, "SCRAM-SHA-512"))
    copy = f"{topic}-copy"
    with Admin(inside) as admin:
        for name in (topic, copy):
            admin.create_topic(name, 2)
    with Producer(inside) as producer:
        for number in range(20):
            producer.send(topic, b'{"n": %d}' % number, partition=number % 2)
    everything = in_topic(inside, topic)
    archive = tmp_path / "archive"
    finish(start(*given, "archive", topic, "--to", archive, "-s", address, *QUICK))
    again = f"{topic}-again"
    finish(start(*given, "restore", archive / topic, "--to", again, "-s", address, *QUICK))
    assert in_topic(inside, again) == everything
    query = f"SELECT count(*) AS found FROM `{topic}` WHERE n >= 5"
    output, _ = finish(start(*given, "sql", query, "--csv", "-s", address, *QUICK))
    assert output.split() == ["found", "15"]
    query = f"SELECT n FROM `{topic}`"
    finish(start(*given, "sql", query, "--to", copy, "-s", address, *QUICK))
    assert len(in_topic(inside, copy)) == 20
    # The other cluster asks nobody who they are.
    plain = tmp_path / "plain.properties"
    plain.write_text("")
    with BrokerProcess(tmp_path / "target") as target:
        words = ("--from", address, "--to", target.bootstrap, "--to-option", f"config.file={plain}")
        finish(start(*given, "mirror", topic, *words, *QUICK))
        assert in_topic(target.bootstrap, topic) == everything
    condition = ("--where", "n < 5", "--yes", "-s", address)
    finish(start(*given, "record", "delete", topic, *condition, *QUICK))
    assert len(in_topic(inside, topic)) == 15
