"""Single records deleted in a cluster: on every replica, over the death of the leader."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_kit.scene import SETTINGS, TOPIC, Scene, wait_until

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
