"""Groups over the death of their coordinator, with members of both protocols.

The broker that coordinates a group is killed with -9. Another takes over with all that was acknowledged:
committed offsets are there, members go on, and rebalances that begin while it is away come to an end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from interop_kit.relay import COMMON, group_settings
from interop_kit.running_cluster import RunningCluster, running_cluster

PARTITIONS = 6
RECORDS = 3_000
PATIENCE = 60.0

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300, func_only=True),
    pytest.mark.parametrize("protocol", ["classic", "consumer"]),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(
        tmp_path_factory.mktemp("failover") / "cluster",
        group_initial_rebalance_delay_ms="0",
        group_consumer_min_heartbeat_interval_ms="100",
        group_consumer_heartbeat_interval_ms="300",
    ) as cluster:
        yield cluster


class Member:
    """One consumer of a group, which reads and commits as it is told."""

    def __init__(self, cluster: RunningCluster, group: str, topic: str, protocol: str) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
            **group_settings(protocol, 6_000),
            **COMMON,
        }
        self._consumer = Consumer(settings)
        self._consumer.subscribe([topic])
        self._read: dict[int, int] = {}

    def read(self, count: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while count > 0:
            assert time.monotonic() < deadline, f"{count} records missing, read to {self._read}"
            for message in self._consumer.consume(min(count, 100), 0.5):
                if message.error() is None:
                    self._read[message.partition()] = message.offset() + 1
                    count -= 1

    def commit(self) -> dict[int, int]:
        """What was acknowledged as committed; tried until it is."""
        deadline = time.monotonic() + PATIENCE
        offsets = [TopicPartition(self.topic, *each) for each in self._read.items()]
        while True:
            try:
                done = self._consumer.commit(offsets=offsets, asynchronous=False)
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                self._consumer.poll(0.1)
                continue
            assert all(each.error is None for each in done), done
            return {each.partition: each.offset for each in done}

    @property
    def topic(self) -> str:
        return str(self._consumer.assignment()[0].topic)

    def assignment(self) -> set[int]:
        """After its part of a rebalance that is under way."""
        self._consumer.poll(0.05)
        return {each.partition for each in self._consumer.assignment()}

    def close(self) -> None:
        self._consumer.close()


def committed(cluster: RunningCluster, group: str, topic: str) -> dict[int, int]:
    """As a newcomer is told."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": group, "log_level": 0, **COMMON}
    )
    wanted = [TopicPartition(topic, each) for each in range(PARTITIONS)]
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            found = consumer.committed(wanted, timeout=PATIENCE)
            break
        except KafkaException:
            # The new coordinator may learn of it a little later than the one who was asked for it.
            if time.monotonic() > deadline:
                raise
    consumer.close()
    return {each.partition: each.offset for each in found if each.offset >= 0}


def filled(cluster: RunningCluster, topic: str) -> None:
    cluster.create_topic(topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(PATIENCE) == 0


def until_shared(members: Sequence[Member]) -> None:
    """Each has some of the partitions, and together they have all of them once."""
    deadline = time.monotonic() + PATIENCE
    while True:
        shares = [member.assignment() for member in members]
        if all(shares) and sorted(each for share in shares for each in share) == list(
            range(PARTITIONS)
        ):
            return
        assert time.monotonic() < deadline, f"the rebalance does not end: {shares}"


def test_what_was_committed_is_there_after_the_coordinator_died(
    cluster: RunningCluster, topic: str, protocol: str
) -> None:
    filled(cluster, topic)
    group = topic
    member = Member(cluster, group, topic, protocol)
    for _ in range(3):
        member.read(150)
        coordinator = cluster.group_coordinator(group)
        acknowledged = member.commit()
        with cluster.without(coordinator):
            assert committed(cluster, group, topic) == acknowledged
            # It is still a member, and goes on.
            member.read(150)
            acknowledged = member.commit()
            assert committed(cluster, group, topic) == acknowledged
        assert committed(cluster, group, topic) == acknowledged
    member.close()


def test_rebalances_end_without_the_coordinator_that_began_them(
    cluster: RunningCluster, topic: str, protocol: str
) -> None:
    filled(cluster, topic)
    group = topic
    first, second = (Member(cluster, group, topic, protocol) for _ in range(2))
    until_shared([first, second])
    third = Member(cluster, group, topic, protocol)
    with cluster.without(cluster.group_coordinator(group)):
        until_shared([first, second, third])
        # One leaves while the others have a new coordinator.
        second.close()
        until_shared([first, third])
    with cluster.without(cluster.group_coordinator(group)):
        fourth = Member(cluster, group, topic, protocol)
        until_shared([first, third, fourth])
    for member in (first, third, fourth):
        member.close()
