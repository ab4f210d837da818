"""A stopped Apache Kafka's data folder becomes that of a node of Ottla: `ottla cluster import-logs`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from wire_kit.certificates import Certificates
from wire_kit.kafka import running_kafka

from ottla import Admin, Consumer, Producer
from ottla.client.admin.configs import Resource
from ottla.client.errors import TimedOut
from ottla.client.positions import TopicPartition
from ottla.testing import BrokerProcess
from ottla.testing.cluster import LocalCluster

# A Kafka of their own, beside those that other tests use.
pytestmark = [pytest.mark.long, pytest.mark.interop, pytest.mark.xdist_group("apache-kafka")]

PLAIN, COMPACTED, TRANSACTIONS = "plain", "compacted", "transactions"
TOPICS = (PLAIN, COMPACTED, TRANSACTIONS)
FOREVER = {"retention.ms": "-1"}
DELETED = 120  # records of the plain topic's partition 1


@dataclass(frozen=True)
class Stopped:
    """What Kafka told before it stopped, and what it left."""

    data: Path
    crashed: Path  # a copy of the folder while it ran
    records: dict[str, list[dict[str, Any]]]
    offsets: dict[str, dict[TopicPartition, int]]
    ids: dict[str, str | None]


def records(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    with Consumer(bootstrap) as consumer:
        table = consumer.read(topic)
    found: list[dict[str, Any]] = table.sort_by(
        [("partition", "ascending"), ("offset", "ascending")]
    ).to_pylist()
    return found


def committed(bootstrap: str, group: str) -> dict[TopicPartition, int]:
    with Admin(bootstrap) as admin:
        return {key: each.offset for key, each in admin.committed_offsets(group).items()}


def fill(bootstrap: str) -> None:
    with Admin(bootstrap) as admin:
        admin.create_topic(PLAIN, 3, settings={**FOREVER, "segment.bytes": "1048576"})
        admin.create_topic(COMPACTED, 1, settings={"cleanup.policy": "compact"})
        admin.create_topic(TRANSACTIONS, 2, settings=FOREVER)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        with Producer(bootstrap, compression_type=codec) as producer:
            for number in range(300):
                producer.send(
                    PLAIN,
                    f"{codec} {number} {'x' * 1000}".encode(),
                    key=b"%d" % number,
                    partition=number % 3,
                    headers=[("codec", codec.encode())],
                )
    with Producer(bootstrap) as producer:
        for number in range(100):
            producer.send(COMPACTED, b"%d" % number, key=b"%d" % (number % 7))
    with Admin(bootstrap) as admin:
        admin.delete_records({TopicPartition(PLAIN, 1): DELETED})
    with Producer(bootstrap, transactional_id="writer") as producer:
        producer.init_transactions()
        for number in range(6):
            producer.begin_transaction()
            for index in range(5):
                producer.send(TRANSACTIONS, b"%d-%d" % (number, index), partition=index % 2)
            producer.flush()
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()


def read_some(bootstrap: str, group: str, protocol: str, count: int) -> None:
    with Consumer(
        bootstrap,
        group=group,
        group_protocol=protocol,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        consumer.subscribe(PLAIN)
        for _ in range(count):
            assert consumer.next_record(timeout=30) is not None
        consumer.commit()


@pytest.fixture(scope="module")
def stopped(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Stopped]:
    folder = tmp_path_factory.mktemp("kafka")
    with running_kafka(folder, certificates, keeps_data=True) as kafka:
        bootstrap = kafka.bootstrap
        fill(bootstrap)
        read_some(bootstrap, "classic-readers", "classic", 100)
        read_some(bootstrap, "consumer-readers", "consumer", 200)
        before = {topic: records(bootstrap, topic) for topic in TOPICS}
        offsets = {
            group: committed(bootstrap, group) for group in ("classic-readers", "consumer-readers")
        }
        with Admin(bootstrap) as admin:
            ids = {name: each.topic_id for name, each in admin.describe_topics(TOPICS).items()}
        # Somebody who is in the middle of a transaction when Kafka stops.
        unfinished = Producer(bootstrap, transactional_id="dead", transaction_timeout_ms=15_000)
        unfinished.init_transactions()
        unfinished.begin_transaction()
        unfinished.send(TRANSACTIONS, b"never", partition=0).result(20)
        shutil.copytree(folder / "data", folder / "crashed")
    with pytest.raises(TimedOut):
        unfinished.close(timeout=0)
    yield Stopped(folder / "data", folder / "crashed", before, offsets, ids)
    shutil.rmtree(folder, ignore_errors=True)


def take(source: Path, target: Path, *options: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "ottla.cli.main", "cluster", "import-logs", str(source),
         "--into", str(target), "--json", *options],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def check(bootstrap: str, stopped: Stopped, *, crashed: bool = False) -> None:
    for topic in TOPICS:
        found = records(bootstrap, topic)
        if crashed and topic == PLAIN:
            # Kafka notes once a minute where a log starts: what was deleted may be back after a crash.
            found = [row for row in found if row["partition"] != 1 or row["offset"] >= DELETED]
        assert found == stopped.records[topic], topic
    for group, offsets in stopped.offsets.items():
        assert committed(bootstrap, group) == offsets
    with Admin(bootstrap) as admin:
        ids = {name: each.topic_id for name, each in admin.describe_topics(TOPICS).items()}
        settings = {
            topic: admin.describe_configs(Resource.topic(topic))[Resource.topic(topic)]
            for topic in TOPICS
        }
    assert ids == stopped.ids
    assert settings[PLAIN]["retention.ms"].value == "-1"
    assert settings[PLAIN]["segment.bytes"].value == "1048576"
    assert settings[COMPACTED]["cleanup.policy"].value == "compact"


def go_on(bootstrap: str, stopped: Stopped) -> None:
    """Groups read on where they were, producers write on, and the open transaction comes to its end."""
    left = len(stopped.records[PLAIN]) - 100
    read_some(bootstrap, "classic-readers", "classic", left)
    with Producer(bootstrap, transactional_id="writer") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(TRANSACTIONS, b"after", partition=0)
        producer.send(PLAIN, b"after", partition=0)
        producer.commit_transaction()
    assert [row["value"] for row in records(bootstrap, PLAIN) if row["value"] == b"after"] == [
        b"after"
    ]
    # Its coordinator aborts the transaction of one who is gone; then readers get past it.
    with Consumer(bootstrap) as consumer:
        consumer.assign({TopicPartition(TRANSACTIONS, 0): "earliest"})
        found: list[bytes | None] = []
        while b"after" not in found:
            record = consumer.next_record(timeout=60)
            assert record is not None
            found.append(record.value)
    assert b"never" not in found


def test_a_stopped_kafka(stopped: Stopped, tmp_path: Path) -> None:
    files = {path: path.stat() for path in sorted(stopped.data.rglob("*")) if path.name != ".lock"}
    dry = take(stopped.data, tmp_path / "data", "--dry-run")
    assert not (tmp_path / "data").exists()
    taken = take(stopped.data, tmp_path / "data")
    assert [each["topic"] for each in taken["topics"]] == [each["topic"] for each in dry["topics"]]
    names = {each["topic"] for each in taken["topics"]}
    assert names == {*TOPICS, "__consumer_offsets", "__transaction_state"}
    assert taken["clean"]
    assert taken["settings_left_out"] == []
    assert "users with SCRAM credentials" in taken["left_out"]
    after = {path: path.stat() for path in sorted(stopped.data.rglob("*")) if path.name != ".lock"}
    assert {path: (each.st_mtime_ns, each.st_size) for path, each in after.items()} == {
        path: (each.st_mtime_ns, each.st_size) for path, each in files.items()
    }
    for attempt in range(2):
        with BrokerProcess(tmp_path / "data") as node:
            check(node.bootstrap, stopped)
            if attempt:
                go_on(node.bootstrap, stopped)


def test_a_kafka_that_crashed(stopped: Stopped, tmp_path: Path) -> None:
    taken = take(stopped.crashed, tmp_path / "data")
    assert not taken["clean"]
    with BrokerProcess(tmp_path / "data") as node:
        check(node.bootstrap, stopped, crashed=True)
        go_on(node.bootstrap, stopped)


def test_from_kafka_to_a_cluster(stopped: Stopped, tmp_path: Path) -> None:
    take(stopped.data, tmp_path / "data")
    cluster = LocalCluster(tmp_path / "cluster", base_port=None)
    try:
        cluster.adopt(tmp_path / "data")
        check(cluster.bootstrap, stopped)
        go_on(cluster.bootstrap, stopped)
    finally:
        cluster.stop()


def test_a_running_kafka_is_refused(kafka: Any, tmp_path: Path) -> None:
    with Admin(kafka.bootstrap) as admin:
        (folder,) = admin.describe_log_folders()
    done = subprocess.run(
        [sys.executable, "-m", "ottla.cli.main", "cluster", "import-logs", folder.path,
         "--into", str(tmp_path / "data")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "a broker uses" in done.stderr
    assert not (tmp_path / "data").exists()
