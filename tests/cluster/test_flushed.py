"""`visible.when.flushed` in a cluster: followers sync what they take and tell the leader so."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster_kit.scene import TOPIC, Scene, wait_until
from cluster_kit.separate import separate_brokers
from confluent_kafka.admin import AdminClient, NewTopic

from ottla import Admin, Producer
from ottla.client.admin.configs import Resource
from ottla.client.consumer import Consumer
from ottla.testing import BrokerProcess

COUNT = 30
PLAIN = "plain"
# A broker whose syncs wait for as long as somebody has a lock on a file. Its followers wait for a sync
# only shortly before they ask for what comes next.
GATED = """
import fcntl, os, sys
from pathlib import Path
from ottla.cli.main import main
from ottla.replication import fetcher
from ottla.storage.files import Files

fetcher._FLUSH_SECONDS = 0.2
gate = Path(sys.argv.pop(1))

def fsync(files, fd):
    with gate.open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            gate.with_name("reached").touch()
            fcntl.flock(lock, fcntl.LOCK_SH)
    os.fsync(fd)

Files.fsync = fsync
main()
"""


class GatedBroker(BrokerProcess):
    gate: Path

    def command(self) -> list[str]:
        words = super().command()
        assert words[:3] == [sys.executable, "-m", "ottla.cli.main"]
        return [sys.executable, "-c", GATED, str(self.gate), *words[3:]]

    @contextmanager
    def held(self) -> Iterator[Path]:
        """No sync comes to its end; the path is that of a file that is there once one has begun."""
        with self.gate.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self.gate.with_name("reached")


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[BrokerProcess]]:
    """Three brokers; the syncs of the last may be held."""
    gate = tmp_path / "gate"
    gate.touch()

    def make(data: Path, *, settings: dict[str, str]) -> BrokerProcess:
        if settings["node.id"] != "3":
            return BrokerProcess(data, settings=settings)
        broker = GatedBroker(data, settings=settings)
        broker.gate = gate
        return broker

    # However long its disk stands still, it is in sync.
    patient = {"replica.lag.time.max.ms": "600000"}
    with separate_brokers(tmp_path, lambda _: patient, make) as started:
        yield started


def seen(bootstrap: str) -> list[bytes]:
    with Consumer(bootstrap) as consumer:
        return consumer.read(TOPIC)["value"].to_pylist()


def test_nothing_is_acknowledged_or_seen_before_every_follower_has_synced_it(
    brokers: list[BrokerProcess],
) -> None:
    gated = brokers[2]
    assert isinstance(gated, GatedBroker)
    bootstrap = brokers[0].bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    # Both led by the same broker: a follower asks it for both in one request.
    placed = [[1, 2, 3]]
    asked = {"visible.when.flushed": "true"}
    topics = [
        NewTopic(name, num_partitions=1, replica_assignment=placed, config=config)
        for name, config in ((TOPIC, asked), (PLAIN, {}))
    ]
    for made in admin.create_topics(topics).values():
        made.result(60)
    # Two connections: the answers on one are in the order of the requests.
    with Producer(bootstrap) as producer, Producer(bootstrap) as other:
        producer.send(TOPIC, b"first").result(60)
        other.send(PLAIN, b"first").result(60)
        assert seen(bootstrap) == [b"first"]
        with gated.held() as reached:
            held = producer.send(TOPIC, b"second")
            wait_until("a sync of what was sent", reached.exists)
            # Once this is acknowledged the follower has asked for what comes after "second", in a
            # request that would have told of its sync.
            other.send(PLAIN, b"second").result(60)
            assert not held.done()
            assert seen(bootstrap) == [b"first"]
        assert held.result(60).offset == 1
        assert seen(bootstrap) == [b"first", b"second"]


@pytest.mark.long
def test_it_goes_on_without_a_follower(scene: Scene) -> None:
    cluster = scene.cluster
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        admin.alter_configs(Resource.topic(TOPIC), assign={"visible.when.flushed": "true"})
        for each in range(COUNT):
            sent = producer.send(TOPIC, b"%d" % each, partition=0)
            producer.flush()
            assert sent.result().offset == each
        with Consumer(cluster.bootstrap) as consumer:
            assert len(consumer.read(TOPIC)) == COUNT
        # Once one of the followers has left the in-sync set.
        leader = scene.leader(0)
        away = next(each for each in scene.numbers if each != leader)
        cluster.kill(away)
        for each in range(COUNT, 2 * COUNT):
            producer.send(TOPIC, b"%d" % each, partition=0)
        producer.flush()
        with Consumer(cluster.bootstrap) as consumer:
            assert len(consumer.read(TOPIC)) == 2 * COUNT
        cluster.start()
        scene.wait_until_in_sync()
        # It has caught up, and counts again.
        sent = producer.send(TOPIC, b"last", partition=0)
        producer.flush()
        assert sent.result().offset == 2 * COUNT
