"""How the leader of a classic group shares the partitions among its members.

    range                 each topic for itself: consecutive partitions, the first members get one more
    roundrobin            all partitions in order, one to each member in turn
    sticky                balanced, and everybody keeps as much as possible of what they have
    cooperative-sticky    the same, but a partition changes hands in two rebalances: first its owner
                          gives it up, then its new owner gets it, and the others never stop reading

All members of a group may be of different makers, so the results of the first two are exactly those
of the Java client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla.client.positions import TopicPartition


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group, as it has presented itself."""

    member_id: str
    topics: frozenset[str]
    owned: frozenset[TopicPartition] = field(default=frozenset())
    generation: int = -1  # in which it owned these; -1: it does not say
    instance_id: str | None = None

    @property
    def order(self) -> tuple[bool, str]:
        """Static members come first, by their names; the others by their ids."""
        if self.instance_id is not None:
            return (False, self.instance_id)
        return (True, self.member_id)


# From topics with their numbers of partitions to the partitions of each member.
Shares = dict[str, set[TopicPartition]]
Assignor = Callable[[list[Member], Mapping[str, int]], Shares]


def assign_range(members: list[Member], topics: Mapping[str, int]) -> Shares:
    shares: Shares = {member.member_id: set() for member in members}
    for topic, count in topics.items():
        takers = sorted((m for m in members if topic in m.topics), key=lambda m: m.order)
        if not takers:
            continue
        each, more = divmod(count, len(takers))
        start = 0
        for index, member in enumerate(takers):
            size = each + (index < more)
            shares[member.member_id].update(
                TopicPartition(topic, number) for number in range(start, start + size)
            )
            start += size
    return shares


def assign_round_robin(members: list[Member], topics: Mapping[str, int]) -> Shares:
    shares: Shares = {member.member_id: set() for member in members}
    ordered = sorted(members, key=lambda member: member.order)
    turn = 0
    for topic in sorted(topics):
        if not any(topic in member.topics for member in ordered):
            continue
        for number in range(topics[topic]):
            while topic not in ordered[turn % len(ordered)].topics:
                turn += 1
            shares[ordered[turn % len(ordered)].member_id].add(TopicPartition(topic, number))
            turn += 1
    return shares


def assign_sticky(members: list[Member], topics: Mapping[str, int]) -> Shares:
    """Keep what is owned, give what is free to whoever has least, then even out."""
    ordered = sorted(members, key=lambda member: member.member_id)
    shares: Shares = {member.member_id: set() for member in ordered}
    for partition, member in _rightful_owners(ordered, topics).items():
        shares[member.member_id].add(partition)
    assigned = set().union(*shares.values()) if shares else set()
    free = [
        TopicPartition(topic, number)
        for topic in sorted(topics)
        for number in range(topics[topic])
        if TopicPartition(topic, number) not in assigned
    ]
    # Those that few can take first, so that they do not end with somebody who is full.
    takers = {topic: [m for m in ordered if topic in m.topics] for topic in topics}
    for partition in sorted(free, key=lambda each: (len(takers[each.topic]), each)):
        if takers[partition.topic]:
            least = min(takers[partition.topic], key=lambda m: len(shares[m.member_id]))
            shares[least.member_id].add(partition)
    _even_out(shares, takers)
    return shares


def _rightful_owners(
    members: list[Member], topics: Mapping[str, int]
) -> dict[TopicPartition, Member]:
    """Who owns what; of two who claim the same, the one of the later generation, or nobody."""
    owners: dict[TopicPartition, Member] = {}
    disputed: set[TopicPartition] = set()
    for member in members:
        for partition in member.owned:
            if partition.topic not in member.topics or not (
                0 <= partition.partition < topics.get(partition.topic, 0)
            ):
                continue
            other = owners.get(partition)
            if other is None or other.generation < member.generation:
                owners[partition] = member
                disputed.discard(partition)
            elif other.generation == member.generation:
                disputed.add(partition)
    return {each: owner for each, owner in owners.items() if each not in disputed}


def _even_out(shares: Shares, takers: Mapping[str, list[Member]]) -> None:
    """Move partitions from those who have two more than somebody who could take one."""
    moved = True
    while moved:
        moved = False
        for giver in sorted(shares, key=lambda member_id: -len(shares[member_id])):
            for partition in sorted(shares[giver]):
                least = min(takers[partition.topic], key=lambda m: len(shares[m.member_id]))
                if len(shares[giver]) - len(shares[least.member_id]) < 2:
                    continue
                shares[giver].remove(partition)
                shares[least.member_id].add(partition)
                moved = True


def assign_cooperatively(members: list[Member], topics: Mapping[str, int]) -> Shares:
    """The sticky shares without what another member still owns: it is free the next time."""
    shares = assign_sticky(members, topics)
    owner = {
        partition: member_id.member_id
        for partition, member_id in _rightful_owners(members, topics).items()
    }
    for member_id, share in shares.items():
        share.difference_update([each for each in share if owner.get(each, member_id) != member_id])
    return shares


ASSIGNORS: Final[Mapping[str, Assignor]] = {
    "range": assign_range,
    "roundrobin": assign_round_robin,
    "sticky": assign_sticky,
    "cooperative-sticky": assign_cooperatively,
}
COOPERATIVE: Final = frozenset(("cooperative-sticky",))

# The Java client names its assignors by their classes.
CLASS_NAMES: Final[Mapping[str, str]] = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "sticky",
    "CooperativeStickyAssignor": "cooperative-sticky",
}
