"""Ottla's own client over the death of leaders and coordinators: nobody who uses it notices.

Each broker in turn is killed with -9 and comes back, while a producer writes, a group reads, and
transactions carry records from one topic to another. None of the calls may raise.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from interop_kit.running_cluster import BROKERS, RunningCluster, running_cluster

from ottla import Admin, Consumer, Producer
from ottla.client.errors import OttlaError

PARTITIONS = 3
MOST_BATCHES = 50  # in a transaction
PATIENCE = 60.0

pytestmark = pytest.mark.timeout(300, func_only=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(
        tmp_path_factory.mktemp("failover") / "cluster", group_initial_rebalance_delay_ms="0"
    ) as cluster:
        yield cluster


class Writer:
    """Sends numbers to all partitions in turn, until it is told to stop."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._enough = threading.Event()
        self._sent = 0
        self._more = threading.Condition()

    def run(self) -> int:
        """How many were sent, all of them acknowledged."""
        with Producer(self._bootstrap, linger_ms=1) as producer:
            while not self._enough.wait(0.004):
                producer.send(self._topic, b"%d" % self._sent, partition=self._sent % PARTITIONS)
                with self._more:
                    self._sent += 1
                    self._more.notify_all()
            # Raises what went wrong.
            producer.flush(PATIENCE)
        return self._sent

    def await_more(self, count: int) -> None:
        with self._more:
            goal = self._sent + count
            assert self._more.wait_for(lambda: self._sent >= goal, PATIENCE)

    def stop(self) -> None:
        self._enough.set()


def numbers(bootstrap: str, topic: str) -> list[list[int]]:
    """What the topic holds for readers of committed records, by partition."""
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    with Consumer(bootstrap) as consumer:
        table = consumer.read(topic, columns=["partition", "value"])
    for partition, value in zip(
        table.column("partition").to_pylist(), table.column("value").to_pylist(), strict=True
    ):
        found[partition].append(int(value))
    return found


def every(count: int) -> list[list[int]]:
    return [list(range(first, count, PARTITIONS)) for first in range(PARTITIONS)]


def read_all(
    bootstrap: str, topic: str, group: str, count: list[int], done: threading.Event
) -> int:
    """What a group reads, each row once, until `done` and all of `count` was seen."""
    seen: list[list[int]] = [[] for _ in range(PARTITIONS)]
    with Consumer(bootstrap, group=group, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(topic)
        deadline = time.monotonic() + 3 * PATIENCE
        while not done.is_set() or sum(map(len, seen)) < count[0]:
            assert time.monotonic() < deadline, f"read {sum(map(len, seen))} of {count}"
            batch = consumer.next_batch(timeout=0.5)
            if batch is not None:
                partition = batch.column("partition")[0].as_py()
                seen[partition] += map(int, batch.column("value").to_pylist())
        consumer.commit()
    assert seen == every(count[0])
    return count[0]


def test_a_producer_and_a_group_go_on(cluster: RunningCluster, topic: str) -> None:
    cluster.create_topic(topic, PARTITIONS)
    writer = Writer(cluster.bootstrap, topic)
    written, done = [0], threading.Event()
    with ThreadPoolExecutor(2) as beside:
        writing = beside.submit(writer.run)
        reading = beside.submit(read_all, cluster.bootstrap, topic, topic, written, done)
        for partition in range(PARTITIONS):
            writer.await_more(100)
            with cluster.without(cluster.leader(topic, partition)):
                writer.await_more(100)
        with cluster.without(cluster.group_coordinator(topic)):
            writer.await_more(100)
        writer.stop()
        written[0] = writing.result(PATIENCE)
        done.set()
        assert reading.result(3 * PATIENCE) == written[0]
    assert numbers(cluster.bootstrap, topic) == every(written[0])


@pytest.mark.long
def test_transactions_carry_each_record_once(cluster: RunningCluster, topic: str) -> None:
    source, target = f"{topic}-source", f"{topic}-target"
    for each in (source, target):
        cluster.create_topic(each, PARTITIONS)
    writer = Writer(cluster.bootstrap, source)
    enough = threading.Event()
    with ThreadPoolExecutor(2) as beside:
        writing = beside.submit(writer.run)
        carrying = beside.submit(carry, cluster.bootstrap, source, target, topic, enough)
        for broker in (
            lambda: cluster.leader(target, 0),
            lambda: cluster.transaction_coordinator(topic),
            lambda: cluster.group_coordinator(topic),
        ):
            writer.await_more(100)
            with cluster.without(broker()):
                writer.await_more(200)
        writer.stop()
        written = writing.result(PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while sum(map(len, numbers(cluster.bootstrap, target))) < written:
            assert not carrying.done(), carrying.result()
            assert time.monotonic() < deadline, "the transactions do not come to an end"
        enough.set()
        carrying.result(PATIENCE)
    assert numbers(cluster.bootstrap, target) == every(written)


def carry(bootstrap: str, source: str, target: str, name: str, enough: threading.Event) -> None:
    """From one topic to the other, in transactions; one that fails is begun again."""
    with (
        Consumer(
            bootstrap, group=name, auto_offset_reset="earliest", enable_auto_commit=False
        ) as consumer,
        Producer(bootstrap, transactional_id=name) as producer,
    ):
        producer.init_transactions()
        consumer.subscribe(source)
        while not enough.is_set():
            batches = []
            while len(batches) < MOST_BATCHES:
                batch = consumer.next_batch(timeout=0.05 if batches else 0.5)
                if batch is None:
                    break
                batches.append(batch)
            if not batches:
                continue
            ends = {
                (source, batch.column("partition")[0].as_py()): batch.column("offset")[-1].as_py()
                + 1
                for batch in batches
            }
            try:
                with producer.transaction():
                    for batch in batches:
                        producer.write(target, batch.select(["partition", "value"]))
                    producer.send_offsets_to_transaction(ends, consumer.group_member())
            except OttlaError as error:
                print(f"again, because of: {error!r}")
                for each, offset in consumer.committed().items():
                    consumer.seek(each, "earliest" if offset is None else offset.offset)


def test_the_cluster_can_be_asked_while_a_broker_is_away(
    cluster: RunningCluster, topic: str
) -> None:
    cluster.create_topic(topic, PARTITIONS)
    with (
        Admin(cluster.bootstrap) as admin,
        Consumer(cluster.bootstrap, group=topic, auto_offset_reset="earliest") as consumer,
        Producer(cluster.bootstrap, transactional_id=topic) as producer,
    ):
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b"1", partition=0)
        consumer.subscribe(topic)
        assert consumer.next_batch(timeout=PATIENCE) is not None
        consumer.commit()
        with cluster.without(cluster.group_coordinator(topic)):
            assert topic in {each.group for each in admin.list_groups()}
            (group,) = admin.describe_groups([topic]).values()
            assert group.group == topic
            assert topic in {each.transactional_id for each in admin.list_transactions()}
            (described,) = (each for each in admin.list_topics() if each.name == topic)
            assert all(len(each.in_sync) == BROKERS - 1 for each in described.partitions)
            assert len(admin.describe_cluster().brokers) == BROKERS - 1
            admin.create_topic(f"{topic}-2", partitions=1, replication_factor=BROKERS - 1)
            admin.delete_topics([f"{topic}-2"])
