"""Single records deleted in a cluster: on every replica, over the death of the leader."""

from __future__ import annotations

from cluster_kit.scene import TOPIC, Scene

from ottla import Admin, Producer
from ottla.client.consumer import Consumer
from ottla.client.positions import TopicPartition
from ottla.logfiles.deletions import deleted_offsets
from ottla.logfiles.folders import find_logs

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
