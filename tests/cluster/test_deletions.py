"""Single records deleted in a cluster: on every replica, over the death of the leader."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster_kit.asking import ask
from cluster_kit.scene import SETTINGS, TOPIC, Scene, wait_until
from confluent_kafka.admin import AdminClient, NewTopic
from server_kit.calls import Topic, fetch, offsets_of
from server_kit.wire import Wire

from ottla import Admin, Producer
from ottla.client.consumer import Consumer
from ottla.client.positions import TopicPartition
from ottla.logfiles.deletions import deleted_offsets
from ottla.logfiles.folders import find_logs
from ottla.testing.cluster import LocalCluster

PLACE = TopicPartition(TOPIC, 0)


def seen(bootstrap: str) -> list[int]:
    with Consumer(bootstrap) as consumer:
        table = consumer.read(TOPIC)
    rows = zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)
    return sorted(offset for partition, offset in rows if partition == 0)


def test_a_deletion_is_on_every_replica_and_outlasts_its_leader(scene: Scene) -> None:
    cluster = scene.cluster
    with Admin(cluster.bootstrap) as admin:
        with Producer(cluster.bootstrap) as producer:
            sent = [producer.send(TOPIC, b"%d" % each, partition=0) for each in range(20)]
            producer.flush()
        assert [each.result().offset for each in sent] == list(range(20))
        assert admin.delete_records_at({PLACE: [3, range(7, 10)]}) == {PLACE: 4}
        left = [each for each in range(20) if each not in (3, 7, 8, 9)]
        assert seen(cluster.bootstrap) == left
        leader = scene.leader(0)
        cluster.kill(leader)
        scene.leader(0, other_than=leader)
        assert admin.delete_records_at({PLACE: 0}) == {PLACE: 1}
        assert seen(cluster.bootstrap) == left[1:]
        cluster.start()
        scene.wait_until_in_sync()
    cluster.stop()
    for broker in scene.numbers:
        (folder,) = find_logs(scene.data(broker) / f"{TOPIC}-0")
        hidden = deleted_offsets(folder)
        assert [each for each in range(20) if each in hidden] == [0, 3, 7, 8, 9], broker


def holding(scene: Scene, needle: bytes) -> set[int]:
    """The brokers on whose disks something is."""
    return {
        broker
        for broker in scene.numbers
        if any(
            needle in path.read_bytes()
            for path in (scene.data(broker) / f"{TOPIC}-0").glob("*.log*")
            if path.exists()
        )
    }


@pytest.mark.long
def test_erased_on_every_replica_also_on_one_that_was_away(tmp_path: Path) -> None:
    """Marks stay: a follower that comes back with the record is told to erase it, too."""
    settings = {
        **SETTINGS,
        "log.cleaner.backoff.ms": "100",
        "log.flush.offset.checkpoint.interval.ms": "200",
    }
    with LocalCluster(
        tmp_path / "cluster", brokers=3, base_port=None, settings=settings
    ) as cluster:
        scene = Scene(cluster)
        scene.create_topic(**{"delete.record.erase.ms": "0", "compression.type": "uncompressed"})
        with Producer(cluster.bootstrap) as producer:
            for number in range(20):
                producer.send(TOPIC, b"record %02d." % number, partition=0)
                producer.flush()
        everybody = set(scene.numbers)
        assert holding(scene, b"record 03.") == everybody
        leader = scene.leader(0)
        away = max(everybody - {leader})
        cluster.kill(away)
        with Admin(scene.others(away)) as admin:
            assert admin.delete_records_at({PLACE: [3, range(7, 10)]}) == {PLACE: 4}
        wait_until("those that run have erased", lambda: holding(scene, b"record 03.") == {away})
        cluster.start()
        scene.wait_until_in_sync()
        wait_until("the one that was away, too", lambda: not holding(scene, b"record 03."))
        for number in range(20):
            gone = number in (3, 7, 8, 9)
            assert holding(scene, b"record %02d." % number) == (set() if gone else everybody)
        assert seen(cluster.bootstrap) == [each for each in range(20) if each not in (3, 7, 8, 9)]


SINGLE = "single"
# A follower that stands still stays in sync for as long as these tests take.
PATIENT = {
    **SETTINGS,
    "zookeeper.session.timeout.ms": "60000",
    "replica.lag.time.max.ms": "600000",
}


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Scene]:
    """A topic of one partition, led by broker 1, with ten records."""
    with LocalCluster(tmp_path / "cluster", brokers=3, base_port=None, settings=PATIENT) as cluster:
        scene = Scene(cluster)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        topic = NewTopic(SINGLE, num_partitions=1, replica_assignment=[[1, 2, 3]])
        admin.create_topics([topic])[SINGLE].result(60)
        with Producer(cluster.bootstrap) as producer:
            for number in range(10):
                producer.send(SINGLE, b"%d" % number)
        try:
            yield scene
        finally:
            for broker, server in cluster.state.brokers.items():
                if server.running:
                    scene.signal(broker, signal.SIGCONT)


@contextmanager
def deleting(scene: Scene, offset: int) -> Iterator[subprocess.Popen[bytes]]:
    """`ottla record delete`, as a process that can be ended before it asks again."""
    command = [sys.executable, "-m", "ottla.cli.main", "record", "delete", SINGLE, "0", str(offset)]
    with subprocess.Popen([*command, "--yes", "--server", scene.address(1)]) as process:
        try:
            yield process
        finally:
            process.kill()


def visible(scene: Scene, broker: int, *, name: str = SINGLE) -> list[int]:
    """The offsets of what one broker shows to consumers, whether it leads or follows."""
    port = scene.cluster.state.brokers[broker].port
    with Wire("127.0.0.1", port) as wire:
        found = fetch(wire, Topic(name, b""), 0)
    assert found.error_code == 0
    return offsets_of(found.records)


@pytest.mark.long
def test_a_deletion_hides_at_once_and_is_answered_when_it_is_committed(patient: Scene) -> None:
    """On the leader and on followers, which consumers may read from, too."""
    everything = list(range(10))
    left = [each for each in everything if each != 3]
    patient.signal(2, signal.SIGSTOP)
    with deleting(patient, 3) as deletion:
        wait_until("the leader hides it", lambda: visible(patient, 1) == left)
        # Broker 3 has it, broker 2 has not.
        wait_until("the other follower hides it", lambda: visible(patient, 3) == left)
        with pytest.raises(subprocess.TimeoutExpired):
            deletion.wait(0.5)
        patient.signal(2, signal.SIGCONT)
        assert deletion.wait(60) == 0
    wait_until("all hide it", lambda: visible(patient, 2) == left)
    # The leader dies with a mark that nobody else has: what it hid is there again.
    followers = (2, 3)
    for broker in followers:
        patient.signal(broker, signal.SIGSTOP)
    # What they have asked for already is answered with this, and not with the mark.
    with Producer(patient.address(1), acks=1) as producer:
        producer.send(SINGLE, b"for those who wait").result(60)
    with deleting(patient, 5) as deletion:
        wait_until("the leader hides it", lambda: 5 not in visible(patient, 1))
        assert deletion.poll() is None
    patient.cluster.kill(1)
    for broker in followers:
        patient.signal(broker, signal.SIGCONT)

    def leader() -> int:
        view = ask(patient.address(2), SINGLE)
        return -1 if view is None else view.partitions[0].leader

    wait_until("one of them leads", lambda: leader() in followers)
    assert visible(patient, leader())[: len(left)] == left
