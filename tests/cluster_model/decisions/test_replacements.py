"""Replicas of brokers that stay away: who gets them, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from ottla.cluster.decisions.moves import WantedMove
from ottla.cluster.decisions.replacements import replacements
from ottla.cluster.metadata import ClusterImage, Endpoint, Partition, RegisteredBroker, Topic
from ottla.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from ottla.server.replication.replacing import brokers_away, chosen
from ottla.wire.errors import ConnectionLost

ENDPOINT = Endpoint("PLAINTEXT", "host", 1, "PLAINTEXT")


def a_broker(broker_id: int, rack: str | None = None, *, leaving: bool = False) -> RegisteredBroker:
    return RegisteredBroker(broker_id, 10 * broker_id, rack, (ENDPOINT,), leaving=leaving)


def image_of(*partitions: Partition, brokers: tuple[RegisteredBroker, ...]) -> ClusterImage:
    topic = Topic("t", b"t" * 16, partitions)
    return ClusterImage(
        "cluster", 1, topics={"t": topic}, brokers={each.id: each for each in brokers}
    )


def a_partition(
    index: int,
    *replicas: int,
    leader: int = 1,
    adding: tuple[int, ...] = (),
    removing: tuple[int, ...] = (),
) -> Partition:
    isr = tuple(each for each in replicas if each != 3)
    return Partition(index, replicas, isr, leader, adding=adding, removing=removing)


def test_a_replica_is_replaced_in_its_place_by_the_broker_with_the_fewest() -> None:
    image = image_of(
        a_partition(0, 3, 1, 2),
        a_partition(1, 1, 2, 4),
        a_partition(2, 1, 3, 2),
        brokers=tuple(a_broker(each) for each in (1, 2, 4, 5)),
    )
    assert replacements(image, {3}, 10) == [
        WantedMove("t", 0, (5, 1, 2)),
        WantedMove("t", 2, (1, 4, 2)),
    ]
    assert replacements(image, {3}, 1) == [WantedMove("t", 0, (5, 1, 2))]
    assert replacements(image, set(), 10) == []


def test_racks_come_before_numbers() -> None:
    brokers = (a_broker(1, "a"), a_broker(2, "b"), a_broker(4, "a"), a_broker(5, "c"))
    others = [a_partition(index, 5, 1) for index in range(1, 4)]
    image = image_of(a_partition(0, 1, 2, 3), *others, brokers=brokers)
    assert replacements(image, {3}, 10) == [WantedMove("t", 0, (1, 2, 5))]


def test_the_racks_of_brokers_that_have_just_gone_away_count() -> None:
    """Broker 2 is expected back, broker 3 no more: the newcomer stands in no rack of the others."""
    brokers = (a_broker(1, "a"), a_broker(4, "b"), a_broker(5, "c"))
    others = [a_partition(index, 5, 1) for index in range(1, 4)]
    image = image_of(a_partition(0, 1, 2, 3), *others, brokers=brokers)
    fenced = {each: a_broker(each, rack) for each, rack in ((2, "b"), (3, "c"))}
    assert replacements(replace(image, fenced=fenced), {3}, 10) == [WantedMove("t", 0, (1, 2, 5))]


def test_machines_come_before_numbers() -> None:
    """Brokers of one machine are lost together."""
    brokers = tuple(
        replace(a_broker(each), machine=machine)
        for each, machine in ((1, "a"), (2, "b"), (4, "a"), (5, "c"))
    )
    others = [a_partition(index, 5, 1) for index in range(1, 4)]
    image = image_of(a_partition(0, 1, 2, 3), *others, brokers=brokers)
    assert replacements(image, {3}, 10) == [WantedMove("t", 0, (1, 2, 5))]


def test_what_cannot_be_replaced_is_left() -> None:
    nobody_else = image_of(a_partition(0, 1, 2, 3), brokers=(a_broker(1), a_broker(2)))
    assert replacements(nobody_else, {3}, 10) == []
    brokers = (a_broker(1), a_broker(2), a_broker(4, leaving=True))
    assert replacements(image_of(a_partition(0, 1, 2, 3), brokers=brokers), {3}, 10) == []
    brokers = (a_broker(1), a_broker(2), a_broker(4))
    leaderless = image_of(a_partition(0, 1, 2, 3, leader=-1), brokers=brokers)
    assert replacements(leaderless, {3}, 10) == []
    moving = image_of(a_partition(0, 1, 2, 3, adding=(2,)), brokers=brokers)
    assert replacements(moving, {3}, 10) == []


def test_brokers_without_room_are_passed_over() -> None:
    brokers = tuple(a_broker(each) for each in (1, 2, 4, 5))
    partitions = [a_partition(index, 1, 2, 3) for index in range(2)]
    image = image_of(*partitions, brokers=brokers)
    no_room = {("t", 0, 4)}
    assert replacements(image, {3}, 10, no_room) == [
        WantedMove("t", 0, (1, 2, 5)),
        WantedMove("t", 1, (1, 2, 4)),
    ]
    no_room.add(("t", 0, 5))
    assert replacements(image, {3}, 10, no_room) == [WantedMove("t", 1, (1, 2, 4))]


class Peers:
    """Brokers that tell of their disks."""

    def __init__(self, rooms: Mapping[int, int], sizes: Mapping[int, int]) -> None:
        self.rooms = rooms
        self.sizes = sizes  # of the partitions of topic t, by index

    async def request(
        self, number: int, _purpose: str, _request: object, _kind: object, *, timeout: float
    ) -> DescribeLogDirsResponse:
        if number not in self.rooms:
            raise ConnectionLost("127.0.0.1:1", "it does not answer")
        partitions = [
            DescribeLogDirsPartition(partition_index=index, partition_size=size)
            for index, size in self.sizes.items()
        ]
        topic = DescribeLogDirsTopic(name="t", partitions=partitions)
        room = self.rooms[number]
        return DescribeLogDirsResponse(
            results=[DescribeLogDirsResult(usable_bytes=room, topics=[topic])]
        )


def test_a_disk_is_asked_for_room_first() -> None:
    brokers = tuple(a_broker(each) for each in (1, 2, 4, 5))
    image = image_of(*(a_partition(index, 1, 2, 3) for index in range(3)), brokers=brokers)

    def choose(rooms: Mapping[int, int], sizes: Mapping[int, int]) -> tuple[list[Any], set[Any]]:
        broker: Any = SimpleNamespace(image=image, peers=Peers({1: 0, **rooms}, sizes))
        moves, lacking = asyncio.run(chosen(broker, {3}))
        return [(each.index, each.replicas) for each in moves], set(lacking)

    # All have room: evenly.
    moves, lacking = choose({4: 1000, 5: 1000}, {0: 10, 1: 10, 2: 10})
    assert moves == [(0, (1, 2, 4)), (1, (1, 2, 5)), (2, (1, 2, 4))]
    assert not lacking
    # One is nearly full: it takes what fits beside the others.
    moves, lacking = choose({4: 15, 5: 1000}, {0: 10, 1: 10, 2: 10})
    assert moves == [(0, (1, 2, 4)), (1, (1, 2, 5)), (2, (1, 2, 5))]
    assert not lacking
    # One partition is too large for everybody; the others are moved.
    moves, lacking = choose({4: 100, 5: 100}, {0: 10, 1: 5000, 2: 10})
    assert {index for index, _ in moves} == {0, 2}
    assert lacking == {("t", 1)}
    # Who does not answer is taken at its word.
    moves, lacking = choose({5: 0}, {0: 10, 1: 10, 2: 10})
    assert [replicas[-1] for _, replicas in moves] == [4, 4, 4]
    assert not lacking


def test_moves_under_way_count() -> None:
    brokers = tuple(a_broker(each) for each in (1, 2, 4))
    image = image_of(a_partition(0, 1, 2, 4, adding=(4,)), a_partition(1, 1, 2, 3), brokers=brokers)
    assert replacements(image, {3}, 1) == []
    assert len(replacements(image, {3}, 2)) == 1


def test_a_newcomer_that_stays_away_is_replaced() -> None:
    """Else the move would wait for it for ever, and the partition would have one replica too few."""
    brokers = tuple(a_broker(each) for each in (1, 2, 5, 6))
    # Broker 4 was to go in the place of 6, as somebody wanted: 6 is not what takes its place.
    image = image_of(a_partition(0, 4, 1, 2, 6, adding=(4,), removing=(6,)), brokers=brokers)
    assert replacements(image, {4}, 10) == [WantedMove("t", 0, (5, 1, 2))]
    # It takes the place of a move under way.
    assert replacements(image, {4}, 1) == [WantedMove("t", 0, (5, 1, 2))]
    # 4 was to go in the place of 3, and neither of them is back.
    image = image_of(a_partition(0, 4, 1, 2, 3, adding=(4,), removing=(3,)), brokers=brokers)
    assert replacements(image, {3, 4}, 10) == [WantedMove("t", 0, (5, 1, 2))]
    # Nobody is left who could take its place; and one that is to go need not be there.
    assert replacements(replace(image, brokers=image_of(brokers=brokers[:2]).brokers), {4}, 9) == []
    assert replacements(image, {3}, 10) == []


def test_a_broker_has_its_time_and_has_it_again_after_it_was_back() -> None:
    without = image_of(a_partition(0, 1, 2, 3), brokers=(a_broker(1), a_broker(2)))
    with_all = image_of(a_partition(0, 1, 2, 3), brokers=(a_broker(1), a_broker(2), a_broker(3)))
    missed: dict[int, float] = {}
    assert brokers_away(without, missed, 100.0, 5.0) == set()
    assert brokers_away(without, missed, 104.9, 5.0) == set()
    assert brokers_away(with_all, missed, 104.95, 5.0) == set()
    assert brokers_away(without, missed, 106.0, 5.0) == set()
    assert brokers_away(without, missed, 111.0, 5.0) == {3}
