"""Conversations between clients and a group coordinator, as text that anyone can read and add to.

    = A member is given its id

    a: join v=9 -> MEMBER_ID_REQUIRED member=A
    a: join v=9 id=A -> waits
    after 3000
    a <- NONE generation=1 protocol=range leader=A member=A members=A:m

A line `client: verb arguments -> answer` is a request and its answer, `waits` if there is none yet;
`client <- answer` is the late one. `after N` lets N milliseconds pass. Member ids are random, so they
are called by a name: A is the first that was given to client a, A2 the second; ONE is the first of
the instance `one`.

The same text runs on the state machine (with a clock of its own), on a broker over sockets, and on
Apache Kafka, from which the answers come: `python -m groups_kit.record` writes them anew.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from groups_kit.consumer_words import (
    assignment,
    description_words,
    heartbeat,
    heartbeat_words,
    held,
    subscription,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import ZERO_UUID, Message
from ottla.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from ottla.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from ottla.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

# The topics that every scenario finds, with their partitions.
TOPICS = {"t": 3, "u": 1}
WAITS = "waits"
# Stands for an answer that was not recorded yet.
UNKNOWN = "?"
# What follows the client's id in a member id that the coordinator made.
UUID_LENGTH = len("-00000000-0000-0000-0000-000000000000")
# An id that a coordinator made without a client's name: a UUID, or (Kafka) one in base 64.
RANDOM_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[A-Za-z0-9_-]{22}")


class Scenario(NamedTuple):
    title: str
    lines: list[str]

    @property
    def text(self) -> str:
        return "\n".join([f"= {self.title}", "", *self.lines])


def read(path: Path) -> tuple[str, list[Scenario]]:
    """The introduction of a file, and its scenarios."""
    introduction, *parts = path.read_text().split("\n= ")
    scenarios = []
    for part in parts:
        title, _, rest = part.partition("\n")
        scenarios.append(Scenario(title, rest.strip("\n").split("\n")))
    return introduction.rstrip("\n"), scenarios


class Target(Protocol):
    """Who answers."""

    def send(
        self, client: str, request: Message, response: type[Message], version: int
    ) -> None: ...

    def answer(self, client: str, expected: str) -> Message | None:
        """The answer to the client's request, None if it waits; `expected` is what the text says."""

    def sleep(self, milliseconds: int) -> None: ...

    def topic_id(self, name: str) -> bytes: ...


class Arguments:
    """key=value words; every key must be used."""

    def __init__(self, words: list[str]) -> None:
        self._values = dict(word.split("=", 1) for word in words)
        self._used: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def text(self, key: str, default: str = "") -> str:
        self._used.add(key)
        return self._values.get(key, default)

    def number(self, key: str, default: int) -> int:
        return int(self.text(key, str(default)))

    def maybe(self, key: str) -> str | None:
        self._used.add(key)
        return self._values.get(key)

    def parts(self, key: str, separator: str = "|") -> list[str]:
        value = self.text(key)
        return value.split(separator) if value else []

    def check(self) -> None:
        unknown = set(self._values) - self._used
        assert not unknown, f"unknown arguments {unknown}"


