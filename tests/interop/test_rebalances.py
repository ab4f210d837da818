"""Groups under load whose members come, go, die and pause: clients of three makers, both protocols.

Members are processes of their own that tell what they own, read and commit (interop_kit/group_member.py
and its Java twin). Whatever happens to them:

- every record is read by somebody,
- no partition is read by two members in one generation (of the classic protocol; in one epoch of the
  new one),
- once a member has committed in a newer generation, nobody commits in an older one,
- the group has as many generations as there were reasons for one, not a storm of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from interop_kit.clients.wire_client import WireClient
from interop_kit.feeder import Feeder
from interop_kit.workers import Worker, java_worker, python_worker

from ottla.testing import BrokerProcess

PARTITIONS = 6
RATE = 300.0  # records a second
SESSION_MS = 1_500

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    # In the new protocol these are the broker's to say.
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": str(SESSION_MS // 6),
}


@dataclass(frozen=True)
class Kind:
    client: str
    protocol: str
    assignor: str

    def __str__(self) -> str:
        return f"{self.client}-{self.protocol}-{self.assignor}"

    def command(self) -> list[str]:
        return (
            java_worker("GroupMember") if self.client == "java" else python_worker("group_member")
        )


# One of each client and protocol in `make test`; all of them in `make test-long`.
KINDS = [
    pytest.param(Kind("confluent-kafka", "classic", "range"), marks=pytest.mark.long),
    pytest.param(Kind("confluent-kafka", "classic", "cooperative-sticky"), marks=pytest.mark.long),
    Kind("confluent-kafka", "consumer", "uniform"),
    Kind("aiokafka", "classic", "roundrobin"),
    pytest.param(Kind("java", "classic", "RangeAssignor"), marks=pytest.mark.long),
    pytest.param(Kind("java", "classic", "CooperativeStickyAssignor"), marks=pytest.mark.long),
    pytest.param(Kind("java", "consumer", "uniform"), marks=pytest.mark.long),
    pytest.param(Kind("java", "consumer", "range"), marks=pytest.mark.long),
]


class Group:
    """The members, living and gone, and what they told."""

    def __init__(self, kind: Kind, bootstrap: str, topic: str, folder: Path) -> None:
        self.members: list[Worker] = []
        self.changes = 0  # that members of the group have to be told of
        self._command = kind.command()
        self._folder = folder
        self._settings = {
            "client": kind.client,
            "bootstrap": bootstrap,
            "group": topic,
            "topic": topic,
            "protocol": kind.protocol,
            "assignor": kind.assignor,
            "session_ms": SESSION_MS,
        }

    def join(self) -> Worker:
        name = f"member-{len(self.members)}"
        member = Worker(name, self._command, self._settings, self._folder)
        self.members.append(member)
        self.changes += 1
        return member

    def leave(self, member: Worker) -> None:
        member.leave()
        self.changes += 1

    def kill(self, member: Worker) -> None:
        member.kill()
        self.changes += 1

    def await_owners(self, *members: Worker) -> None:
        """Until these members have all partitions between them, and each has a share."""

        def settled() -> bool:
            shares = [owned(member) for member in members]
            numbers = sorted(number for share in shares for number in share)
            return all(shares) and numbers == list(range(PARTITIONS))

        what = f"share the partitions: {[owned(each) for each in members]}"
        members[0].wait(settled, what, beside=members[1:])

    def await_reading(self, *members: Worker) -> None:
        """Until each of them has committed something that it reads from now on."""
        for member in members:
            seen = member.count("committed")
            member.wait(lambda m=member, n=seen: m.count("committed") > n, "read on")

    def events(self, kind: str) -> Iterator[tuple[Worker, dict[str, Any]]]:
        for member in self.members:
            for event in list(member.events):
                if event["event"] == kind:
                    yield member, event

    def read(self) -> list[set[int]]:
        """The offsets of each partition that somebody has read."""
        found: list[set[int]] = [set() for _ in range(PARTITIONS)]
        for _, event in self.events("read"):
            found[event["partition"]].update(range(event["first"], event["last"] + 1))
        return found

    def generations(self) -> set[int]:
        return {event["generation"] for _, event in self.events("read")}


def owned(member: Worker) -> list[int]:
    for event in reversed(member.events):
        if event["event"] == "owns":
            numbers: list[int] = event["partitions"]
            return numbers
    return []


def is_setback(event: dict[str, Any]) -> bool:
    """What a member tells that is no longer in its group."""
    return event["event"] == "refused" or (event["event"] == "owns" and not event["partitions"])


def assert_one_owner(group: Group) -> None:
    owners: dict[tuple[int, int], str] = {}
    for member, event in group.events("read"):
        if event["generation"] < 0:
            continue  # it knows that it is no longer in the group; its commit is refused
        place = event["generation"], event["partition"]
        owner = owners.setdefault(place, member.name)
        assert owner == member.name, (
            f"generation {place[0]}, partition {place[1]}: {owner} and {member.name}"
        )


def assert_fenced(group: Group) -> None:
    """No commit is accepted of a generation when a newer one has committed before it was sent."""
    commits = defaultdict(list)
    for _, event in group.events("committed"):
        commits[event["partition"]].append((event["ended"], event["began"], event["generation"]))
    for partition, each in commits.items():
        each.sort()
        ended: list[tuple[int, int]] = []  # times, with the newest generation until then
        newest = -1
        for end, _, generation in each:
            newest = max(newest, generation)
            ended.append((end, newest))
        at = 0
        before = -1
        for _, began, generation in sorted(each, key=lambda commit: commit[1]):
            while at < len(ended) and ended[at][0] < began:
                before = ended[at][1]
                at += 1
            assert generation >= before, (
                f"partition {partition}: a commit of {generation} after one of {before}"
            )


def wait_until_read(group: Group, feeder: Feeder, living: Worker) -> None:
    counts = [len(sent) for sent in feeder.sent]

    def everything() -> bool:
        return all(len(read) >= count for read, count in zip(group.read(), counts, strict=True))

    living.wait(everything, "read everything")
    assert group.read() == [set(range(count)) for count in counts]


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    return kind


@pytest.fixture
def quick_broker(fresh_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    """One that misses members soon."""
    return fresh_broker(settings=SETTINGS)


@pytest.fixture
def group(kind: Kind, quick_broker: BrokerProcess, topic: str, tmp_path: Path) -> Iterator[Group]:
    WireClient(quick_broker.bootstrap).create_topic(topic, PARTITIONS)
    group = Group(kind, quick_broker.bootstrap, topic, tmp_path)
    yield group
    for member in group.members:
        member.resume()
        member.kill()


def test_members_come_go_die_and_pause(
    group: Group, quick_broker: BrokerProcess, topic: str
) -> None:
    with Feeder(quick_broker.bootstrap, topic, PARTITIONS, RATE) as feeder:
        one, two = group.join(), group.join()
        group.await_owners(one, two)
        three = group.join()
        group.await_owners(one, two, three)
        group.await_reading(one, two, three)

        group.leave(two)
        group.await_owners(one, three)
        group.await_reading(one, three)

        four = group.join()
        group.await_owners(one, three, four)
        group.kill(three)
        group.await_owners(one, four)
        group.await_reading(one, four)

        # Its session ends while it is paused; then it goes on with what it had in its hands.
        four.pause()
        seen = len(four.events)
        group.changes += 1
        group.await_owners(one)
        group.await_reading(one)
        four.resume()
        group.changes += 1
        group.await_owners(one, four)
        group.await_reading(one, four)
        assert any(is_setback(event) for event in four.events[seen:]), four.story("was fenced")
    wait_until_read(group, feeder, one)
    group.leave(four)
    group.await_owners(one)
    group.leave(one)
    assert_one_owner(group)
    assert_fenced(group)
    generations = group.generations()
    print(f"{group.changes} changes, {len(generations)} generations up to {max(generations)}")
    # Cooperative members take two steps for a change: to give, and to take.
    assert max(generations) <= 2 * group.changes + 2


@pytest.mark.long
def test_a_group_at_rest_does_not_rebalance(
    group: Group, quick_broker: BrokerProcess, topic: str
) -> None:
    with Feeder(quick_broker.bootstrap, topic, PARTITIONS, RATE) as feeder:
        members = [group.join() for _ in range(3)]
        group.await_owners(*members)
        # Cooperative members may have one more step to go.
        read_on(group, members, sessions=2)
        settled = disturbances(group)
        read_on(group, members, sessions=4)
    wait_until_read(group, feeder, members[0])
    assert disturbances(group) == settled
    assert_one_owner(group)


def read_on(group: Group, members: list[Worker], sessions: int) -> None:
    """Everybody reads, for about so many session timeouts: a poll takes a tenth of a second."""
    for _ in range(sessions * SESSION_MS // 100):
        group.await_reading(*members)


def disturbances(group: Group) -> list[tuple[int, int]]:
    """Of each member: changes of what it owns, and commits that were refused."""
    return [(member.count("owns"), member.count("refused")) for member in group.members]
