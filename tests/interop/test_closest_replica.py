"""Consumers that name their rack read from the replica in it (KIP-392), whoever made them.

Three brokers stand in three racks. The first leads; the consumer is in the rack of the second. That this
one really serves it is seen by the bytes that it sends: nobody else fetches from a broker that leads
nothing.
"""

from __future__ import annotations

import contextlib
import re
import selectors
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

import confluent_kafka
import pytest
from interop_kit import toolchain

from ottla import Admin, Consumer, Producer
from ottla.client.admin.topics import NewTopic
from ottla.testing import BrokerProcess
from ottla.testing.guardian import end_with_this_program
from ottla.testing.ports import free_ports
from ottla.testing.zookeeper import ZooKeeperProcess

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("racks")]

RACKS: Final = {1: "a", 2: "b", 3: "c"}
LEADER, CLOSEST = 1, 2
SETTINGS: Final = {
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "auto.leader.rebalance.enable": "false",
    "replica.lag.time.max.ms": "1000",
    # One that stands still leaves the in-sync replicas, and stays in the cluster.
    "zookeeper.session.timeout.ms": "30000",
}
SIZE: Final = 1000
PATIENCE: Final = 60.0


class Cluster:
    """Three brokers, each in its rack, and what they tell."""

    def __init__(self, folder: Path) -> None:
        self._zookeeper = ZooKeeperProcess(folder / "zookeeper")
        self._metrics = dict(zip(RACKS, free_ports(len(RACKS)), strict=True))
        self.brokers = {
            number: BrokerProcess(
                folder / f"broker-{number}",
                settings={
                    "node.id": str(number),
                    "broker.rack": rack,
                    "zookeeper.connect": f"{self._zookeeper.address}/racks",
                    "metrics.listener": f"127.0.0.1:{self._metrics[number]}",
                    **SETTINGS,
                },
            )
            for number, rack in RACKS.items()
        }

    @property
    def bootstrap(self) -> str:
        # Not the one that comes and goes.
        return self.brokers[LEADER].bootstrap

    @contextlib.contextmanager
    def running(self) -> Iterator[Cluster]:
        with contextlib.ExitStack() as left:
            left.enter_context(self._zookeeper)
            for broker in self.brokers.values():
                left.enter_context(broker)
            left.callback(lambda: self.brokers[CLOSEST].signal(signal.SIGCONT))
            yield self

    def create_topic(self, topic: str) -> None:
        with Admin(self.bootstrap) as admin:
            admin.create_topics([NewTopic(topic, assignments={0: [LEADER, CLOSEST, 3]})])
        self.wait_for_in_sync(topic, set(RACKS))

    def wait_for_in_sync(self, topic: str, brokers: set[int]) -> None:
        with Admin(self.bootstrap) as admin:
            wait_until(
                f"in sync are {brokers}",
                lambda: set(admin.describe_topics(topic)[topic].partitions[0].in_sync) == brokers,
            )

    def sent(self, broker: int) -> int:
        """How many bytes a broker has sent since its start."""
        address = f"http://127.0.0.1:{self._metrics[broker]}/metrics"
        with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
            found = re.search(r"^ottla_sent_bytes_total (\S+)$", answer.read().decode(), re.M)
        assert found is not None
        return int(float(found[1]))


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE:.0f} s: {what}"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("racks")).running() as cluster:
        yield cluster


class Reader(Protocol):
    """A consumer of one partition from its beginning on, in the rack of the closest replica."""

    def read(self, count: int) -> list[bytes]:
        """The next records."""

    def close(self) -> None: ...


class OttlaReader:
    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = Consumer(
            bootstrap, client_rack=RACKS[CLOSEST], auto_offset_reset="earliest"
        )
        self._consumer.assign([(topic, 0)])
        self._rows: list[bytes] = []

    def read(self, count: int) -> list[bytes]:
        if len(self._rows) < count:
            for batch in self._consumer.batches(timeout=PATIENCE):
                self._rows += batch.column("value").to_pylist()
                if len(self._rows) >= count:
                    break
        found, self._rows = self._rows[:count], self._rows[count:]
        return found

    def close(self) -> None:
        self._consumer.close()