class Run:
    """One scenario on one target. `groups` makes the names of groups unique on a shared broker."""

    def __init__(self, scenario: Scenario, target: Target, groups: Callable[[str], str]) -> None:
        self.scenario = scenario
        self.target = target
        self._unique = groups
        self._group_names: dict[str, str] = {}
        self._ids: dict[str, str] = {}  # what a scenario calls it -> member id
        self._names: dict[str, str] = {}  # and back
        self._client = ""

    def text(self) -> str:
        """The scenario with the answers that came."""
        return "\n".join([f"= {self.scenario.title}", "", *map(self._line, self.scenario.lines)])

    def _line(self, line: str) -> str:
        if not line or line.startswith("#"):
            return line
        if line.startswith("after "):
            self.target.sleep(int(line.removeprefix("after ")))
            return line
        head, arrow, expected = line.partition(" <- ") if " <- " in line else line.partition(" -> ")
        if arrow == " <- ":
            self._client = head
        else:
            self._client, _, rest = head.partition(": ")
            verb, *words = rest.split()
            arguments = Arguments(words)
            build = getattr(self, "_" + verb.replace("-", "_"))
            request, response, version = build(arguments)
            arguments.check()
            self.target.send(self._client, request, response, version)
        answer = self.target.answer(self._client, expected)
        return f"{head}{arrow or ' -> '}{WAITS if answer is None else self._render(answer)}"

    # Names --------------------------------------------------------------------------------------

    def _group(self, name: str) -> str:
        if not name:
            return name
        full = self._unique(name)
        self._group_names[full] = name
        return full

    def _id(self, name: str) -> str:
        """The member id that a scenario calls by this name; a name in quotes is the id itself."""
        return name.strip("'") if name.startswith("'") else self._ids.get(name, name)

    def _name(self, member_id: str) -> str:
        """Ids that a coordinator makes begin with the client's or the instance's id."""
        if not member_id:
            return "''"
        owner = member_id[:-UUID_LENGTH].upper()
        if RANDOM_ID.fullmatch(member_id):
            owner = "NEW"
        if not owner:
            return f"'{member_id}'"
        if member_id not in self._names:
            number, name = 1, owner
            while name in self._ids:
                number += 1
                name = f"{owner}{number}"
            self._ids[name] = member_id
            self._names[member_id] = name
        return self._names[member_id]

    # Requests -----------------------------------------------------------------------------------

    def _join(self, words: Arguments) -> tuple[Message, type[Message], int]:
        protocols = (
            words.text("protocols", "range:m").split("|") if words.text("protocols", "-") else []
        )
        return (
            JoinGroupRequest(
                group_id=self._group(words.text("group", "g")),
                session_timeout_ms=words.number("session", 10_000),
                rebalance_timeout_ms=words.number("rebalance", 20_000),
                member_id=self._id(words.text("id")),
                group_instance_id=words.maybe("instance"),
                protocol_type=words.text("type", "consumer"),
                protocols=[
                    JoinGroupRequestProtocol(
                        name=name,
                        metadata=subscription(metadata[1:])
                        if metadata.startswith("@")
                        else metadata.encode(),
                    )
                    for name, _, metadata in (each.partition(":") for each in protocols)
                ],
                reason=words.maybe("reason"),
            ),
            JoinGroupResponse,
            words.number("v", 9),
        )

    def _sync(self, words: Arguments) -> tuple[Message, type[Message], int]:
        version = words.number("v", 5)
        return (
            SyncGroupRequest(
                group_id=self._group(words.text("group", "g")),
                generation_id=words.number("generation", 1),
                member_id=self._id(words.text("id")),
                group_instance_id=words.maybe("instance"),
                protocol_type=words.text("type", "consumer") if version >= 5 else None,
                protocol_name=words.text("protocol", "range") if version >= 5 else None,
                assignments=[
                    SyncGroupRequestAssignment(
                        member_id=self._id(name), assignment=assignment.encode()
                    )
                    for name, _, assignment in (
                        each.partition(":") for each in words.parts("assign")
                    )
                ],
            ),
            SyncGroupResponse,
            version,
        )

    def _heartbeat(self, words: Arguments) -> tuple[Message, type[Message], int]:
        return (
            HeartbeatRequest(
                group_id=self._group(words.text("group", "g")),
                generation_id=words.number("generation", 1),
                member_id=self._id(words.text("id")),
                group_instance_id=words.maybe("instance"),
            ),
            HeartbeatResponse,
            words.number("v", 4),
        )

    def _leave(self, words: Arguments) -> tuple[Message, type[Message], int]:
        version = words.number("v", 5)
        group_id = self._group(words.text("group", "g"))
        if version < 3:
            one = LeaveGroupRequest(group_id=group_id, member_id=self._id(words.text("id")))
            return one, LeaveGroupResponse, version
        members = [
            MemberIdentity(member_id=self._id(name), group_instance_id=instance or None)
            for name, _, instance in (each.partition("/") for each in words.parts("ids"))
        ]
        return LeaveGroupRequest(group_id=group_id, members=members), LeaveGroupResponse, version

    def _commit(self, words: Arguments) -> tuple[Message, type[Message], int]:
        version = words.number("v", 9)
        topics = []
        for topic, _, partitions in (
            each.partition(":") for each in words.text("topics", "t:0=5").split(";")
        ):
            parts = []
            for index, _, value in (each.partition("=") for each in partitions.split("|")):
                offset, _, metadata = value.partition("/")
                part = OffsetCommitRequestPartition(
                    partition_index=int(index),
                    committed_offset=int(offset),
                    committed_metadata=None if metadata == "null" else metadata,
                )
                if metadata.startswith("x*"):
                    part.committed_metadata = "x" * int(metadata[2:])
                if version >= 6:
                    part.committed_leader_epoch = words.number("epoch", -1)
                if version == 1:
                    part.commit_timestamp = words.number("timestamp", -1)
                parts.append(part)
            wanted = OffsetCommitRequestTopic(partitions=parts)
            if version >= 10:
                wanted.topic_id = self.target.topic_id(topic)
            else:
                wanted.name = topic
            topics.append(wanted)
        return (
            OffsetCommitRequest(
                group_id=self._group(words.text("group", "g")),
                generation_id_or_member_epoch=words.number("generation", -1),
                member_id=self._id(words.text("id")),
                group_instance_id=words.maybe("instance"),
                retention_time_ms=words.number("retention", -1),
                topics=topics,
            ),
            OffsetCommitResponse,
            version,
        )

    def _fetch(self, words: Arguments) -> tuple[Message, type[Message], int]:
        version = words.number("v", 9)
        named = words.text("topics", "t:0")
        wanted: list[tuple[str, list[int]]] | None = None
        if named != "all":
            wanted = [
                (topic, [int(each) for each in indexes.split(",")] if indexes else [])
                for topic, _, indexes in (each.partition(":") for each in named.split(";"))
            ]
        stable = words.text("stable", "no") == "yes"
        groups = [self._group(each) for each in words.text("group", "g").split("|")]
        if version < 8:
            (group,) = groups
            old = OffsetFetchRequest(
                group_id=group,
                topics=None
                if wanted is None
                else [
                    OffsetFetchRequestTopic(name=name, partition_indexes=indexes)
                    for name, indexes in wanted
                ],
                require_stable=stable,
            )
            return old, OffsetFetchResponse, version

        def topics() -> list[OffsetFetchRequestTopics] | None:
            if wanted is None:
                return None
            return [
                OffsetFetchRequestTopics(
                    name="" if version >= 10 else name,
                    topic_id=self.target.topic_id(name) if version >= 10 else ZERO_UUID,
                    partition_indexes=indexes,
                )
                for name, indexes in wanted
            ]

        return (
            OffsetFetchRequest(
                groups=[
                    OffsetFetchRequestGroup(
                        group_id=each,
                        topics=topics(),
                        member_id=self._id(words.text("id")) or None if version >= 9 else None,
                        member_epoch=words.number("epoch", -1) if version >= 9 else -1,
                    )
                    for each in groups
                ],
                require_stable=stable,
            ),
            OffsetFetchResponse,
            version,
        )

    def _offset_delete(self, words: Arguments) -> tuple[Message, type[Message], int]:
        topics = [
            OffsetDeleteRequestTopic(
                name=topic,
                partitions=[
                    OffsetDeleteRequestPartition(partition_index=int(each))
                    for each in indexes.split(",")
                ],
            )
            for topic, _, indexes in (
                each.partition(":") for each in words.text("topics", "t:0").split(";")
            )
        ]
        group_id = self._group(words.text("group", "g"))
        return OffsetDeleteRequest(group_id=group_id, topics=topics), OffsetDeleteResponse, 0

    def _list(self, words: Arguments) -> tuple[Message, type[Message], int]:
        version = words.number("v", 5)
        request = ListGroupsRequest(
            states_filter=words.parts("states"), types_filter=words.parts("types")
        )
        return request, ListGroupsResponse, version

    def _describe(self, words: Arguments) -> tuple[Message, type[Message], int]:
        groups = [self._group(each) for each in words.text("groups", "g").split("|")]
        operations = words.text("operations", "no") == "yes"
        request = DescribeGroupsRequest(groups=groups, include_authorized_operations=operations)
        return request, DescribeGroupsResponse, words.number("v", 6)

    def _delete(self, words: Arguments) -> tuple[Message, type[Message], int]:
        groups = [self._group(each) for each in words.text("groups", "g").split("|")]
        return DeleteGroupsRequest(groups_names=groups), DeleteGroupsResponse, words.number("v", 2)

    def _beat(self, words: Arguments) -> tuple[Message, type[Message], int]:
        epoch = words.number("epoch", 0)
        version = words.number("v", 1)
        member_id = self._id(words.text("id"))
        if not member_id and version >= 1 and "id" not in words:
            # Clients make their ids themselves.
            member_id = self._own_id(words.text("instance") or self._client)
        topics, holds = words.maybe("topics"), words.maybe("holds")
        partitions = None
        if holds not in (None, "null") or (holds is None and epoch == 0):
            partitions = held(holds or "-", self.target.topic_id)
        request = heartbeat(
            self._group(words.text("group", "g")),
            member_id,
            epoch,
            None if topics is None else [each for each in topics.split(",") if each],
            words.maybe("pattern"),
            partitions,
            instance_id=words.maybe("instance"),
            rack_id=words.maybe("rack"),
            rebalance_timeout_ms=words.number("rebalance", 20_000 if epoch == 0 else -1),
            server_assignor=words.maybe("assignor"),
        )
        return request, ConsumerGroupHeartbeatResponse, version

    def _own_id(self, owner: str) -> str:
        member_id = f"{owner}-{uuid.uuid4()}"
        self._name(member_id)
        return member_id

    def _groups(self, words: Arguments) -> tuple[Message, type[Message], int]:
        groups = [self._group(each) for each in words.text("groups", "g").split("|")]
        operations = words.text("operations", "no") == "yes"
        request = ConsumerGroupDescribeRequest(
            group_ids=groups, include_authorized_operations=operations
        )
        return request, ConsumerGroupDescribeResponse, words.number("v", 1)

    # Answers ------------------------------------------------------------------------------------

    def _render(self, answer: Message) -> str:
        return " ".join(self._words(answer))

    def _words(self, answer: Message) -> Iterator[str]:
        match answer:
            case JoinGroupResponse():
                yield code(answer.error_code)
                # Named first, so that a new id gets its owner's name.
                member = self._name(answer.member_id)
                if not answer.error_code:
                    yield f"generation={answer.generation_id}"
                    yield f"type={answer.protocol_type}"
                    yield f"protocol={answer.protocol_name}"
                    yield f"leader={self._name(answer.leader)}"
                yield f"member={member}"
                if answer.members:
                    yield "members=" + "|".join(
                        sorted(
                            self._name(each.member_id)
                            + (f"/{each.group_instance_id}" if each.group_instance_id else "")
                            + f":{metadata_text(each.metadata)}"
                            for each in answer.members
                        )
                    )
                if answer.skip_assignment:
                    yield "skip"
            case SyncGroupResponse():
                yield code(answer.error_code)
                if not answer.error_code:
                    yield f"type={answer.protocol_type} protocol={answer.protocol_name}"
                    yield f"assignment={assignment(answer.assignment)}"
            case HeartbeatResponse():
                yield code(answer.error_code)
            case ConsumerGroupHeartbeatResponse():
                yield from heartbeat_words(answer, self._name, self._topic_name)
            case ConsumerGroupDescribeResponse():
                yield from description_words(
                    answer, lambda group: self._group_names.get(group, group), self._name
                )
            case LeaveGroupResponse():
                yield code(answer.error_code)
                for each in answer.members:
                    instance = f"/{each.group_instance_id}" if each.group_instance_id else ""
                    yield f"{self._name(each.member_id)}{instance}:{code(each.error_code)}"
            case OffsetCommitResponse():
                for topic in self._sorted_topics(answer.topics):
                    for index, error in sorted(
                        (each.partition_index, each.error_code) for each in topic[1].partitions
                    ):
                        yield f"{topic[0]}:{index}:{code(error)}"
            case OffsetFetchResponse():
                yield from self._fetched(answer)
            case OffsetDeleteResponse():
                yield code(answer.error_code)
                for each in sorted(answer.topics, key=lambda topic: topic.name):
                    for part in sorted(each.partitions, key=lambda part: part.partition_index):
                        yield f"{each.name}:{part.partition_index}:{code(part.error_code)}"
            case ListGroupsResponse():
                yield code(answer.error_code)
                for each in sorted(answer.groups, key=lambda group: group.group_id):
                    if each.group_id in self._group_names:
                        words = [each.protocol_type, each.group_state, each.group_type]
                        yield "/".join([self._group_names[each.group_id], *words])
            case DescribeGroupsResponse():
                for each in sorted(answer.groups, key=lambda group: group.group_id):
                    name = self._group_names.get(each.group_id, each.group_id)
                    yield f"{name}:{code(each.error_code)} {each.group_state}"
                    yield f"type={each.protocol_type} data={each.protocol_data}"
                    if each.error_message is not None:
                        text = each.error_message.replace(each.group_id, name)
                        yield f"message={text.replace(' ', '_')}"
                    if each.authorized_operations != -(2**31):
                        yield f"operations={each.authorized_operations}"
                    yield from sorted(
                        f"{self._name(member.member_id)}"
                        f"/{member.group_instance_id or ''}/{member.client_id}{member.client_host}"
                        f":{metadata_text(member.member_metadata)}:{assignment(member.member_assignment)}"
                        for member in each.members
                    )
            case DeleteGroupsResponse():
                for each in sorted(answer.results, key=lambda result: result.group_id):
                    name = self._group_names.get(each.group_id, each.group_id)
                    yield f"{name}:{code(each.error_code)}"
            case _:
                raise AssertionError(f"no words for {answer}")

    def _sorted_topics(self, topics: list[object]) -> list[tuple[str, object]]:
        return sorted(
            ((topic.name or self._topic_name(topic.topic_id), topic) for topic in topics),
            key=lambda pair: pair[0],
        )

    def _topic_name(self, topic_id: bytes) -> str:
        for name in TOPICS:
            if self.target.topic_id(name) == topic_id:
                return name
        return "?"

    def _fetched(self, answer: OffsetFetchResponse) -> Iterator[str]:
        if answer.groups:
            for group in answer.groups:
                name = self._group_names.get(group.group_id, group.group_id)
                yield f"{name}:{code(group.error_code)}"
                for topic, parts in self._sorted_topics(group.topics):
                    yield from self._offsets(topic, parts.partitions)
            return
        yield code(answer.error_code)
        for topic in sorted(answer.topics, key=lambda topic: topic.name):
            yield from self._offsets(topic.name, topic.partitions)

    @staticmethod
    def _offsets(topic: str, partitions: list[object]) -> Iterator[str]:
        for part in sorted(partitions, key=lambda part: part.partition_index):
            words = f"{topic}:{part.partition_index}={part.committed_offset}/{part.metadata}"
            if part.committed_leader_epoch != -1:
                words += f"@{part.committed_leader_epoch}"
            if part.error_code:
                words += f":{code(part.error_code)}"
            yield words


def metadata_text(data: bytes) -> str:
    """What a scenario calls metadata by; that of a real consumer has no name."""
    return data.decode() if data.isalnum() or not data else "@"


def code(number: int) -> str:
    return ErrorCode(number).name


def play(target: Target, text: str) -> None:
    """Run a conversation that stands in a test; its answers must be those in the text.

    An expected answer that ends in `...` may go on in any way.
    """
    lines = [line.strip() for line in text.strip().splitlines()]
    played = Run(Scenario("in a test", lines), target, lambda group: group).text()
    shown = []
    for line, expected in zip(played.split("\n")[2:], lines, strict=True):
        begin = expected.removesuffix("...").rstrip()
        shown.append(expected if begin != expected and line.startswith(begin) else line)
    assert shown == lines
