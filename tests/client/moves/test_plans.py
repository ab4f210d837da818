"""Plans of moves: what is moved where, and what is left alone."""

from __future__ import annotations

import random

import pytest

from ottla.client.moves.plan import (
    BrokerRoom,
    Move,
    NoPlan,
    PlacedPartition,
    drained,
    rebalanced,
    shares,
    with_factor,
)
from ottla.client.positions import TopicPartition

MB = 1 << 20


def placed(
    index: int, *replicas: int, size: int = MB, traffic: float = 0.0, topic: str = "t"
) -> PlacedPartition:
    return PlacedPartition(TopicPartition(topic, index), replicas, size, traffic)


def brokers(count: int, *, racks: int = 0) -> list[BrokerRoom]:
    return [
        BrokerRoom(each, f"rack {each % racks}" if racks else None) for each in range(1, count + 1)
    ]


def spread(count: int, over: int, factor: int = 3, size: int = MB) -> list[PlacedPartition]:
    return [
        placed(index, *(1 + (index + at) % over for at in range(factor)), size=size)
        for index in range(count)
    ]


def after(
    partitions: list[PlacedPartition], moves: list[Move]
) -> dict[TopicPartition, tuple[int, ...]]:
    new = {each.partition: each.after for each in moves}
    found = {each.partition: new.get(each.partition, each.replicas) for each in partitions}
    assert all(len(set(each)) == len(each) for each in found.values())
    return found


def test_what_is_even_stays() -> None:
    assert rebalanced(spread(12, 3), brokers(3)) == []


def test_a_new_broker_gets_its_share_with_few_moves() -> None:
    partitions = spread(40, 4, factor=2)
    moves = rebalanced(partitions, brokers(5))
    held = shares(partitions, moves, range(1, 6))
    assert all(15 <= replicas <= 17 for replicas, _, _ in held.values())
    assert all(7 <= leaders <= 9 for _, leaders, _ in held.values())
    # 80 replicas over 5 brokers: 16 have to be copied, and no more are.
    assert sum(len(each.adding) for each in moves) <= 17
    assert all(each.adding in ((), (5,)) for each in moves)


def test_bytes_count_and_not_only_numbers() -> None:
    partitions = [placed(0, 1, size=100 * MB), placed(1, 1, size=100 * MB), placed(2, 2, size=MB)]
    partitions += [placed(index, 2, size=MB) for index in range(3, 6)]
    moves = rebalanced(partitions, brokers(2))
    held = shares(partitions, moves, (1, 2))
    assert abs(held[1][2] - held[2][2]) < 20 * MB


def test_a_large_partition_does_not_cost_its_broker_the_other_leaders() -> None:
    partitions = [*spread(30, 3, size=0), placed(0, 3, 1, 2, topic="large")]
    assert rebalanced(partitions, brokers(3)) == []
    # One broker leads all, as after a single node became a cluster.
    partitions = [placed(index, 1, 2, 3, size=0) for index in range(30)]
    partitions += [placed(index, 1, 2, 3, topic="large") for index in range(3)]
    moves = rebalanced(partitions, brokers(3))
    led = shares(partitions, moves, range(1, 4))
    assert [leaders for _, leaders, _ in led.values()] == [11, 11, 11]
    large = {each.after[0] for each in moves if each.partition.topic == "large"}
    assert large | {1} == {1, 2, 3}


def test_traffic_counts() -> None:
    partitions = [placed(index, 1, size=0, traffic=1e6) for index in range(4)]
    partitions += [placed(index, 2, size=0, traffic=0) for index in range(4, 8)]
    new = after(partitions, rebalanced(partitions, brokers(2)))
    busy = [new[each.partition][0] for each in partitions[:4]]
    assert sorted(busy) == [1, 1, 2, 2]


def test_racks_are_kept_apart() -> None:
    # Two racks, odd and even; every partition in both of them.
    partitions = [placed(index, 1, 2) for index in range(20)]
    rooms = brokers(4, racks=2)
    new = after(partitions, rebalanced(partitions, rooms))
    assert all({each % 2 for each in replicas} == {0, 1} for replicas in new.values())
    assert {each for replicas in new.values() for each in replicas} == {1, 2, 3, 4}


def test_the_rack_of_a_broker_that_is_away_counts() -> None:
    """Its replicas come back with it: no other replica of the partition goes into its rack."""
    rooms = [
        BrokerRoom(1, "a", is_away=True),
        BrokerRoom(2, "b"),
        BrokerRoom(3, "a"),
        BrokerRoom(4, "b"),
    ]
    partitions = [placed(index, 1, 2) for index in range(12)]
    for moves in (rebalanced(partitions, rooms), drained(partitions, rooms, [2])):
        assert moves
        assert all(each.adding == (4,) for each in moves)
    partitions = [placed(index, 1) for index in range(12)]
    for each in with_factor(partitions, rooms, 2):
        assert each.after[1] in (2, 4)
    with pytest.raises(NoPlan, match="4 replicas need 4 brokers, and there are 3"):
        with_factor(partitions, rooms, 4)


def test_a_broker_without_room_gets_nothing() -> None:
    partitions = spread(12, 3, factor=1, size=10 * MB)
    rooms = [*brokers(3), BrokerRoom(4, None, 5 * MB)]
    assert all(4 not in each.adding for each in rebalanced(partitions, rooms))
    rooms[3] = BrokerRoom(4, None, 12 * MB)
    assert sum(4 in each.adding for each in rebalanced(partitions, rooms)) == 1