class LibrdkafkaReader:
    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "client.rack": RACKS[CLOSEST],
                "group.id": "racks",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        start = confluent_kafka.OFFSET_BEGINNING
        self._consumer.assign([confluent_kafka.TopicPartition(topic, 0, start)])

    def read(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        deadline = time.monotonic() + PATIENCE
        while len(found) < count and time.monotonic() < deadline:
            polled = self._consumer.consume(count - len(found), 0.2)
            found += [each.value() for each in polled if each.error() is None]
        return found

    def close(self) -> None:
        self._consumer.close()


class JavaReader:
    """Kafka's console consumer."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        name = "org.apache.kafka.tools.consumer.ConsoleConsumer"
        place = ["--topic", topic, "--partition", "0", "--offset", "earliest"]
        rack = ["--command-property", f"client.rack={RACKS[CLOSEST]}"]
        self._process = subprocess.Popen(
            [*toolchain.kafka_tools(), name, "--bootstrap-server", bootstrap, *place, *rack],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        end_with_this_program(self._process.pid)
        self._unread = b""

    def read(self, count: int) -> list[bytes]:
        assert self._process.stdout is not None
        deadline = time.monotonic() + PATIENCE
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while self._unread.count(b"\n") < count:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    break
                chunk = self._process.stdout.read(1 << 20)
                assert chunk, "the console consumer has ended"
                self._unread += chunk
        *lines, self._unread = self._unread.split(b"\n", count)
        return lines

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()


READERS: Final[dict[str, Callable[[str, str], Reader]]] = {
    "ottla": OttlaReader,
    "librdkafka": LibrdkafkaReader,
    "java": JavaReader,
}


class Written:
    """What was written to a topic, in order."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self.values: list[bytes] = []

    def write(self, count: int, acks: str = "all") -> list[bytes]:
        first = len(self.values)
        values = [b"%d:" % each + b"x" * SIZE for each in range(first, first + count)]
        with Producer(self._cluster.bootstrap, acks=acks) as producer:
            for value in values:
                producer.send(self._topic, value, partition=0)
        self.values += values
        return values


@pytest.mark.timeout(300, func_only=True)
@pytest.mark.parametrize("name", READERS)
def test_a_consumer_reads_from_the_replica_in_its_rack(cluster: Cluster, name: str) -> None:
    topic, make = f"read-by-{name}", READERS[name]
    closest = cluster.brokers[CLOSEST]
    if not closest.running:
        closest.start()
    cluster.create_topic(topic)
    written = Written(cluster, topic)
    written.write(300)
    before = {each: cluster.sent(each) for each in RACKS}
    with contextlib.closing(make(cluster.bootstrap, topic)) as reader:
        assert reader.read(300) == written.values
        sent = {each: cluster.sent(each) - before[each] for each in RACKS}
        assert sent[CLOSEST] > 300 * SIZE, sent
        assert sent[LEADER] < 300 * SIZE, sent

        # It is killed: the consumer goes on at another one.
        closest.kill()
        assert written.write(50) == reader.read(50)
        # It is back: the consumer is sent there again, once it is in sync.
        closest.start()
        cluster.wait_for_in_sync(topic, set(RACKS))

        def is_asked_again() -> bool:
            assert written.write(20) == reader.read(20)
            return cluster.sent(CLOSEST) > 20 * SIZE

        wait_until("the closest replica is asked again", is_asked_again)

    # It is behind, and out of sync: whoever comes now reads from the leader.
    closest.signal(signal.SIGSTOP)
    try:
        written.write(50, acks="1")
        cluster.wait_for_in_sync(topic, set(RACKS) - {CLOSEST})
        with contextlib.closing(make(cluster.bootstrap, topic)) as reader:
            assert reader.read(len(written.values)) == written.values
            closest.signal(signal.SIGCONT)
            cluster.wait_for_in_sync(topic, set(RACKS))
            assert written.write(20) == reader.read(20)
    finally:
        closest.signal(signal.SIGCONT)
