"""A broker comes back with an empty disk, or with an old one: it fills itself up again, and never leads
before it has."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cluster_kit.asking import ask
from cluster_kit.records import leave_alone_in_sync, read, write
from cluster_kit.scene import PARTITIONS, TOPIC, Scene, expect_no_anomaly, wait_until

from ottla import Admin, Producer
from ottla.client.admin.configs import Resource
from ottla.client.positions import TopicPartition
from ottla.testing.broker_process import free_port
from ottla.testing.cluster import ClusterError


@pytest.mark.long
@pytest.mark.timeout(300)
def test_an_empty_disk_fills_itself_up(scene: Scene) -> None:
    workload = scene.workload()
    with workload:
        workload.wait_for_progress(writes=100)
        for broker in scene.numbers:
            workload.wait_for_progress()
            scene.cluster.kill(broker)
            shutil.rmtree(scene.data(broker))
            scene.cluster.start()
            scene.wait_until_in_sync()

            def is_full(broker: int = broker) -> bool:
                # As much as the others have, which grow meanwhile.
                sizes = [
                    sum(each.stat().st_size for each in scene.data(one).glob(f"{TOPIC}-*/*.log"))
                    for one in scene.numbers
                ]
                return sizes[scene.numbers.index(broker)] > 0.5 * max(sizes)

            wait_until(f"broker {broker} has its records again", is_full)
        workload.wait_for_progress()
    expect_no_anomaly(workload)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_same_id_on_another_address(scene: Scene) -> None:
    """A machine is replaced: nothing of it is left, its broker's number comes up elsewhere, and clients
    that were told of the old address only go on."""
    cluster = scene.cluster
    workload = scene.workload()
    with workload:
        workload.wait_for_progress(writes=100)
        broker = scene.leader(0)
        cluster.kill(broker)
        shutil.rmtree(scene.data(broker))
        state = cluster.state
        former, state.brokers[broker].port = state.brokers[broker].port, free_port()
        cluster._save(state)
        cluster.start()
        scene.bootstrap = cluster.bootstrap
        assert str(former) not in scene.bootstrap
        scene.wait_until_in_sync()
        workload.wait_for_progress()
        # It leads again, and all write to it there.
        with Admin(scene.bootstrap) as admin:
            admin.elect_leaders()
        wait_until("it leads", lambda: scene.leader(0) == broker)
        workload.wait_for_progress(writes=100)
    expect_no_anomaly(workload)
    assert workload.write_errors == []


@pytest.mark.long
def test_an_empty_disk_of_the_last_in_sync_leads_nothing(scene: Scene) -> None:
    """What only it had is gone. That a replica without it leads is for somebody to decide."""
    cluster = scene.cluster
    place = TopicPartition(TOPIC, 0)
    leader = scene.leader(0)
    others = [each for each in scene.numbers if each != leader]

    def led_by(broker: int) -> int:
        """Who leads, as a broker says."""
        view = scene.view(scene.address(broker))
        return -2 if view is None or 0 not in view.partitions else view.partitions[0].leader

    def write(count: int) -> None:
        with Producer(scene.address(leader)) as producer:
            sent = [producer.send(TOPIC, b"x", partition=0) for _ in range(count)]
            producer.flush()
        assert all(each.result().offset is not None for each in sent)

    with Admin(scene.bootstrap) as admin:
        admin.alter_configs(Resource.topic(TOPIC), assign={"min.insync.replicas": "1"})
    write(5)
    for broker in others:
        cluster.kill(broker)
    write(5)
    cluster.kill(leader)
    shutil.rmtree(scene.data(leader))

    def starts() -> bool:
        # As long as its former life is thought to run, nobody else may have its number.
        try:
            cluster.start([leader])
        except ClusterError as error:
            if "is running" not in str(error):
                raise
            return False
        return True

    wait_until("its number is free, and it starts", starts)
    wait_until("it is back, and leads nothing", lambda: led_by(leader) == -1)
    cluster.start()
    with Admin(scene.bootstrap) as admin:
        wait_until("all are back", lambda: len(admin.describe_cluster().brokers) == 3)
        assert {led_by(each) for each in scene.numbers} == {-1}
    # (It might be the one to be elected: it is stopped, as whoever decides this would.)
    cluster.stop([leader])
    with Admin(scene.others(leader)) as admin:
        admin.elect_leaders(
            [TopicPartition(TOPIC, each) for each in range(PARTITIONS)], unclean=True
        )
        wait_until("another leads", lambda: led_by(others[0]) in others)
        cluster.start()
        scene.wait_until_in_sync()
        assert admin.list_offsets({place: "latest"})[place].offset == 5


@pytest.mark.timeout(300)
def test_an_old_copy_of_a_disk(scene: Scene, tmp_path: Path) -> None:
    """The last broker in sync is stopped, and comes back with a disk of yesterday."""
    cluster, old = scene.cluster, 1
    write(scene, range(300))
    cluster.stop([old])
    shutil.copytree(scene.data(old), tmp_path / "copy", copy_function=shutil.copy2)
    cluster.start()
    scene.wait_until_in_sync()
    write(scene, range(300, 600))
    leave_alone_in_sync(scene, old)
    cluster.stop([old])
    shutil.rmtree(scene.data(old))
    shutil.copytree(tmp_path / "copy", scene.data(old), copy_function=shutil.copy2)
    cluster.start([old])
    view = ask(scene.address(old), TOPIC)
    assert view is not None
    assert len(view.partitions) == PARTITIONS
    assert {(each.leader, each.in_sync) for each in view.partitions.values()} == {(-1, frozenset())}
    told = cluster.log_path(old).read_text()
    assert f"broker {old} comes with an old copy of its data" in told
    assert "put that one back" in told
    # Those who have everything lead, and it fetches what it lacks.
    cluster.start()
    scene.wait_until_in_sync()
    assert read(scene, 600) == list(range(600))
    write(scene, range(600, 700))
    assert read(scene, 700) == list(range(700))


@pytest.mark.timeout(300)
def test_brokers_that_are_killed_time_and_again_keep_their_disks(scene: Scene) -> None:
    """All of them, as soon as they are up: none takes its own disk for an old one."""
    cluster = scene.cluster
    write(scene, range(300))
    for _ in range(3):
        for broker in scene.numbers:
            cluster.kill(broker)
        cluster.start()
        for broker in scene.numbers:
            cluster.kill(broker)
        cluster.start()
    scene.wait_until_in_sync()
    assert read(scene, 300) == list(range(300))
    for broker in scene.numbers:
        assert "old copy" not in cluster.log_path(broker).read_text()
