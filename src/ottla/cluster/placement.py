"""Where the replicas of new partitions go. Deterministic for a given start.

The aims, the first before the second: the replicas of a partition stand in as many racks as there
are, evenly; brokers lead, and hold, as many partitions as each other. Brokers without a rack count
as one rack. Each broker leads in turn, in an order that alternates between the racks. A follower comes
from the rack that has the fewest replicas of the partition, there from the machine that has the
fewest, there from the broker that holds the fewest replicas, and of equals it is the one that has
followed this leader least, so that all that a broker led does not fall to one other when it fails. All
this is counted within one topic; what spreads topics of few partitions is that each has a start and a
shift of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import chain, zip_longest

from ottla.cluster.metadata import RegisteredBroker
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.turns import Steps, stepwise


@stepwise
def place(
    brokers: Collection[RegisteredBroker],
    partitions: int,
    replication_factor: int,
    start: int,
    away: Collection[RegisteredBroker] = (),
    shift: int = 0,
) -> Steps[list[tuple[int, ...]]]:
    """Replicas for so many partitions, the leader first.

    `start` is where in the order of leaders to begin, any number; `shift` is which of the brokers after
    a leader follows it first with all else equal, any number. Brokers that are `away` get replicas
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
        here = yield from place.steps(brokers, partitions, len(brokers), start, shift=shift)
        return [
            (*placed, *(others[(start + number + each) % len(others)] for each in range(missing)))
            for number, placed in enumerate(here)
        ]
    order = leader_order(brokers)
    if replication_factor == 1:
        single = [(broker_id,) for broker_id in order]
        return [single[(start + number) % len(single)] for number in range(partitions)]
    spread = _Spread(brokers, order, start, shift)
    found = []
    for _ in range(partitions):
        found.append(spread.next(replication_factor))
        yield
    return found


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
    """Goes round the leaders and counts, for the followers, what has been placed so far.

    A broker is its place in the order here. With a hundred brokers a follower is one of a hundred, for
    each replica of each of thousands of partitions: so the search narrows the candidates down by one
    aim after the other, in loops without a call for each of them.
    """

    def __init__(
        self, brokers: Collection[RegisteredBroker], order: list[int], start: int, shift: int
    ) -> None:
        self._order = order
        self._next = start % len(order)
        self._shift = shift % max(1, len(order) - 1)
        by_id = {broker.id: broker for broker in brokers}
        # Of each broker, as numbers from 0 on.
        self._racks = _numbered([by_id[each].rack or "" for each in order])
        self._machines = _numbered([by_id[each].machine or each for each in order])
        self._held = [0] * len(order)  # replicas on each broker
        # How often each broker follows a leader, by leader.
        self._followed: dict[int, list[int]] = {}

    def next(self, replication_factor: int) -> tuple[int, ...]:
        leader = self._next
        size = len(self._order)
        self._next = (leader + 1) % size
        followed = self._followed.get(leader)
        if followed is None:
            followed = self._followed[leader] = [0] * size
        held = self._held
        # The first of the best follows: with all else equal and no shift, the broker that leads next.
        others = [*range(leader + 1, size), *range(leader)]
        candidates = others[self._shift :] + others[: self._shift]
        chosen = [leader]
        # Replicas of the partition in each.
        racks, machines = [0] * size, [0] * size
        racks[self._racks[leader]] = machines[self._machines[leader]] = 1
        while len(chosen) < replication_factor:
            best = _fewest(candidates, [racks[self._racks[one]] for one in candidates])
            best = _fewest(best, [machines[self._machines[one]] for one in best])
            best = _fewest(best, [held[one] for one in best])
            follower = _fewest(best, [followed[one] for one in best])[0]
            candidates.remove(follower)
            chosen.append(follower)
            racks[self._racks[follower]] += 1
            machines[self._machines[follower]] += 1
            held[follower] += 1
            followed[follower] += 1
        held[leader] += 1
        return tuple([self._order[each] for each in chosen])


def _numbered(names: Sequence[str | int]) -> list[int]:
    """Equal names by equal numbers, which are smaller than there are names."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return [numbers[name] for name in names]


def _fewest(candidates: list[int], counts: list[int]) -> list[int]:
    """Those with the smallest count, in their order."""
    smallest = min(counts)
    return [one for one, count in zip(candidates, counts, strict=True) if count == smallest]
