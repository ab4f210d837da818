"""A shard with all that a broker would give it: a log, a clock, topics, waiting clients."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from groups_kit.repeated_commits import RepeatedCommits
from groups_kit.scenarios import TOPICS
from ottla.coordinator.groups.group import Caller
from ottla.coordinator.groups.settings import GroupSettings
from ottla.coordinator.groups.shard import GroupShard
from ottla.coordinator.shard import Effects, Instant, Replayed, Ticket
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest
from ottla.protocol.messages.leave_group import LeaveGroupRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.offset_commit import OffsetCommitRequest
from ottla.protocol.messages.offset_delete import OffsetDeleteRequest
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from ottla.protocol.messages.sync_group import SyncGroupRequest
from ottla.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest

# Without the times that let members come together: before a first rebalance, between assignments.
SETTINGS = GroupSettings(
    group_initial_rebalance_delay_ms=0, group_consumer_assignment_interval_ms=0
)
# What everybody may do with a group where nobody is forbidden anything.
GROUP_OPERATIONS = 3400


class Topics:
    """Implements MetadataView."""

    def __init__(self, topics: dict[str, int]) -> None:
        self._counts: dict[str, int] = {}
        self._ids: dict[str, bytes] = {}
        self._created = 0
        for name, partitions in topics.items():
            self.create(name, partitions)

    def create(self, name: str, partitions: int) -> None:
        self._created += 1
        self._counts[name] = partitions
        self._ids[name] = self._created.to_bytes(16, "big")

    def delete(self, name: str) -> None:
        self._created += 1
        del self._counts[name], self._ids[name]

    def grow(self, name: str, partitions: int) -> None:
        self._created += 1
        self._counts[name] = partitions

    @property
    def version(self) -> int:
        return self._created

    def topic_id(self, name: str) -> bytes | None:
        return self._ids.get(name)

    def topic_name(self, topic_id: bytes) -> str | None:
        return next((name for name, each in self._ids.items() if each == topic_id), None)

    def partition_count(self, name: str) -> int:
        return self._counts.get(name, 0)

    def racks(self, name: str, partition: int) -> frozenset[str]:
        return frozenset()

    def topic_names(self) -> list[str]:
        return list(self._counts)


class Machine:
    """Does what the runtime does, in a time of its own, and remembers what was written."""

    def __init__(self, settings: GroupSettings = SETTINGS, seed: int = 1) -> None:
        self.settings = settings
        self.topics = Topics(TOPICS)
        self.chance = random.Random(seed)
        self.now = Instant(1_000_000, 1_700_000_000_000)
        # Every record and marker: what a coordinator that takes over would read.
        self.log: list[Replayed | tuple[int, int, bool]] = []
        self.batches = 0
        self.answers: dict[Ticket, Message] = {}
        self.failure: ErrorCode | None = None  # set: appends fail with it
        # What waits until the log is committed; None: it is at once.
        self._uncommitted: list[Effects] | None = None
        self.commits = RepeatedCommits()
        self._tickets = 0
        self.shard = self._new_shard()
        self.run(self.shard.loaded(self.now))

    def _new_shard(self) -> GroupShard:
        return GroupShard(self.settings, self.topics, self._new_id)

    def _new_id(self) -> str:
        digits = f"{self.chance.getrandbits(128):032x}"
        parts = digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]
        return "-".join(parts)

    def ask(self, call: Callable[[GroupShard, Ticket, Instant], Effects]) -> Ticket:
        self._tickets += 1
        ticket = self._tickets
        self.run(call(self.shard, ticket, self.now))
        # What is due at once is done at once.
        self.advance(0)
        return ticket

    def run(self, effects: Effects | None) -> None:
        while effects is not None:
            current, effects = effects, None
            if current.records:
                if self.failure is not None:
                    effects = self._refuse(current, self.failure)
                    continue
                self._append(current)
            if self._uncommitted is not None:
                self._uncommitted.append(current)
                break
            effects = self._finish(current)

    def _finish(self, effects: Effects) -> Effects | None:
        for ticket, answer in effects.answers:
            assert ticket not in self.answers, "answered twice"
            self.answers[ticket] = answer
        return None if effects.then is None else effects.then()

    @contextmanager
    def uncommitted(self) -> Iterator[None]:
        """What is written meanwhile is committed only at the end: no answer leaves before."""
        self._uncommitted = []
        yield
        waiting, self._uncommitted = self._uncommitted, None
        for effects in waiting:
            self.run(self._finish(effects))
        self.advance(0)

    def _append(self, effects: Effects) -> None:
        self.batches += 1
        producer = effects.producer or (-1, -1)
        for key, value in effects.records:
            record = Replayed(key, value, len(self.log), self.now.wall, *producer)
            self.log.append(record)
            self.shard.replay(record)

    def _refuse(self, effects: Effects, code: ErrorCode) -> Effects | None:
        if effects.failed is not None:
            return effects.failed(code)
        # The runtime's refusal: the answer's own kind with the error in it.
        for ticket, answer in effects.answers:
            refusal = type(answer)()
            if hasattr(refusal, "error_code"):
                refusal.error_code = code
            self.answers[ticket] = refusal
        return None

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        self.log.append((producer_id, 0, committed))
        self.shard.replay_marker(producer_id, 0, committed)

    def advance(self, milliseconds: int) -> None:
        """Let time pass, with a tick at every deadline on the way."""
        end = self.now.monotonic + milliseconds
        ticks = 0
        while (deadline := self.shard.next_deadline()) is not None and deadline <= end:
            self._pass(max(deadline - self.now.monotonic, 0))
            self.run(self.shard.tick(self.now))
            ticks += 1
            assert ticks < 100_000, "the clock does not get on"
        self._pass(end - self.now.monotonic)

    def _pass(self, milliseconds: int) -> None:
        self.now = Instant(self.now.monotonic + milliseconds, self.now.wall + milliseconds)

    def tick_after(self, milliseconds: int) -> None:
        """Let time pass without a tick but for one at its end, which comes late for some deadlines."""
        self._pass(milliseconds)
        self.run(self.shard.tick(self.now))

    def metadata_changed(self) -> None:
        self.run(self.shard.metadata_changed(self.now))

    def reload(self) -> None:
        """Another coordinator takes over."""
        self.run(self.shard.unloaded())
        self.shard = self.replayed()
        self.run(self.shard.loaded(self.now))

    def replayed(self) -> GroupShard:
        """What a replay of the log gives."""
        shard = self._new_shard()
        for record in self.log:
            if isinstance(record, Replayed):
                shard.replay(record)
            else:
                shard.replay_marker(*record)
        return shard

    # What the handlers do -----------------------------------------------------------------------

    def request(self, client: str, message: Message, version: int) -> Ticket:
        """A request as a client would send it, on its way past the handlers."""
        decoded, _ = type(message).decode(message.encode(version), 0, version)
        return self.ask(_call(decoded, version, client, self.commits))

    def call(self, message: Message, version: int, client: str = "a") -> Message:
        ticket = self.request(client, message, version)
        assert ticket in self.answers, f"{message} waits"
        return self.answers.pop(ticket)


Call = Callable[[GroupShard, Ticket, Instant], Effects]


def _call(message: Message, version: int, client: str, commits: RepeatedCommits) -> Call:
    match message:
        case JoinGroupRequest():
            caller = Caller(version, client, "/127.0.0.1")
            return lambda shard, ticket, now: shard.join_group(ticket, message, now, caller)
        case SyncGroupRequest():
            return lambda shard, ticket, now: shard.sync_group(ticket, message, now)
        case HeartbeatRequest():
            return lambda shard, ticket, now: shard.heartbeat(ticket, message, now)
        case LeaveGroupRequest():
            return lambda shard, ticket, now: shard.leave_group(ticket, message, now, version)
        case OffsetCommitRequest():
            return lambda shard, ticket, now: commits.commit(shard, ticket, message, now, version)
        case TxnOffsetCommitRequest():
            return lambda shard, ticket, now: shard.txn_offset_commit(ticket, message, now)
        case OffsetDeleteRequest():
            return lambda shard, ticket, now: shard.offset_delete(ticket, message, now)
        case OffsetFetchRequest():
            return lambda shard, ticket, now: Effects(
                (ticket, _fetched(shard, message, version, now))
            )
        case ListGroupsRequest():
            return lambda shard, ticket, _: Effects(
                (
                    ticket,
                    ListGroupsResponse(
                        groups=shard.list_groups(
                            {each.lower() for each in message.states_filter},
                            {each.lower() for each in message.types_filter},
                        )
                    ),
                )
            )
        case DescribeGroupsRequest():
            return lambda shard, ticket, now: Effects(
                (ticket, _described(shard, message, version, now))
            )
        case ConsumerGroupHeartbeatRequest():
            caller = Caller(version, client, "/127.0.0.1")
            return lambda shard, ticket, now: shard.consumer_group_heartbeat(
                ticket, message, now, caller
            )
        case ConsumerGroupDescribeRequest():
            return lambda shard, ticket, now: Effects(
                (ticket, _consumer_groups(shard, message, now))
            )
        case DeleteGroupsRequest():
            return lambda shard, ticket, now: _deleted(shard, ticket, message, now)
    raise AssertionError(f"no way for {message}")


def _fetched(
    shard: GroupShard, message: OffsetFetchRequest, version: int, now: Instant
) -> OffsetFetchResponse:
    if version >= 8:
        groups = []
        for wanted in message.groups:
            effects = shard.offset_fetch(
                0, wanted, now, require_stable=message.require_stable, by_id=version >= 10
            )
            groups += effects.answers[0][1].groups
        return OffsetFetchResponse(groups=groups)
    wanted = OffsetFetchRequestGroup(
        group_id=message.group_id,
        topics=None
        if message.topics is None
        else [
            OffsetFetchRequestTopics(name=each.name, partition_indexes=each.partition_indexes)
            for each in message.topics
        ],
    )
    effects = shard.offset_fetch(0, wanted, now, require_stable=message.require_stable, by_id=False)
    (group,) = effects.answers[0][1].groups
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=each.partition_index,
                        committed_offset=each.committed_offset,
                        committed_leader_epoch=each.committed_leader_epoch,
                        metadata=each.metadata,
                        error_code=each.error_code,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in group.topics
        ],
    )


def _described(
    shard: GroupShard, message: DescribeGroupsRequest, version: int, now: Instant
) -> DescribeGroupsResponse:
    groups = []
    for each in message.groups:
        groups += shard.describe_group(0, each, now, version).answers[0][1].groups
    if message.include_authorized_operations:
        for group in groups:
            group.authorized_operations = GROUP_OPERATIONS
    return DescribeGroupsResponse(groups=groups)


def _consumer_groups(
    shard: GroupShard, message: ConsumerGroupDescribeRequest, now: Instant
) -> ConsumerGroupDescribeResponse:
    groups = []
    for each in message.group_ids:
        groups += shard.describe_consumer_group(0, each, now).answers[0][1].groups
    if message.include_authorized_operations:
        for group in groups:
            group.authorized_operations = GROUP_OPERATIONS
    return ConsumerGroupDescribeResponse(groups=groups)


def _deleted(
    shard: GroupShard, ticket: Ticket, message: DeleteGroupsRequest, now: Instant
) -> Effects:
    """One group after the other, as each is a request of its own to its shard."""
    response = DeleteGroupsResponse()

    def next_one(names: list[str]) -> Effects:
        if not names:
            return Effects((ticket, response))
        effects = shard.delete_group(0, names[0], now)
        inner = effects

        def then() -> Effects:
            return next_one(names[1:])

        while inner.then is not None:
            raise AssertionError("deleted in several pieces: delete one group by one")
        response.results += inner.answers[0][1].results
        return Effects(records=inner.records, then=then)

    return next_one(list(dict.fromkeys(message.groups_names)))


class MachineTarget:
    """The state machine as the target of scenarios."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._waiting: dict[str, tuple[Ticket, type[Message], int]] = {}

    def send(self, client: str, request: Message, response: type[Message], version: int) -> None:
        assert client not in self._waiting, f"{client} still waits for an answer"
        self._waiting[client] = self.machine.request(client, request, version), response, version

    def answer(self, client: str, expected: str) -> Message | None:
        ticket, response, version = self._waiting[client]
        answer = self.machine.answers.pop(ticket, None)
        if answer is None:
            return None
        del self._waiting[client]
        # As a client of this version would see it.
        return response.decode(answer.encode(version), 0, version)[0]

    def sleep(self, milliseconds: int) -> None:
        self.machine.advance(milliseconds)

    def topic_id(self, name: str) -> bytes:
        return self.machine.topics.topic_id(name) or b"\1" * 16
