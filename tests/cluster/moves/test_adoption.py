"""A single node becomes the first broker of a cluster, and its topics are copied to the others.

Nothing is lost on the way: records, ids of topics, settings, offsets of groups, sequences of producers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_kit.commands import ottla
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla import Admin
from ottla.client.admin.configs import Resource
from ottla.testing import BrokerProcess
from ottla.testing.cluster import ClusterError, ClusterState, LocalCluster

TOPIC = "orders"
RECORDS = 300
GROUP = "readers"


@pytest.fixture
def single(tmp_path: Path) -> Path:
    """The data folder of a single node with a topic, its settings, and a group's offsets."""
    folder = tmp_path / "single"
    settings = {"offsets.topic.num.partitions": "3", "transaction.state.log.num.partitions": "3"}
    with BrokerProcess(folder, settings=settings) as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic(TOPIC, 3, 1, settings={"retention.ms": "86400000"})
        produce(broker.bootstrap, range(RECORDS))
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": GROUP})
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, 42)], asynchronous=False)
        consumer.close()
    return folder


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path / "cluster", base_port=None)
    yield cluster
    if cluster.exists:
        cluster.stop()


def produce(bootstrap: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "the writer"})
    producer.init_transactions()
    producer.begin_transaction()
    for number in numbers:
        producer.produce(TOPIC, value=str(number), partition=number % 3)
    producer.commit_transaction()


def read(bootstrap: str, count: int) -> list[int]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "checker",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(3)])
    found: list[int] = []
    while len(found) < count:
        messages = consumer.consume(500, 30)
        assert messages, f"only {len(found)} records"
        assert not [each.error() for each in messages if each.error()]
        found += [int(each.value()) for each in messages]
    consumer.close()
    return sorted(found)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_from_one_node_to_three(single: Path, cluster: LocalCluster) -> None:
    topic_id = (single / f"{TOPIC}-0" / "partition.metadata").read_text()
    segment = single / f"{TOPIC}-0" / "00000000000000000000.log"
    before = segment.stat()
    number = cluster.adopt(single)
    # The file is the same file, and the records are those records.
    after = segment.stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    assert (single / f"{TOPIC}-0" / "partition.metadata").read_text() == topic_id
    assert not (single / "metadata.db").exists()
    assert read(cluster.bootstrap, RECORDS) == list(range(RECORDS))
    for _ in range(2):
        cluster.add()
    ottla("topic", "alter", "--all", "--replication-factor", 3, "--server", cluster.bootstrap)
    with Admin(cluster.bootstrap) as admin:
        topics = {each.name: each for each in admin.list_topics(internal=True)}
        assert set(topics) == {TOPIC, "__consumer_offsets", "__transaction_state"}
        for topic in topics.values():
            assert all(len(each.in_sync) == 3 for each in topic.partitions), topic
        config = admin.describe_configs(Resource.topic(TOPIC))[Resource.topic(TOPIC)]
        assert config["retention.ms"].value == "86400000"
        (offset,) = admin.committed_offsets(GROUP).items()
        assert (str(offset[0]), offset[1].offset) == (f"{TOPIC}-0", 42)
    # The one with all of it dies, and nobody misses anything.
    cluster.kill(number)
    produce(cluster.bootstrap, range(RECORDS, RECORDS + 30))
    assert read(cluster.bootstrap, RECORDS + 30) == list(range(RECORDS + 30))
    cluster.start()
    # What cannot be.
    told = ottla("topic", "alter", TOPIC, "-r", 4, "--server", cluster.bootstrap, fails=True)
    assert "4 replicas need 4 brokers, and there are 3" in told
    told = ottla("cluster", "adopt", single, "--data", single.parent / "other", fails=True)
    assert "belongs to a cluster already" in told
    assert not (single.parent / "other").exists()


class Crash(BaseException):
    """As if the command had been killed."""


@pytest.mark.long
@pytest.mark.parametrize("step", ["_save", "_start_brokers"])
def test_it_can_be_called_again_after_a_crash(
    single: Path, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Before it has written down what was adopted, and before the broker has started."""
    work = getattr(LocalCluster, step)

    def crash(self: LocalCluster, state: ClusterState, *more: Any) -> Any:
        if state.brokers:
            raise Crash
        return work(self, state, *more)

    monkeypatch.setattr(LocalCluster, step, crash)
    with pytest.raises(Crash):
        cluster.adopt(single)
    assert not (single / "metadata.db").exists()
    monkeypatch.undo()
    assert LocalCluster(cluster.folder, base_port=None).adopt(single) == 1
    assert read(cluster.bootstrap, RECORDS) == list(range(RECORDS))
    # From now on it is a cluster like any other.
    cluster.add()
    with pytest.raises(ClusterError, match="there is a cluster in"):
        cluster.adopt(single)


@pytest.mark.long
def test_a_node_that_runs_is_not_adopted(tmp_path: Path, cluster: LocalCluster) -> None:
    with (
        BrokerProcess(tmp_path / "single") as broker,
        pytest.raises(ClusterError, match="in use by another broker; stop that broker first"),
    ):
        cluster.adopt(broker.data)
    assert not cluster.folder.exists()


@pytest.mark.parametrize("is_there", [False, True])
def test_a_refusal_leaves_nothing_behind(tmp_path: Path, is_there: bool) -> None:
    """The folder is looked at before a ZooKeeper is started."""
    (tmp_path / "no-node").mkdir()
    cluster = tmp_path / "cluster"
    if is_there:
        cluster.mkdir()
    told = ottla("cluster", "adopt", tmp_path / "no-node", "--data", cluster, fails=True)
    assert "is no data folder of a single node" in told
    assert cluster.exists() is is_there
    assert sorted(tmp_path.rglob("*")) == sorted([tmp_path / "no-node", *[cluster] * is_there])


def test_a_folder_that_is_no_node(tmp_path: Path) -> None:
    told = ottla("cluster", "adopt", tmp_path / "nothing", fails=True)
    assert "does not exist" in told
