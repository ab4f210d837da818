"""`visible.when.flushed` in a cluster: followers sync what they take and tell the leader so."""

from __future__ import annotations

import pytest
from cluster_kit.scene import TOPIC, Scene

from ottla import Admin, Producer
from ottla.client.admin.configs import Resource
from ottla.client.consumer import Consumer
from ottla.logfiles.checkpoint import parse_offsets
from ottla.logfiles.names import RECOVERY_POINT_CHECKPOINT

COUNT = 30


@pytest.mark.long
def test_what_is_acknowledged_is_on_every_disk(scene: Scene) -> None:
    cluster = scene.cluster
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        admin.alter_configs(Resource.topic(TOPIC), assign={"visible.when.flushed": "true"})
        for each in range(COUNT):
            sent = producer.send(TOPIC, b"%d" % each, partition=0)
            producer.flush()
            assert sent.result().offset == each
        with Consumer(cluster.bootstrap) as consumer:
            assert len(consumer.read(TOPIC)) == COUNT
        # Without one of the followers it goes on, once that one has left the in-sync set.
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
    cluster.stop()
    for broker in scene.numbers:
        points = parse_offsets((scene.data(broker) / RECOVERY_POINT_CHECKPOINT).read_bytes())
        assert points[TOPIC, 0] == 2 * COUNT + 1
