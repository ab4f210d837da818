"""Leadership goes back to the first replica of each partition, by itself, while clients write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_kit.scene import PARTITIONS, SETTINGS, Scene, expect_no_anomaly, wait_until

from ottla.testing.cluster import LocalCluster


@pytest.fixture
def balanced(tmp_path: Path) -> Iterator[Scene]:
    settings = {**SETTINGS, "leader.imbalance.check.interval.seconds": "1"}
    cluster = LocalCluster(tmp_path / "cluster", brokers=3, base_port=None, settings=settings)
    with cluster:
        scene = Scene(cluster)
        scene.create_topic()
        yield scene


def are_preferred(scene: Scene) -> bool:
    """Whether every partition is led by its first replica, as any of the brokers knows it."""
    view = scene.view()
    return (
        view is not None
        and len(view.partitions) == PARTITIONS
        and all(each.leader == each.replicas[0] for each in view.partitions.values())
    )


@pytest.mark.long
def test_leaders_get_back_what_they_led(balanced: Scene) -> None:
    """Under load: a new leader has to have what the one before it has acknowledged."""
    scene = balanced
    with scene.workload(producers=1, transactional=1) as workload:
        for broker in scene.numbers:
            assert are_preferred(scene)
            (led,) = (each for each in range(PARTITIONS) if scene.leader(each) == broker)
            workload.wait_for_progress()
            scene.cluster.kill(broker)
            scene.leader(led, other_than=broker, ask=scene.others(broker))
            workload.wait_for_progress()
            scene.cluster.start()
            wait_until("the first replicas lead", lambda: are_preferred(scene))
            workload.wait_for_progress()
            scene.wait_until_in_sync()
    expect_no_anomaly(workload)
