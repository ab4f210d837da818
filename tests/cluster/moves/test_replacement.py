"""A broker stays away: its replicas are made anew on another one, if that is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_kit.scene import PARTITIONS, SETTINGS, Scene, expect_no_anomaly, wait_until

from ottla.testing.cluster import LocalCluster


@pytest.mark.long
def test_replicas_of_a_broker_that_stays_away(tmp_path: Path) -> None:
    settings = {**SETTINGS, "replica.replacement.after.ms": "2000"}
    cluster = LocalCluster(tmp_path / "cluster", brokers=4, base_port=None, settings=settings)
    with cluster:
        scene = Scene(cluster)
        scene.create_topic()
        with scene.workload() as workload:
            workload.wait_for_progress()
            gone = scene.leader(0)
            scene.cluster.kill(gone)

            def replaced() -> bool:
                view = scene.view(scene.others(gone))
                return (
                    view is not None
                    and len(view.partitions) == PARTITIONS
                    and all(
                        gone not in each.replicas and len(each.in_sync) == len(each.replicas) == 3
                        for each in view.partitions.values()
                    )
                )

            wait_until("all replicas are on other brokers, and in sync", replaced)
            workload.wait_for_progress()
            # It comes back, and has nothing to do with the topic any more.
            scene.cluster.start()
            workload.wait_for_progress()
            assert replaced()
        expect_no_anomaly(workload)
