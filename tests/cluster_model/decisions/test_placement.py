"""Placement: even over brokers, over racks first of all, and the same for the same start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from ottla.cluster.metadata import RegisteredBroker
from ottla.cluster.placement import leader_order, machines, place
from ottla.protocol.errors import ErrorCode, ProtocolError

BrokerOf = Callable[..., RegisteredBroker]


def spread(counts: Counter[int], brokers: int) -> int:
    """How far the busiest and the idlest broker are apart."""
    values = [counts[broker_id] for broker_id in range(brokers)]
    return max(values) - min(values)


@pytest.mark.parametrize(
    ("brokers", "factor"),
    [(brokers, factor) for brokers in (1, 2, 3, 5, 7) for factor in (1, 2, 3) if factor <= brokers],
)
@pytest.mark.parametrize("start", [0, 1, 4])
def test_leaders_and_replicas_are_even_without_racks(
    broker: BrokerOf, brokers: int, factor: int, start: int
) -> None:
    registered = [broker(broker_id) for broker_id in range(brokers)]
    for partitions in (1, brokers, 3 * brokers, 3 * brokers + 2, 100):
        placed = place(registered, partitions, factor, start)
        assert len(placed) == partitions
        assert all(len(set(replicas)) == factor for replicas in placed)
        assert spread(Counter(replicas[0] for replicas in placed), brokers) <= 1
        assert spread(Counter(one for replicas in placed for one in replicas), brokers) <= 2


def test_followers_of_one_leader_differ(broker: BrokerOf) -> None:
    """If a broker fails, what it led falls to all the others, not to one."""
    placed = place([broker(broker_id) for broker_id in range(4)], 24, 2, 0)
    for leader in range(4):
        followers = Counter(replicas[1] for replicas in placed if replicas[0] == leader)
        assert set(followers) == {0, 1, 2, 3} - {leader}
        assert max(followers.values()) <= 3


@pytest.mark.parametrize("factor", [2, 3, 4, 6])
def test_each_partition_is_in_as_many_racks_as_can_be(broker: BrokerOf, factor: int) -> None:
    racks = {broker_id: f"rack {broker_id % 3}" for broker_id in range(6)}
    registered = [broker(broker_id, rack) for broker_id, rack in racks.items()]
    placed = place(registered, 60, factor, 2)
    for replicas in placed:
        used = Counter(racks[one] for one in replicas)
        assert len(used) == min(factor, 3)
        assert max(used.values()) - min(used[rack] for rack in set(racks.values())) <= 1
    assert spread(Counter(replicas[0] for replicas in placed), 6) == 0
    assert spread(Counter(one for replicas in placed for one in replicas), 6) <= 2


def test_racks_come_before_evenness_of_followers(broker: BrokerOf) -> None:
    """Three brokers in one rack and one in the other: each partition has a replica on that one."""
    registered = [broker(0, "a"), broker(1, "a"), broker(2, "a"), broker(3, "b")]
    placed = place(registered, 40, 2, 0)
    assert all(3 in replicas for replicas in placed)
    assert spread(Counter(replicas[0] for replicas in placed), 4) == 0


def test_racks_of_different_sizes_still_fill_their_brokers_evenly(broker: BrokerOf) -> None:
    racks = "aaabbc"
    registered = [broker(broker_id, rack) for broker_id, rack in enumerate(racks)]
    placed = place(registered, 100, 2, 0)
    assert all(racks[leader] != racks[follower] for leader, follower in placed)
    assert spread(Counter(one for replicas in placed for one in replicas), 6) <= 2


def test_leaders_alternate_between_racks(broker: BrokerOf) -> None:
    registered = [broker(1, "b"), broker(2, "a"), broker(3, "b"), broker(4, "a"), broker(5, "b")]
    assert leader_order(registered) == [2, 1, 4, 3, 5]


def test_the_same_start_gives_the_same_places(broker: BrokerOf) -> None:
    registered = [broker(broker_id) for broker_id in (3, 1, 2)]
    once = place(registered, 10, 2, 1)
    assert once == place(list(reversed(registered)), 10, 2, 1)
    assert [replicas[0] for replicas in once[:4]] == [2, 3, 1, 2]
    assert once == place(registered, 10, 2, 4)


def in_plain_words(
    brokers: list[RegisteredBroker], partitions: int, factor: int, start: int, shift: int
) -> list[tuple[int, ...]]:
    """What `place` promises, one candidate at a time."""
    order = leader_order(brokers)
    by_id = {each.id: each for each in brokers}
    held: Counter[int] = Counter()
    pairs: Counter[tuple[int, int]] = Counter()
    placed = []
    for number in range(partitions):
        at = (start + number) % len(order)
        leader = order[at]
        others = order[at + 1 :] + order[:at]
        cut = shift % len(others)
        chosen = [leader]
        for _ in range(factor - 1):

            def cost(one: int, chosen: list[int] = chosen, leader: int = leader) -> tuple[int, ...]:
                me = by_id[one]
                return (
                    sum((by_id[each].rack or "") == (me.rack or "") for each in chosen),
                    sum((by_id[each].machine or each) == (me.machine or one) for each in chosen),
                    held[one],
                    pairs[leader, one],
                )

            candidates = [one for one in others[cut:] + others[:cut] if one not in chosen]
            follower = min(candidates, key=cost)
            chosen.append(follower)
            held[follower] += 1
            pairs[leader, follower] += 1
        held[leader] += 1
        placed.append(tuple(chosen))
    return placed


@pytest.mark.parametrize("seed", range(20))
def test_the_quick_search_places_as_the_plain_one(broker: BrokerOf, seed: int) -> None:
    chance = Random(seed)
    count = chance.randrange(3, 14)
    racks = [None, *"abc"][: chance.randrange(1, 5)]
    names = ["", "", "one", "two"][: chance.randrange(1, 5)]
    registered = [
        replace(broker(broker_id, chance.choice(racks)), machine=chance.choice(names))
        for broker_id in chance.sample(range(50), count)
    ]
    factor, start, shift = chance.randrange(2, 4), chance.randrange(99), chance.randrange(99)
    placed = place(registered, 60, factor, start, shift=shift)
    assert placed == in_plain_words(registered, 60, factor, start, shift)


def test_topics_of_one_partition_fall_to_different_brokers(broker: BrokerOf) -> None:
    """When their leader fails: each topic has a shift of its own."""
    registered = [broker(broker_id) for broker_id in range(10)]
    followers = {place(registered, 1, 3, 4, shift=shift)[0][1] for shift in range(9)}
    assert followers == set(range(10)) - {4}


def test_too_few_brokers(broker: BrokerOf) -> None:
    with pytest.raises(ProtocolError, match="1 are registered") as raised:
        place([broker(1)], 1, 2, 0)
    assert raised.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    with pytest.raises(ProtocolError):
        place([], 1, 1, 0)


@pytest.mark.parametrize("racks", [None, "one rack", "a rack for each machine"])
def test_replicas_go_to_other_machines(broker: BrokerOf, racks: str | None) -> None:
    """Four brokers on each of three machines, whatever they call their racks."""
    registered = []
    for broker_id in range(12):
        machine = f"machine {broker_id // 4}"
        rack = machine if racks == "a rack for each machine" else racks
        registered.append(replace(broker(broker_id, rack), machine=machine))
    assert machines(registered) == 3
    placed = place(registered, 120, 3, 5)
    assert all({one // 4 for one in replicas} == {0, 1, 2} for replicas in placed)
    assert spread(Counter(replicas[0] for replicas in placed), 12) == 0
    assert spread(Counter(one for replicas in placed for one in replicas), 12) <= 2


def test_a_broker_that_names_no_machine_has_one_for_itself(broker: BrokerOf) -> None:
    here = [replace(broker(broker_id), machine="here") for broker_id in (1, 2, 3)]
    assert machines([]) == 0
    assert machines(here) == 1
    assert machines([*here, broker(4), broker(5)]) == 3


def test_brokers_that_are_away_come_last_and_only_where_they_are_needed(broker: BrokerOf) -> None:
    alive, away = [broker(1), broker(2)], [broker(3), broker(4)]
    for replicas in place(alive, 8, 2, 0, away):
        assert set(replicas) == {1, 2}
    placed = place(alive, 8, 3, 0, away)
    for replicas in placed:
        assert set(replicas[:2]) == {1, 2}
        assert replicas[2] in (3, 4)
    assert Counter(replicas[2] for replicas in placed) == {3: 4, 4: 4}
    with pytest.raises(ProtocolError) as refused:
        place(alive, 1, 5, 0, away)
    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    with pytest.raises(ProtocolError):
        place([], 1, 1, 0, away)
