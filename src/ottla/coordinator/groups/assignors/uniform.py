"""Equal shares, with as few partitions moved as that allows.

Every member keeps what it had, as far as it still exists and is subscribed to. What nobody has is
dealt to the members with the least. Then, while a member has at least two partitions more than
another that is subscribed to one of them, that one moves over. Each such move makes the shares more
equal (the sum of their squares falls), so this ends; and no partition moves that need not.

Topics with the same subscribers make up a pool, and are treated as if they were one topic. When all
members have the same subscriptions, the usual case, there is one pool: then shares differ by one at
most, and the number of moves is the least possible. With many overlapping pools a move in one can
make room for a move in another; that is followed for a bounded number of rounds, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain
from typing import Final, NamedTuple

from ottla.coordinator.groups.assignors.interface import MemberSubscription, Partitions

# A round roughly halves what is left of the inequality; the time it takes is the event loop's.
MAX_ROUNDS: Final = 16


class IdPartition(NamedTuple):
    topic: bytes
    partition: int


class Pool:
    """Topics with the same subscribers. Members are numbers here, in the order of their ids."""

    def __init__(self, topics: Mapping[bytes, int], subscribers: list[int]) -> None:
        self.topics = topics
        self.subscribers = subscribers
        # What each subscriber has: first what it keeps from before, then what it was given now, so
        # that what leaves from the end is what moves at no cost.
        self.held: dict[int, list[IdPartition]] = {member: [] for member in subscribers}

    @property
    def partitions_per_subscriber(self) -> float:
        return sum(self.topics.values()) / len(self.subscribers)

    def keep(self, assigned: dict[bytes, set[int]], member: int, before: Partitions) -> int:
        """Leave a member what it had; the number of partitions. One owner only: the first."""
        kept = self.held[member]
        for topic in self.topics.keys() & before.keys():
            others = assigned.setdefault(topic, set())
            mine = {at for at in before[topic] if 0 <= at < self.topics[topic]} - others
            others |= mine
            kept.extend(IdPartition(topic, at) for at in mine)
        # Neighbours in this order are of different topics: what has to go is taken from all of them.
        kept.sort(key=lambda each: (each.partition, each.topic))
        return len(kept)

    def deal(self, assigned: Mapping[bytes, set[int]], loads: list[int]) -> None:
        """Assigns the unassigned partitions to the members with the fewest."""
        takers = [(loads[member], member) for member in self.subscribers]
        heapify(takers)
        nothing: set[int] = set()
        for topic in sorted(self.topics):
            owned = assigned.get(topic, nothing)
            for partition in range(self.topics[topic]):
                if partition not in owned:
                    load, member = takers[0]
                    self.held[member].append(IdPartition(topic, partition))
                    heapreplace(takers, (load + 1, member))
        for load, member in takers:
            loads[member] = load

    def balance(self, loads: list[int]) -> bool:
        """Move partitions from those with the most to those with the least; whether any moved."""
        # Entries whose load is no longer the member's are skipped when they come up.
        givers = [(-loads[member], member) for member, held in self.held.items() if held]
        takers = [(loads[member], member) for member in self.subscribers]
        heapify(givers)
        heapify(takers)
        moved = False
        while givers:
            most, giver = givers[0]
            if -most != loads[giver] or not self.held[giver]:
                heappop(givers)
                continue
            least, taker = takers[0]
            if least != loads[taker]:
                heappop(takers)
                continue
            if -most - least < 2:
                break
            self.held[taker].append(self.held[giver].pop())
            loads[giver] -= 1
            loads[taker] += 1
            for member in (giver, taker):
                heappush(givers, (-loads[member], member))
                heappush(takers, (loads[member], member))
            moved = True
        return moved


class UniformAssignor:
    name = "uniform"

    def assign(
        self, members: Mapping[str, MemberSubscription], topics: Mapping[bytes, int]
    ) -> Mapping[str, Partitions]:
        order = sorted(members)
        pools = _pools([members[member].topic_ids for member in order], topics)
        loads = [0] * len(order)  # partitions of each member, over all pools
        assigned: dict[bytes, set[int]] = {}
        for pool in pools:
            for number in pool.subscribers:
                before = members[order[number]].assigned
                if before:
                    loads[number] += pool.keep(assigned, number, before)
        for pool in pools:
            pool.deal(assigned, loads)
        for _ in range(MAX_ROUNDS):
            # Every pool has its turn in every round.
            moved = [pool.balance(loads) for pool in pools if len(pool.subscribers) > 1]
            if len(moved) < 2 or not any(moved):
                break
        assignment: list[dict[bytes, set[int]]] = [{} for _ in order]
        for pool in pools:
            for number, held in pool.held.items():
                mine = assignment[number]
                for topic, partition in held:
                    mine.setdefault(topic, set()).add(partition)
        return {
            member: {topic: frozenset(numbers) for topic, numbers in mine.items()}
            for member, mine in zip(order, assignment, strict=True)
        }


def _pools(subscriptions: list[frozenset[bytes]], topics: Mapping[bytes, int]) -> list[Pool]:
    """The pools in order, those with the most partitions for each subscriber first: they leave the least
    choice."""
    alike: dict[frozenset[bytes], list[int]] = {}  # members by their subscription
    for member, subscription in enumerate(subscriptions):
        alike.setdefault(subscription, []).append(member)
    crowds = list(alike.values())
    readers: dict[bytes, list[int]] = {}  # of a topic: numbers of crowds
    for crowd, subscription in enumerate(alike):
        for topic in subscription:
            if topics.get(topic, 0) > 0:
                readers.setdefault(topic, []).append(crowd)
    together: dict[tuple[int, ...], dict[bytes, int]] = {}
    for topic in sorted(readers):
        together.setdefault(tuple(readers[topic]), {})[topic] = topics[topic]
    pools = [
        Pool(group, sorted(chain.from_iterable(crowds[crowd] for crowd in numbers)))
        for numbers, group in together.items()
    ]
    return sorted(pools, key=lambda pool: -pool.partitions_per_subscriber)
