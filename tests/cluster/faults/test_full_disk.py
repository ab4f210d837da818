"""The disk of one broker is full: its partitions are led by others until there is room again."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_kit.network import skip_or_fail
from cluster_kit.scene import (
    PARTITIONS,
    SESSION_SECONDS,
    SETTINGS,
    TOPIC,
    Scene,
    expect_no_anomaly,
    wait_until,
)

from ottla import Admin
from ottla.client.errors import OttlaError
from ottla.client.positions import TopicPartition
from ottla.testing.cluster import LocalCluster

SMALL = 2
SIZE = 32 << 20


@pytest.fixture
def small_disk_scene(tmp_path: Path) -> Iterator[Scene]:
    """A cluster in which the data of broker 2 is on a file system of its own."""
    cluster = LocalCluster(tmp_path / "cluster", brokers=3, base_port=None, settings=SETTINGS)
    folder = cluster.data_path(SMALL)
    folder.mkdir(parents=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        skip_or_fail(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        with cluster:
            scene = Scene(cluster)
            scene.create_topic()
            yield scene
    finally:
        # Lazily: a broker that a failed test left behind may still be in there.
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Leaves no room on a file system; the file that takes it."""
    path = folder.parent / folder.name / "filler"
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    assert os.statvfs(folder).f_bavail == 0
    return path


@pytest.mark.long
def test_a_full_disk_is_no_target_of_a_move(small_disk_scene: Scene) -> None:
    scene = small_disk_scene
    with Admin(scene.bootstrap) as admin, scene.workload() as workload:
        workload.wait_for_progress()
        partition = TopicPartition(TOPIC, 0)
        admin.alter_reassignments({partition: (1, 3)})
        wait_until("no replica on the small disk", lambda: not admin.list_reassignments())
        filler = fill(scene.data(SMALL))
        with pytest.raises(OttlaError, match=f"Broker {SMALL} has room for 0 bytes"):
            admin.alter_reassignments({partition: (1, 3, SMALL)})
        assert admin.list_reassignments() == []
        (topic,) = admin.describe_topics(TOPIC).values()
        assert sorted(topic.partitions[0].replicas) == [1, 3]
        filler.unlink()
        admin.alter_reassignments({partition: (1, 3, SMALL)})
        scene.wait_until_in_sync()
    expect_no_anomaly(workload)


@pytest.mark.long
def test_full_disk_of_one_broker(small_disk_scene: Scene) -> None:
    scene = small_disk_scene
    with scene.workload() as workload:
        for _ in range(2):
            workload.wait_for_progress()
            led = [each for each in range(PARTITIONS) if scene.leader(each) == SMALL]
            filler = fill(scene.data(SMALL))
            # Enough that files which had room in their last page have none.
            workload.wait_for_progress(400)
            assert scene.cluster.state.brokers[SMALL].running
            for partition in led:
                assert scene.leader(partition) != SMALL
            filler.unlink()
            # A full disk is no failure: with room on it, the broker goes on by itself.
            workload.wait_for_progress()
            scene.wait_until_in_sync()
    expect_no_anomaly(workload)


@pytest.mark.long
def test_a_follower_whose_disk_is_full_when_its_leader_dies(small_disk_scene: Scene) -> None:
    """It is in no in-sync set by then, or has all that was acknowledged; the third one leads."""
    scene = small_disk_scene
    with scene.workload() as workload:
        workload.wait_for_progress()
        filler = fill(scene.data(SMALL))
        workload.wait_for_progress(400)
        leader = scene.leader(0)
        assert leader != SMALL
        scene.cluster.kill(leader)
        # One replica with room is left, fewer than min.insync.replicas: writes may have to wait.
        workload.quiet_for(SESSION_SECONDS * 2)
        assert scene.cluster.state.brokers[SMALL].running
        filler.unlink()
        workload.wait_for_progress()
        scene.cluster.start()
        scene.wait_until_in_sync()
        workload.wait_for_progress()
    expect_no_anomaly(workload)
