"""The network between processes of a cluster is cut, in every shape, while clients write and read.

Each process has a network namespace of its own. Where none can be made the tests are skipped, unless
REQUIRE_NAMESPACES=1 says that they must run.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster_kit.network import NamespacesRefused, skip_or_fail
from cluster_kit.networked import NUMBERS, ZOOKEEPER, NetworkedScene
from cluster_kit.scene import PARTITIONS, SESSION_SECONDS, expect_no_anomaly
from cluster_kit.writer import Writer

from ottla.protocol.errors import ErrorCode

# Of each shape in a soak.
SOAK_ROUNDS = int(os.environ.get("CLUSTER_ROUNDS", "10"))


@pytest.fixture
def networked(tmp_path: Path) -> Iterator[NetworkedScene]:
    with contextlib.ExitStack() as left:
        try:
            scene = left.enter_context(NetworkedScene(tmp_path))
        except NamespacesRefused as refusal:
            skip_or_fail(refusal)
        yield scene


def others(leader: int) -> list[str]:
    return [str(each) for each in NUMBERS if each != leader]


def leader_from_followers(scene: NetworkedScene, leader: int) -> None:
    for follower in others(leader):
        scene.network.cut_both_ways(str(leader), follower)


def leader_from_one_follower(scene: NetworkedScene, leader: int) -> None:
    scene.network.cut_both_ways(str(leader), others(leader)[0])


def leader_from_zookeeper(scene: NetworkedScene, leader: int) -> None:
    scene.network.cut_both_ways(str(leader), ZOOKEEPER)


def leader_from_all_servers(scene: NetworkedScene, leader: int) -> None:
    """Clients still reach it, and nobody else does."""
    leader_from_followers(scene, leader)
    leader_from_zookeeper(scene, leader)


def leader_cannot_send_to_followers(scene: NetworkedScene, leader: int) -> None:
    for follower in others(leader):
        scene.network.cut(str(leader), follower)


def followers_cannot_send_to_leader(scene: NetworkedScene, leader: int) -> None:
    for follower in others(leader):
        scene.network.cut(follower, str(leader))


def leader_cannot_send_to_zookeeper(scene: NetworkedScene, leader: int) -> None:
    scene.network.cut(str(leader), ZOOKEEPER)


def zookeeper_cannot_send_to_leader(scene: NetworkedScene, leader: int) -> None:
    scene.network.cut(ZOOKEEPER, str(leader))


Cut = Callable[[NetworkedScene, int], None]
SHAPES: list[Cut] = [
    leader_from_followers,
    leader_from_one_follower,
    leader_from_zookeeper,
    leader_from_all_servers,
    leader_cannot_send_to_followers,
    followers_cannot_send_to_leader,
    leader_cannot_send_to_zookeeper,
    zookeeper_cannot_send_to_leader,
]


def cut_and_heal(networked: NetworkedScene, cuts: list[Cut]) -> None:
    """One cut after the other, while the workload runs."""
    with networked.workload(producers=1, transactional=1) as workload:
        for count, cut in enumerate(cuts):
            workload.wait_for_progress()
            cut(networked, networked.leader(count % PARTITIONS))
            # Long enough for sessions to end, followers to leave and leaders to be elected.
            workload.quiet_for(SESSION_SECONDS * 3)
            networked.network.heal()
            workload.wait_for_progress()
            networked.wait_until_in_sync()
    expect_no_anomaly(workload)


@pytest.mark.long
@pytest.mark.parametrize("cut", SHAPES, ids=lambda cut: cut.__name__)
def test_cut(networked: NetworkedScene, cut: Cut) -> None:
    cut_and_heal(networked, [cut])


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("cut", SHAPES, ids=lambda cut: cut.__name__)
def test_soak_of_one_cut(networked: NetworkedScene, cut: Cut) -> None:
    cut_and_heal(networked, [cut] * SOAK_ROUNDS)


@pytest.mark.long
def test_a_leader_cut_from_all_servers_is_replaced(networked: NetworkedScene) -> None:
    """The others go on while the cut lasts."""
    with networked.workload() as workload:
        workload.wait_for_progress()
        leader = networked.leader()
        leader_from_all_servers(networked, leader)
        networked.leader(other_than=leader, ask=networked.others(leader))
        workload.wait_for_progress()
        networked.network.heal()
        networked.wait_until_in_sync()
    expect_no_anomaly(workload)


@pytest.mark.long
@pytest.mark.parametrize(
    "cut", [leader_from_zookeeper, leader_from_all_servers], ids=lambda cut: cut.__name__
)
def test_a_leader_cut_from_zookeeper_acknowledges_nothing_alone(
    networked: NetworkedScene, cut: Cut
) -> None:
    """Clients still reach it. With acks=1 it goes on for as long as nobody else can lead, and no
    longer: what it acknowledged once another leads would be lost."""
    with networked.workload(producers=1) as workload:
        workload.wait_for_progress()
        leader = networked.leader(0)
        writer = Writer(networked, workload, "alone", acks=1)
        assert writer.leader == leader
        assert writer.write() is ErrorCode.NONE
        # The followers have what was acknowledged so far.
        workload.wait_for_progress()
        cut(networked, leader)
        assert writer.write(durable=False) is ErrorCode.NONE, "its session lives"
        networked.leader(0, other_than=leader, ask=networked.others(leader))
        # From here on what is acknowledged, by whomever, has to be there in the end.
        for _ in range(5):
            assert writer.write() is ErrorCode.NOT_LEADER_OR_FOLLOWER
        workload.wait_for_progress()
        networked.network.heal()
        networked.wait_until_in_sync()
        writer.look()
        assert writer.write() is ErrorCode.NONE
        workload.wait_for_progress()
    expect_no_anomaly(workload)
