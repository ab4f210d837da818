"""Groups for assignors to work on, and what is asked of an assignment.

`assignments_by_kafka.jsonl`, beside the tests, has such groups with the answers of Kafka's own
assignors; tests/interop/kafka/test_assignors.py asks them again, and says how the file is made.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ottla.coordinator.groups.assignors import ASSIGNORS, MemberSubscription, Partitions

BY_KAFKA = Path(__file__).resolve().parent.parent / "assignments_by_kafka.jsonl"

Assignment = Mapping[str, Partitions]


def topic_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


@dataclass
class Group:
    topics: dict[bytes, int]
    members: dict[str, MemberSubscription] = field(default_factory=dict)

    def join(
        self,
        member: str,
        topic_ids: frozenset[bytes],
        assigned: Partitions | None = None,
        instance: str | None = None,
    ) -> None:
        self.members[member] = MemberSubscription(topic_ids, assigned or {}, instance)

    def assign(self, name: str) -> Assignment:
        return ASSIGNORS[name].assign(self.members, self.topics)

    def take(self, assignment: Assignment) -> None:
        """What was worked out is now what the members have."""
        for member, partitions in assignment.items():
            self.members[member] = self.members[member]._replace(assigned=dict(partitions))

    def to_json(self) -> dict[str, Any]:
        return {
            "topics": {str(int.from_bytes(topic, "big")): n for topic, n in self.topics.items()},
            "members": {
                member: {
                    "instance": subscription.instance_id,
                    "topics": sorted(int.from_bytes(t, "big") for t in subscription.topic_ids),
                    "assigned": partitions_to_json(subscription.assigned),
                }
                for member, subscription in self.members.items()
            },
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Group:
        group = cls({topic_id(int(topic)): n for topic, n in fields["topics"].items()})
        for member, each in fields["members"].items():
            wanted = frozenset(map(topic_id, each["topics"]))
            group.join(member, wanted, partitions_from_json(each["assigned"]), each["instance"])
        return group


def partitions_to_json(partitions: Partitions) -> dict[str, list[int]]:
    return {str(int.from_bytes(t, "big")): sorted(numbers) for t, numbers in partitions.items()}


def partitions_from_json(fields: Mapping[str, list[int]]) -> Partitions:
    return {topic_id(int(topic)): frozenset(numbers) for topic, numbers in fields.items()}


def assignment_from_json(fields: Mapping[str, Mapping[str, list[int]]]) -> Assignment:
    return {member: partitions_from_json(partitions) for member, partitions in fields.items()}


@dataclass(frozen=True)
class Recorded:
    group: Group
    answers: Mapping[str, Assignment]  # by the name of the assignor


def recorded() -> Iterator[Recorded]:
    with BY_KAFKA.open() as lines:
        for line in lines:
            fields = json.loads(line)
            answers = {name: assignment_from_json(fields[name]) for name in ASSIGNORS}
            yield Recorded(Group.from_json(fields), answers)


def lives(seed: int, histories: int, length: int) -> Iterator[Group]:
    """Groups at each step of lives in which members come, go and change and topics grow."""
    chance = random.Random(seed)
    for number in range(histories):
        group = Group({topic_id(t): chance.randint(1, 12) for t in range(1, chance.randint(2, 7))})
        everything = frozenset(group.topics)
        alike = number % 2 == 0

        def wanted(alike: bool = alike, topics: frozenset[bytes] = everything) -> frozenset[bytes]:
            if alike:
                return topics
            return frozenset(chance.sample(sorted(topics), chance.randint(1, len(topics))))

        for step in range(length):
            event = chance.random()
            if step == 0 or event < 0.5:
                for _ in range(chance.randint(1, 4)):
                    name = f"{chance.getrandbits(32):08x}"
                    static = f"static-{name[:3]}" if chance.random() < 0.3 else None
                    group.join(name, wanted(), instance=static)
            elif event < 0.75 and len(group.members) > 1:
                del group.members[chance.choice(sorted(group.members))]
            elif event < 0.9:
                group.topics[chance.choice(sorted(everything))] += chance.randint(1, 5)
            else:
                member = chance.choice(sorted(group.members))
                group.members[member] = group.members[member]._replace(topic_ids=wanted())
            yield group
            group.take(group.assign("uniform"))


# What is asked of an assignment


def loads(assignment: Assignment) -> dict[str, int]:
    return {m: sum(map(len, partitions.values())) for m, partitions in assignment.items()}


def moved(group: Group, assignment: Assignment) -> int:
    """Partitions that a member had, could have kept, and has no longer."""
    return sum(
        len({at for at in numbers if at < group.topics.get(topic, 0)})
        - len(numbers & assignment[member].get(topic, frozenset()))
        for member, subscription in group.members.items()
        for topic, numbers in subscription.assigned.items()
        if topic in subscription.topic_ids
    )


def assert_complete(group: Group, assignment: Assignment) -> None:
    """Each partition that somebody wants has one owner, and it is somebody who wants it."""
    assert assignment.keys() == group.members.keys()
    owners: dict[tuple[bytes, int], str] = {}
    for member, partitions in assignment.items():
        for topic, numbers in partitions.items():
            assert numbers, f"{member} has nothing of a topic that is named"
            assert topic in group.members[member].topic_ids
            for at in numbers:
                assert (topic, at) not in owners, (
                    f"{member} and {owners[topic, at]}: {topic!r} {at}"
                )
                owners[topic, at] = member
    wanted = {topic for each in group.members.values() for topic in each.topic_ids}
    assert owners.keys() == {
        (topic, at) for topic in wanted & group.topics.keys() for at in range(group.topics[topic])
    }


def unfairness(group: Group, assignment: Assignment) -> int:
    """The most that a member has over another that could take one of its partitions (1 is fair)."""
    load = loads(assignment)
    return max(
        (
            load[giver] - load[taker]
            for giver, partitions in assignment.items()
            for taker, subscription in group.members.items()
            if partitions.keys() & subscription.topic_ids
        ),
        default=0,
    )
