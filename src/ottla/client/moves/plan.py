"""Which partitions should lie where: plans of moves. No I/O.

Brokers are compared by their shares of three things: of all bytes, of all traffic (bytes that come in a
second, where it is known) and of the number of replicas. A plan moves replicas one at a time, always
from the broker with the largest share of the thing that is most uneven, and the one that evens out all
three most. It stops where the brokers are within a tolerance of each other, or nothing is to be gained:
few moves bring most of the balance. Then leaders are spread in the same way, by the order of replicas,
which moves no bytes.

- Racks are kept apart: a move never leaves a partition in fewer racks than before.
- A broker without room is no target.
- Brokers that are away get nothing; what they hold stays with them, unless it is they who are to hold
  nothing any more, and their racks count as those of others do. A partition without a leader is not
  copied: nobody could.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ottla.client.errors import OttlaError
from ottla.client.positions import TopicPartition

# How far from the mean a broker's weight may be.
TOLERANCE = 0.05
# Bytes, traffic, number.
_Shares = tuple[float, float, float]
_THINGS = 3
# Brokers with the most, and those with the least, among which a move is looked for.
_SOURCES, _TARGETS = 3, 3
# Of a disk's room that is left, what a plan may fill.
USABLE_SHARE = 0.9


class NoPlan(OttlaError):
    """What is wanted cannot be done; the message says why."""


@dataclass(frozen=True, slots=True)
class PlacedPartition:
    """A partition where it lies now."""

    partition: TopicPartition
    replicas: tuple[int, ...]  # the first is the preferred leader
    size: int = 0  # bytes
    traffic: float = 0.0  # bytes a second that come in
    is_led: bool = True


@dataclass(frozen=True, slots=True)
class BrokerRoom:
    """A broker, and what replicas may lie on it."""

    id: int
    rack: str | None = None
    usable_bytes: int | None = None  # None: not known
    is_away: bool = False  # it keeps what it has, and gets nothing


@dataclass(frozen=True, slots=True)
class Move:
    """A partition gets other replicas, or the same in another order."""

    partition: TopicPartition
    before: tuple[int, ...]
    after: tuple[int, ...]
    size: int

    @property
    def adding(self) -> tuple[int, ...]:
        return tuple(each for each in self.after if each not in self.before)

    @property
    def bytes(self) -> int:
        """How many bytes the move copies."""
        return self.size * len(self.adding)


@dataclass(slots=True)
class _Layout:
    """Where everything lies while a plan is made."""

    brokers: Mapping[int, BrokerRoom]
    replicas: dict[TopicPartition, list[int]]
    sizes: dict[TopicPartition, int]
    weights: dict[TopicPartition, _Shares]
    unled: Collection[TopicPartition]
    loads: dict[int, list[float]] = field(default_factory=dict)
    leads: dict[int, list[float]] = field(default_factory=dict)
    room: dict[int, float] = field(default_factory=dict)
    held: dict[int, set[TopicPartition]] = field(default_factory=dict)

    def move(self, partition: TopicPartition, source: int, target: int) -> None:
        replicas = self.replicas[partition]
        replicas[replicas.index(source)] = target
        size = self.sizes[partition]
        self.put(partition, target)
        self.take(partition, source)
        self.room[target] -= size
        if source in self.room:
            self.room[source] += size
        self.held[source].discard(partition)
        self.held[target].add(partition)

    def put(self, partition: TopicPartition, broker: int) -> None:
        self._add(partition, broker, 1)

    def take(self, partition: TopicPartition, broker: int) -> None:
        self._add(partition, broker, -1)

    def _add(self, partition: TopicPartition, broker: int, sign: int) -> None:
        load = self.loads.get(broker)
        if load is not None:  # it is not to hold anything any more
            _add(load, self.weights[partition], sign)

    def weight(self, partition: TopicPartition) -> float:
        return sum(self.weights[partition])

    def load(self, broker: int) -> float:
        return sum(self.loads.get(broker, ()))

    def gain(self, partition: TopicPartition, source: int, target: int) -> float:
        """By how much a move evens out."""
        return _gain(self.weights[partition], self.loads[source], self.loads[target])

    def may_move(self, partition: TopicPartition, source: int, target: int) -> bool:
        replicas = self.replicas[partition]
        if target in replicas or partition in self.unled:
            return False
        if self.room[target] < self.sizes[partition]:
            return False
        after = [target if each == source else each for each in replicas]
        return self.racks(after) >= self.racks(replicas)

    def racks(self, replicas: Iterable[int]) -> int:
        """How many racks these brokers stand in; one that does not say stands alone."""
        known = (self.brokers.get(each) for each in replicas)
        return len(
            {
                each.rack if each is not None and each.rack is not None else object()
                for each in known
            }
        )


def rebalanced(
    partitions: Sequence[PlacedPartition],
    brokers: Sequence[BrokerRoom],
    *,
    without: Collection[int] = (),
    tolerance: float = TOLERANCE,
) -> list[Move]:
    """The moves that spread partitions evenly. `without`: brokers that are to hold nothing any more.
    NoPlan if their replicas fit nowhere."""
    layout = _layout(partitions, brokers, without)
    _drain(layout, without)
    _spread(layout, tolerance)
    _spread_leaders(layout, tolerance)
    return _moves(partitions, layout)


def drained(
    partitions: Sequence[PlacedPartition], brokers: Sequence[BrokerRoom], leaving: Collection[int]
) -> list[Move]:
    """The moves after which some brokers hold nothing; nothing else is moved."""
    layout = _layout(partitions, brokers, leaving)
    _drain(layout, leaving)
    return _moves(partitions, layout)


def with_factor(
    partitions: Sequence[PlacedPartition], brokers: Sequence[BrokerRoom], factor: int
) -> list[Move]:
    """The moves after which each partition has so many replicas: more on brokers with the least, or
    fewer, dropped from those with the most. Preferred leaders stay, unless they are away."""
    if factor < 1:
        raise NoPlan("a partition has at least one replica")
    alive = sum(not each.is_away for each in brokers)
    if factor > alive and any(len(each.replicas) < factor for each in partitions):
        raise NoPlan(f"{factor} replicas need {factor} brokers, and there are {alive}")
    layout = _layout(partitions, brokers)
    for partition, replicas in sorted(
        layout.replicas.items(), key=lambda each: -layout.weight(each[0])
    ):
        while len(replicas) < factor:
            _require_leader(layout, partition)
            target = _best_target(layout, partition, None)
            if target is None:
                raise NoPlan(_no_room(partition, layout.sizes[partition]))
            replicas.append(target)
            layout.put(partition, target)
            layout.room[target] -= layout.sizes[partition]
        while len(replicas) > factor:
            racks = layout.racks(replicas)

            def cost(
                at: int, of: list[int] = replicas, racks: int = racks
            ) -> tuple[bool, int, float]:
                rest = of[:at] + of[at + 1 :]
                # Those of brokers that are away first.
                return of[at] in layout.loads, racks - layout.racks(rest), -layout.load(of[at])

            # The first only if it is away: else the one copy that is there might go instead.
            first = 1 if replicas[0] in layout.loads else 0
            dropped = replicas.pop(min(range(first, len(replicas)), key=cost))
            layout.take(partition, dropped)
    return _moves(partitions, layout)


def _layout(
    partitions: Sequence[PlacedPartition],
    brokers: Sequence[BrokerRoom],
    leaving: Collection[int] = (),
) -> _Layout:
    targets = [each for each in brokers if not each.is_away and each.id not in leaving]
    all_bytes = sum(each.size * len(each.replicas) for each in partitions) or 1
    all_traffic = sum(each.traffic * len(each.replicas) for each in partitions) or 1.0
    count = sum(len(each.replicas) for each in partitions) or 1
    layout = _Layout(
        {each.id: each for each in brokers},
        {each.partition: list(each.replicas) for each in partitions},
        {each.partition: each.size for each in partitions},
        {
            each.partition: (each.size / all_bytes, each.traffic / all_traffic, 1 / count)
            for each in partitions
        },
        {each.partition for each in partitions if not each.is_led},
    )
    for broker in targets:
        layout.loads[broker.id] = [0.0, 0.0, 0.0]
        layout.leads[broker.id] = [0.0, 0.0, 0.0]
        usable = broker.usable_bytes
        layout.room[broker.id] = float("inf") if usable is None else usable * USABLE_SHARE
    for partition, replicas in layout.replicas.items():
        for each in replicas:
            layout.held.setdefault(each, set()).add(partition)
            layout.put(partition, each)
    for broker in targets:
        layout.held.setdefault(broker.id, set())
    return layout


def _drain(layout: _Layout, leaving: Collection[int]) -> None:
    for broker in leaving:
        if broker not in layout.brokers and broker not in layout.held:
            raise NoPlan(f"there is no broker {broker} in the cluster")
        if not layout.loads:
            raise NoPlan("no broker would be left")
        # The heaviest first: they are the hardest to find a place for.
        held = sorted(layout.held.get(broker, ()), key=lambda each: -layout.weight(each))
        for partition in held:
            _require_leader(layout, partition)
            target = _best_target(layout, partition, broker)
            if target is None:
                replicas = layout.replicas[partition]
                if all(each in replicas for each in layout.loads):
                    raise NoPlan(
                        f"{partition} has {len(replicas)} replicas, and only {len(layout.loads)} "
                        "brokers would be left"
                    )
                raise NoPlan(_no_room(partition, layout.sizes[partition]))
            layout.move(partition, broker, target)


def _require_leader(layout: _Layout, partition: TopicPartition) -> None:
    if partition in layout.unled:
        raise NoPlan(
            f"nobody leads {partition}, so it cannot be copied: start the broker that has it "
            f"(it is on {', '.join(map(str, layout.replicas[partition]))})"
        )


def _best_target(layout: _Layout, partition: TopicPartition, source: int | None) -> int | None:
    """The broker with the least, among those that keep most racks apart."""
    replicas = layout.replicas[partition]
    free = [
        each
        for each in layout.loads
        if each not in replicas and layout.room[each] >= layout.sizes[partition]
    ]

    def rank(target: int) -> tuple[int, float, int]:
        after = [each for each in replicas if each != source] + [target]
        return -layout.racks(after), layout.load(target), target

    return min(free, key=rank, default=None)


def _no_room(partition: TopicPartition, size: int) -> str:
    return f"no broker has room for the {size:,} bytes of {partition}"


def _spread(layout: _Layout, tolerance: float) -> None:
    loads = layout.loads
    if len(loads) < 2:
        return
    while True:
        best = _best_move(layout, tolerance)
        if best is None:
            return
        layout.move(*best)


def _best_move(layout: _Layout, tolerance: float) -> tuple[TopicPartition, int, int] | None:
    """What evens out most of the thing that is most uneven; None if all is even enough."""
    loads = layout.loads
    means = [sum(load[at] for load in loads.values()) / len(loads) for at in range(_THINGS)]
    least = (tolerance / len(loads)) ** 2 / 4
    unevenness = {
        at: max(
            max(load[at] for load in loads.values()) - mean,
            mean - min(load[at] for load in loads.values()),
        )
        / mean
        for at, mean in enumerate(means)
        if mean > 0
    }
    for at in sorted(unevenness, key=lambda each: -unevenness[each]):
        if unevenness[at] <= tolerance:
            return None

        def share(broker: int, at: int = at) -> float:
            return loads[broker][at]

        for source in sorted(loads, key=lambda each: (-share(each), each))[:_SOURCES]:
            best: tuple[float, TopicPartition, int] | None = None
            for target in sorted(loads, key=lambda each: (share(each), each))[:_TARGETS]:
                if share(target) >= share(source):
                    break
                for partition in layout.held[source]:
                    gain = layout.gain(partition, source, target)
                    if (
                        gain > least
                        and (best is None or (gain, partition) > best[:2])
                        and layout.may_move(partition, source, target)
                    ):
                        best = gain, partition, target
            if best is not None:
                return best[1], source, best[2]
    return None


def _spread_leaders(layout: _Layout, tolerance: float) -> None:
    """Evens out what brokers lead, as `_spread` what they hold: by bytes, traffic and number."""
    leads = layout.leads
    led: dict[int, set[TopicPartition]] = {each: set() for each in leads}
    for partition, replicas in layout.replicas.items():
        if replicas[0] in leads:
            _add(leads[replicas[0]], layout.weights[partition], 1)
            led[replicas[0]].add(partition)
    if len(leads) < 2:
        return
    while (best := _best_handover(layout, led, tolerance)) is not None:
        partition, source, target = best
        replicas = layout.replicas[partition]
        at = replicas.index(target)
        replicas[0], replicas[at] = replicas[at], replicas[0]
        _add(leads[source], layout.weights[partition], -1)
        _add(leads[target], layout.weights[partition], 1)
        led[source].discard(partition)
        led[target].add(partition)


def _best_handover(
    layout: _Layout, led: Mapping[int, set[TopicPartition]], tolerance: float
) -> tuple[TopicPartition, int, int] | None:
    """The partition whose leadership evens out most with another broker, of one that leads too much of
    the thing that is most uneven; None if nobody does, or nothing is to be gained."""
    leads = layout.leads
    means = [sum(load[at] for load in leads.values()) / len(leads) for at in range(_THINGS)]
    excess = [
        max(load[at] for load in leads.values()) / mean if mean > 0 else 0.0
        for at, mean in enumerate(means)
    ]
    for at in sorted(range(_THINGS), key=lambda each: -excess[each]):

        def share(broker: int, at: int = at) -> float:
            return leads[broker][at]

        for source in sorted(leads, key=lambda each: (-share(each), each)):
            if share(source) <= means[at] * (1 + tolerance):
                break
            best: tuple[float, TopicPartition, int] | None = None
            for partition in led[source]:
                weights = layout.weights[partition]
                for target in layout.replicas[partition][1:]:
                    if target not in leads:  # it is away
                        continue
                    gain = _gain(weights, leads[source], leads[target])
                    if gain > 1e-12 and (best is None or (gain, partition) > best[:2]):
                        best = gain, partition, target
            if best is not None:
                return best[1], source, best[2]
    return None


def _add(load: list[float], weights: _Shares, sign: int) -> None:
    for at, share in enumerate(weights):
        load[at] += sign * share


def _gain(weights: _Shares, rich: Sequence[float], poor: Sequence[float]) -> float:
    """By how much two loads get more even if this is taken from one and added to the other: half of
    what the sum of squares falls."""
    size, traffic, number = weights
    return (
        size * (rich[0] - poor[0] - size)
        + traffic * (rich[1] - poor[1] - traffic)
        + number * (rich[2] - poor[2] - number)
    )


def _moves(partitions: Sequence[PlacedPartition], layout: _Layout) -> list[Move]:
    moves = [
        Move(each.partition, each.replicas, tuple(layout.replicas[each.partition]), each.size)
        for each in partitions
    ]
    return [each for each in moves if each.before != each.after]


def shares(
    partitions: Sequence[PlacedPartition], moves: Iterable[Move], brokers: Iterable[int]
) -> dict[int, tuple[int, int, int]]:
    """What each broker holds after these moves: replicas, preferred leaders, bytes."""
    after = {each.partition: each.after for each in moves}
    found = {each: [0, 0, 0] for each in brokers}
    for each in partitions:
        replicas = after.get(each.partition, each.replicas)
        for at, broker in enumerate(replicas):
            held = found.setdefault(broker, [0, 0, 0])
            held[0] += 1
            held[1] += at == 0
            held[2] += each.size
    return {broker: (held[0], held[1], held[2]) for broker, held in sorted(found.items())}
