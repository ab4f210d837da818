"""Brokers that stand in racks: the replicas of a partition are in different ones, whatever is done.

When a topic is created, when it gets more or fewer replicas, when brokers come and go, and while one of
them is away.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_kit.commands import ottla
from cluster_kit.scene import SETTINGS, TOPIC, Scene, expect_no_anomaly, wait_until

from ottla import Admin, Producer
from ottla.client.admin.topics import NewTopic
from ottla.testing.cluster import ClusterError, LocalCluster

RACKS = ("a", "b", "c")
# The largest alone, so that who has least is not who would be next in turn.
SIZES = (4_000_000, 1_000_000, 300_000, 100_000)
CARGO = "cargo"


@pytest.fixture
def racked(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(
        tmp_path / "cluster", brokers=3, base_port=None, settings=SETTINGS, racks=RACKS
    ) as cluster:
        cluster._brokers = None  # it grows and shrinks
        cluster._racks = ()
        yield cluster


def racks_of(cluster: LocalCluster) -> dict[int, str | None]:
    """As the cluster tells clients, those of brokers that are away too."""
    with Admin(cluster.bootstrap) as admin:
        found = admin.describe_cluster()
    return {each.id: each.rack for each in (*found.brokers, *found.away)}


def placed(cluster: LocalCluster) -> dict[str, tuple[int, ...]]:
    with Admin(cluster.bootstrap) as admin:
        return {
            f"{topic.name}-{each.partition}": each.replicas
            for topic in admin.list_topics(internal=True, from_controller=True)
            for each in topic.partitions
        }


def expect_racks(cluster: LocalCluster, at_least: int, factor: int | None = None) -> None:
    """Every partition has its replicas in different racks, as long as there are so many."""
    racks = racks_of(cluster)
    for name, replicas in placed(cluster).items():
        if factor is not None:
            assert len(replicas) == factor, name
        apart = {racks[each] for each in replicas}
        assert len(apart) >= min(at_least, len(replicas)), f"{name} on {replicas} of {racks}"


def fill(cluster: LocalCluster) -> None:
    with Producer(cluster.bootstrap) as producer:
        for partition, size in enumerate(SIZES):
            for _ in range(size // 50_000):
                producer.send(CARGO, bytes(50_000), partition=partition)


def test_new_partitions(racked: LocalCluster) -> None:
    """Three brokers in one rack, and one in each of the two others: the many in one rack are not the
    first choice."""
    for _ in range(2):
        racked.add("a")
    assert racks_of(racked) == {1: "a", 2: "b", 3: "c", 4: "a", 5: "a"}
    with Admin(racked.bootstrap) as admin:
        admin.create_topics([NewTopic(f"of-{factor}", 7, factor) for factor in (2, 3)])
        admin.create_partitions("of-3", 12)
        admin.create_topic("of-5", 3, 5)
    with Producer(racked.bootstrap) as producer:
        producer.send("made-by-itself", b"x")
    expect_racks(racked, at_least=3)


def test_commands_name_racks(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    cluster = LocalCluster(folder, brokers=2, base_port=None, settings=SETTINGS, racks=("a",))
    with cluster:
        ottla("cluster", "add", "--rack", "b", "--data", folder)
        assert racks_of(cluster) == {1: "a", 2: "a", 3: "b"}
        # They stand where they stood.
        cluster.kill(3)
        ottla("cluster", "start", "--data", folder)
        assert racks_of(cluster) == {1: "a", 2: "a", 3: "b"}
        told = ottla("cluster", "start", "--rack", "c", "--data", folder, fails=True)
        assert "stand in other racks" in told
        with pytest.raises(ClusterError, match="stand in other racks"):
            LocalCluster(folder, racks=("a", "b")).start()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_racks_stay_apart_while_brokers_come_and_go(racked: LocalCluster) -> None:
    data = ("--data", racked.folder)
    with Admin(racked.bootstrap) as admin:
        admin.create_topic(CARGO, len(SIZES), 2)
    fill(racked)
    scene = Scene(racked)
    scene.create_topic()
    workload = scene.workload()
    with workload:
        workload.wait_for_progress()
        expect_racks(racked, at_least=3)
        ottla("topic", "alter", CARGO, "-r", 3, "--server", racked.bootstrap)
        expect_racks(racked, at_least=3)
        # The new ones are empty, and most of them are in the rack that others like best then.
        for rack in ("a", "a", "b", "c"):
            ottla("cluster", "add", "--rack", rack, *data)
        ottla("cluster", "rebalance", "--yes", "--sample", "0", *data)
        expect_racks(racked, at_least=3)
        held = {each for replicas in placed(racked).values() for each in replicas}
        assert held == {1, 2, 3, 4, 5, 6, 7}
        workload.wait_for_progress()
        # The others of its rack have what it had.
        for leaving in (2, 1):
            ottla("cluster", "remove", leaving, "--yes", *data)
            expect_racks(racked, at_least=3, factor=None)
        workload.wait_for_progress()
        ottla("topic", "alter", CARGO, "-r", 2, "--server", racked.bootstrap)
        expect_racks(racked, at_least=2)
        # The last of its rack: two are left.
        ottla("cluster", "remove", 6, "--yes", *data)
        assert set(racks_of(racked).values()) == {"a", "c"}
        expect_racks(racked, at_least=2)
        workload.wait_for_progress()
    expect_no_anomaly(workload)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_broker_that_is_away_keeps_its_rack(racked: LocalCluster) -> None:
    """What others have is not moved into it: when it is back there would be two of one partition."""
    data = ("--data", racked.folder)
    with Admin(racked.bootstrap) as admin:
        admin.create_topics(
            [NewTopic(CARGO, assignments={index: [2, 1] for index in range(len(SIZES))})]
        )
    fill(racked)
    for rack in ("a", "b"):
        racked.add(rack)
    racked.kill(1)

    def is_away() -> bool:
        with Admin(racked.bootstrap) as admin:
            return [each.id for each in admin.describe_cluster().away] == [1]

    wait_until("broker 1 is known as away", is_away)
    assert racks_of(racked)[1] == "a"
    ottla("cluster", "rebalance", "--yes", "--sample", "0", *data)
    expect_racks(racked, at_least=2)
    assert {one for each in placed(racked).values() for one in each} > {1, 2}
    ottla("cluster", "remove", 2, "--yes", *data)
    expect_racks(racked, at_least=2)
    racked.start()
    assert all(1 in replicas for name, replicas in placed(racked).items() if TOPIC not in name)
