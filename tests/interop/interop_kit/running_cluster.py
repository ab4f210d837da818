"""A cluster of three brokers under test: who leads what, and brokers that are killed and come back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from interop_kit.message_sets import Batch, batches
from ottla.client.admin.client import Admin
from ottla.client.errors import OttlaError
from ottla.server.coordination.coordinators import partition_for
from ottla.testing.cluster import LocalCluster

BROKERS = 3
PATIENCE = 60.0
GROUPS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"

# Every partition is on every broker, and two of them must have what is acknowledged.
SETTINGS = {
    "default.replication.factor": str(BROKERS),
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
    # Brokers that come back do not get their leaders back in the middle of a test.
    "auto.leader.rebalance.enable": "false",
}


class RunningCluster:
    """A LocalCluster, with the questions and faults that tests have in common."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.bootstrap = cluster.bootstrap

    def create_topic(self, topic: str, partitions: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(topic, partitions, BROKERS)])[topic].result(30)
        self.until_in_sync()

    # Who leads

    def leader(self, topic: str, partition: int, *, other_than: int | None = None) -> int:
        """The leader of a partition; waits for one, or for another one."""
        deadline = time.monotonic() + PATIENCE
        while True:
            leader = self._leader(topic, partition)
            if leader not in (None, other_than):
                return leader
            assert time.monotonic() < deadline, f"{topic}-{partition} has no leader"
            time.sleep(0.05)

    def _leader(self, topic: str, partition: int) -> int | None:
        with Admin(self.bootstrap) as admin:
            try:
                topics = {each.name: each for each in admin.list_topics(internal=True)}
            except OttlaError:
                return None  # the one that was asked has just been killed
        if topic not in topics:
            return None
        return topics[topic].partitions[partition].leader

    def group_coordinator(self, group: str) -> int:
        partitions = int(SETTINGS["offsets.topic.num.partitions"])
        return self.leader(GROUPS, partition_for(group, partitions))

    def transaction_coordinator(self, transactional_id: str) -> int:
        partitions = int(SETTINGS["transaction.state.log.num.partitions"])
        return self.leader(TRANSACTIONS, partition_for(transactional_id, partitions))

    def stored_batches(self, topic: str, partition: int = 0) -> list[Batch]:
        """The headers of all batches in a partition's log, as they lie in the folders of all replicas:
        waits until these hold the same bytes."""
        deadline = time.monotonic() + PATIENCE
        while True:
            held = [self._log_bytes(broker, topic, partition) for broker in range(1, BROKERS + 1)]
            if held[0] and held.count(held[0]) == BROKERS:
                return batches(held[0])
            sizes = [len(each) for each in held]
            assert time.monotonic() < deadline, f"{topic}-{partition}: logs of {sizes} bytes differ"
            time.sleep(0.05)

    def _log_bytes(self, broker: int, topic: str, partition: int) -> bytes:
        folder = self._cluster.data_path(broker) / f"{topic}-{partition}"
        return b"".join(each.read_bytes() for each in sorted(folder.glob("*.log")))

    # Faults

    def kill(self, broker: int) -> None:
        self._cluster.kill(broker)

    def bring_back(self, broker: int) -> None:
        """Returns when every replica is in sync: then the next one may be killed."""
        self._cluster.start([broker])
        self.until_in_sync()

    @contextmanager
    def without(self, broker: int) -> Iterator[None]:
        """Kills a broker, which comes back in the end."""
        self.kill(broker)
        try:
            yield
        finally:
            self.bring_back(broker)

    def until_in_sync(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while not (status := self._cluster.status()).healthy:
            assert time.monotonic() < deadline, f"not in sync: {status}"
            time.sleep(0.1)


@contextmanager
def running_cluster(folder: Path, **settings: str) -> Iterator[RunningCluster]:
    """Three brokers of their own. What they log is printed if the test fails, by pytest."""
    every = SETTINGS | {name.replace("_", "."): value for name, value in settings.items()}
    cluster = LocalCluster(folder, brokers=BROKERS, base_port=None, settings=every)
    with cluster:
        try:
            yield RunningCluster(cluster)
        finally:
            for broker in range(1, BROKERS + 1):
                lines = cluster.log_path(broker).read_text(errors="replace").splitlines()
                print(f"broker {broker} logged:", *lines[-40:], sep="\n  ")