def test_a_broker_is_drained_and_nothing_else_is_moved() -> None:
    partitions = spread(20, 4)
    moves = drained(partitions, brokers(4), [2])
    new = after(partitions, moves)
    assert all(2 not in replicas for replicas in new.values())
    assert {each.partition for each in moves} == {
        each.partition for each in partitions if 2 in each.replicas
    }
    assert all(len(each.adding) == 1 for each in moves)
    # One that only followed there does not make another lead.
    assert all(each.after[0] == each.before[0] for each in moves if each.before[0] != 2)


@pytest.mark.parametrize(
    ("partitions", "rooms", "leaving", "words"),
    [
        ([placed(0, 1, 2, 3)], brokers(3), [3], "t-0 has 3 replicas, and only 2 brokers"),
        ([placed(0, 1)], brokers(2), [9], "no broker 9"),
        ([placed(0, 1)], brokers(1), [1], "no broker would be left"),
        (
            [placed(0, 1, size=10 * MB)],
            [BrokerRoom(1), BrokerRoom(2, None, MB)],
            [1],
            "no broker has room for the 10,485,760 bytes of t-0",
        ),
    ],
)
def test_what_cannot_be_drained(
    partitions: list[PlacedPartition], rooms: list[BrokerRoom], leaving: list[int], words: str
) -> None:
    with pytest.raises(NoPlan, match=words):
        drained(partitions, rooms, leaving)


def test_more_and_fewer_replicas() -> None:
    partitions = [placed(index, 1) for index in range(9)]
    raised = with_factor(partitions, brokers(3, racks=3), 3)
    assert all(set(each.after) == {1, 2, 3} and each.after[0] == 1 for each in raised)
    two = with_factor(partitions, brokers(4), 2)
    held = shares(partitions, two, range(1, 5))
    assert [held[each][0] for each in (2, 3, 4)] == [3, 3, 3]
    three = [placed(index, 1, 2, 3) for index in range(6)]
    lowered = with_factor(three, brokers(3), 1)
    assert all(each.after == (1,) for each in lowered)
    assert with_factor(three, brokers(3), 3) == []
    with pytest.raises(NoPlan, match="4 replicas need 4 brokers, and there are 3"):
        with_factor(three, brokers(3), 4)


def test_a_broker_that_is_away() -> None:
    """It holds replicas, and is not among the brokers to plan with."""
    partitions = [placed(index, 1, *((2, 9) if index % 2 else (9, 2))) for index in range(12)]
    new = after(partitions, rebalanced(partitions, brokers(3)))
    assert all(9 in replicas and replicas[0] != 9 for replicas in new.values())
    held = shares(partitions, rebalanced(partitions, brokers(3)), range(1, 4))
    assert [held[each][0] for each in (1, 2, 3)] == [8, 8, 8]
    assert [held[each][1] for each in (1, 2, 3)] == [4, 4, 4]
    # Of too many replicas those go first that nobody can reach.
    assert {each.after for each in with_factor(partitions, brokers(3), 2)} == {(1, 2)}
    # There are as many as are wanted.
    assert with_factor(partitions, brokers(2), 3) == []
    # Also if it was to lead: a copy that is there is not given up for one that nobody can reach.
    preferred = [placed(index, 9, 1, 2) for index in range(4)]
    assert {each.after for each in with_factor(preferred, brokers(3), 2)} == {(1, 2)}
    assert {len(each.after) for each in with_factor(preferred, brokers(3), 1)} == {1}
    assert all(9 not in each.after for each in with_factor(preferred, brokers(3), 1))
    # It is drained from the others.
    gone = after(partitions, drained(partitions, brokers(3), [9]))
    assert all(9 not in replicas for replicas in gone.values())


def test_a_partition_that_nobody_leads() -> None:
    lost = PlacedPartition(TopicPartition("lost", 0), (1, 9), 50 * MB, is_led=False)
    partitions = [lost, *(placed(index, 1) for index in range(6))]
    assert after(partitions, rebalanced(partitions, brokers(3)))[lost.partition] == (1, 9)
    for impossible in (
        lambda: drained(partitions, brokers(3), [1]),
        lambda: drained(partitions, brokers(3), [9]),
        lambda: with_factor(partitions, brokers(3), 3),
    ):
        with pytest.raises(NoPlan, match=r"nobody leads lost-0, .* start the broker that has it"):
            impossible()
    assert after(partitions, with_factor(partitions, brokers(3), 1))[lost.partition] == (1,)


def test_chance_plans_hold_what_they_promise() -> None:
    chance = random.Random(7)
    for _ in range(60):
        count = chance.randint(3, 8)
        racks = chance.choice((0, 0, 2, 3))
        rooms = brokers(count, racks=racks)
        rack_of = {each.id: each.rack or str(each.id) for each in rooms}
        partitions = [
            placed(
                index,
                *chance.sample(range(1, count + 1), chance.randint(1, min(3, count - 1))),
                size=chance.randint(0, 100) * MB,
                traffic=chance.choice((0.0, chance.random() * 1e6)),
            )
            for index in range(chance.randint(1, 60))
        ]
        gone = chance.choice(([], [count]))
        moves = rebalanced(partitions, rooms, without=gone)
        new = after(partitions, moves)
        for each in partitions:
            replicas = new[each.partition]
            assert len(replicas) == len(each.replicas)
            assert not set(replicas) & set(gone)
            if not gone:
                assert len({rack_of[one] for one in replicas}) >= len(
                    {rack_of[one] for one in each.replicas}
                )
        # A second plan finds next to nothing to do.
        settled = [
            PlacedPartition(each.partition, new[each.partition], each.size, each.traffic)
            for each in partitions
        ]
        again = rebalanced(settled, rooms, without=gone)
        assert sum(len(each.adding) for each in again) == 0
