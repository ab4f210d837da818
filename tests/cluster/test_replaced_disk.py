"""A broker comes back with an empty disk: it fills itself up again, and never leads before it has."""

from __future__ import annotations

import shutil

import pytest
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
