"""Where the replicas of new partitions go. Deterministic for a given start.

The aims, the first before the second: the replicas of a partition stand in as many racks as there
are, evenly; brokers lead, and hold, as many partitions as each other. Brokers without a rack count
as one rack. Each broker leads in turn, in an order that alternates between the racks. A follower comes
from the rack that has the fewest replicas of the partition, there from the machine that has the
fewest, there from the broker that holds the fewest replicas, and of equals it is the one that has
followed this leader least, so that all that a broker led does not fall to one other when it fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import chain, zip_longest

from ottla.cluster.metadata import RegisteredBroker
from ottla.protocol.errors import ErrorCode, ProtocolError


def place(
    brokers: Collection[RegisteredBroker],
    partitions: int,
    replication_factor: int,
    start: int,
    away: Collection[RegisteredBroker] = (),
) -> list[tuple[int, ...]]:
    """Replicas for so many partitions, the leader first.

    `start` is where in the order of leaders to begin, any number. Brokers that are `away` get replicas
    where the others are too few, after theirs: they follow when they are back.
    INVALID_REPLICATION_FACTOR if there are too few brokers.
    """
    if replication_factor > len(brokers) + len(away):
        raise ProtocolError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"A replication factor of {replication_factor} needs as many brokers, "
            f"and {len(brokers) + len(away)} are registered.",
        )
    if not brokers:
        raise ProtocolError(ErrorCode.INVALID_REPLICATION_FACTOR, "No broker is registered.")
    missing = replication_factor - len(brokers)
    if missing > 0:
        others = leader_order(away)
        return [
            (*placed, *(others[(start + number + each) % len(others)] for each in range(missing)))
            for number, placed in enumerate(place(brokers, partitions, len(brokers), start))
        ]
    order = leader_order(brokers)
    if replication_factor == 1:
        single = [(broker_id,) for broker_id in order]
        return [single[(start + number) % len(single)] for number in range(partitions)]
    spread = _Spread(brokers, order, start)
    return [spread.next(replication_factor) for _ in range(partitions)]


def machines(brokers: Iterable[RegisteredBroker]) -> int:
    """On how many machines brokers run, as far as they say: several of one are lost together."""
    return len({broker.machine or broker.id for broker in brokers})


def leader_order(brokers: Iterable[RegisteredBroker]) -> list[int]:
    """All brokers once, in the order in which they lead: one of each rack, then the next of each."""
    racks: dict[str, list[int]] = {}
    for broker in sorted(brokers, key=lambda broker: broker.id):
        racks.setdefault(broker.rack or "", []).append(broker.id)
    rounds = zip_longest(*(racks[name] for name in sorted(racks)))
    return [broker_id for broker_id in chain.from_iterable(rounds) if broker_id is not None]


class _Spread:
    """Goes round the leaders and counts, for the followers, what has been placed so far."""

    def __init__(self, brokers: Collection[RegisteredBroker], order: list[int], start: int) -> None:
        self._order = order
        self._next = start % len(order)
        self._rack_of = {broker.id: broker.rack or "" for broker in brokers}
        self._machine_of = {broker.id: broker.machine or broker.id for broker in brokers}
        self._held = dict.fromkeys(order, 0)  # replicas on each broker
        self._pairs: Counter[tuple[int, int]] = Counter()  # (leader, follower)

    def next(self, replication_factor: int) -> tuple[int, ...]:
        at = self._next
        self._next = (at + 1) % len(self._order)
        leader = self._order[at]
        candidates = self._order[at + 1 :] + self._order[:at]
        chosen = [leader]
        racks = Counter((self._rack_of[leader],))
        machines = Counter((self._machine_of[leader],))
        while len(chosen) < replication_factor:
            # The first of the best: with all else equal, the broker that leads next.
            follower = min(
                candidates,
                key=lambda one: (
                    racks[self._rack_of[one]],
                    machines[self._machine_of[one]],
                    self._held[one],
                    self._pairs[leader, one],
                ),
            )
            candidates.remove(follower)
            chosen.append(follower)
            racks[self._rack_of[follower]] += 1
            machines[self._machine_of[follower]] += 1
            self._held[follower] += 1
            self._pairs[leader, follower] += 1
        self._held[leader] += 1
        return tuple(chosen)
