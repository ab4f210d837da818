"""Runs of neighbouring partitions, the same in topics of the same size.

Nothing is sticky here but the order of the members: static ones come first, by their instance ids,
which outlive a restart; the others follow by their member ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ottla.coordinator.groups.assignors.interface import MemberSubscription, Partitions


class RangeAssignor:
    name = "range"

    def assign(
        self, members: Mapping[str, MemberSubscription], topics: Mapping[bytes, int]
    ) -> Mapping[str, Partitions]:
        subscribers: dict[bytes, list[str]] = {}
        for member in sorted(members, key=lambda each: _rank(each, members[each].instance_id)):
            for topic in members[member].topic_ids:
                if topic in topics:
                    subscribers.setdefault(topic, []).append(member)
        assignment: dict[str, dict[bytes, frozenset[int]]] = {member: {} for member in members}
        for topic, readers in subscribers.items():
            for member, run in zip(readers, _runs(topics[topic], len(readers)), strict=True):
                if run:
                    assignment[member][topic] = frozenset(run)
        return assignment


def _rank(member: str, instance: str | None) -> tuple[bool, str]:
    return (True, member) if instance is None else (False, instance)


def _runs(partitions: int, readers: int) -> Iterator[range]:
    """Splits evenly: the first ones have one more than the others."""
    least, longer = divmod(partitions, readers)
    end = 0
    for number in range(readers):
        start, end = end, end + least + (number < longer)
        yield range(start, end)
