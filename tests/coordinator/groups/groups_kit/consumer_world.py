"""Consumer groups of both protocols, whose clients join, work, crash, pause and come back.

Everything follows from the seed. After every step:

- no partition is held by two clients that the coordinator counts as members, whatever they were told
  and however late they hear of it;
- the fields of a group fit together (see `check_consumer_group`);
- a replay of the log gives the state that lasts;
- a commit is taken only from who holds the partition in the coordinator's eyes.

When the trouble is over, the living clients share all partitions, each has what the target says, and
the deadlines that are kept are those of members.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from groups_kit.consumer_words import assignment_partitions, subscription
from groups_kit.machine import Machine
from ottla.coordinator.groups.classic.group import ClassicGroup
from ottla.coordinator.groups.consumer.group import ConsumerGroup
from ottla.coordinator.groups.consumer.member import ConsumerMember, MemberState
from ottla.coordinator.groups.settings import GroupSettings
from ottla.coordinator.groups.shard import GroupShard
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitionsRequest,
)
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

TOPICS: Final = ("t", "u", "v")
GROUP: Final = "g"
HEARTBEAT_MS, SESSION_MS, REBALANCE_MS = 1_000, 6_000, 4_000

Partition = tuple[bytes, int]


@dataclass
class Client:
    """A consumer, as a client library would behave."""

    name: str
    instance: str | None
    classic: bool
    topics: frozenset[str]
    pattern: str = ""
    member_id: str = ""
    epoch: int = 0
    holds: set[Partition] = field(default_factory=set)
    # What the last answer said it is to hold; None: nothing new.
    target: set[Partition] | None = None
    running: bool = True
    paused: bool = False
    subscribes: bool = True  # the next heartbeat tells the subscription
    acknowledges: bool = False  # the next heartbeat tells what is held
    next_heartbeat: int = 0
    # Of the classic protocol.
    waiting: int | None = None
    joined: bool = False
    synced: bool = False
    members: list[str] = field(default_factory=list)

    def forget(self) -> None:
        self.epoch = 0
        self.holds.clear()
        self.target = None
        self.subscribes = True
        self.joined = self.synced = False


class ConsumerWorld:
    def __init__(self, seed: int, *, failures: bool = False, classic: bool = True) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.failures = failures
        self.with_classic = classic
        interval = self.chance.choice([0, 1_000])
        self.machine = Machine(
            GroupSettings(
                group_initial_rebalance_delay_ms=0,
                group_consumer_assignment_interval_ms=interval,
                group_consumer_session_timeout_ms=SESSION_MS,
                group_min_session_timeout_ms=100,
            ),
            seed,
        )
        self.machine.topics.create("v", 5)
        self.clients: list[Client] = []
        self.named = 0
        self.events: Counter[str] = Counter()

    def run(self, steps: int) -> None:
        try:
            for _ in range(steps):
                self.step()
                self.check()
            self.settle()
        except AssertionError as error:
            raise AssertionError(f"seed {self.seed}: {error}") from error

    # Steps --------------------------------------------------------------------------------------

    def step(self) -> None:
        chance = self.chance
        self.machine.failure = None
        if self.failures and chance.random() < 0.15:
            self.machine.failure = ErrorCode.COORDINATOR_NOT_AVAILABLE
        dice = chance.random()
        alive = [client for client in self.clients if client.running]
        if dice < 0.05 and len(alive) < 7:
            self.add()
        elif dice < 0.07 and alive:
            self.crash(chance.choice(alive))
        elif dice < 0.10 and alive:
            self.leave(chance.choice(alive))
        elif dice < 0.12 and self.clients:
            self.restart(chance.choice(self.clients))
        elif dice < 0.14 and alive:
            client = chance.choice(alive)
            client.paused = not client.paused
            self.events["pause"] += 1
        elif dice < 0.16:
            self.events["move"] += 1
            self.machine.reload()
            self.collect()
        elif dice < 0.18:
            self.advance(chance.choice([500, 2_000, 5_000, 20_000]))
        elif dice < 0.21 and alive:
            self.resubscribe(chance.choice(alive))
        elif dice < 0.225:
            self.change_topics()
        elif dice < 0.235 and alive:
            # Restored from an image of its machine.
            client = chance.choice(alive)
            client.epoch = max(0, client.epoch - 2)
            if not client.epoch:
                # Of a time before it had joined: it holds nothing, and says so when it joins.
                client.holds.clear()
                client.target = None
        else:
            self.work()
            self.advance(chance.choice([0, 10, 300]))
        self.machine.failure = None

    def add(self) -> None:
        chance = self.chance
        self.named += 1
        topics = frozenset(chance.sample(TOPICS, chance.randint(1, 3)))
        classic = self.with_classic and chance.random() < 0.4
        pattern = ""
        if not classic and chance.random() < 0.3:
            topics, pattern = frozenset(), chance.choice(["[tu]", "v|nothing", ".*"])
        instance = chance.choice([None, None, f"i{chance.randrange(3)}"])
        self.clients.append(Client(f"c{self.named}", instance, classic, topics, pattern))
        self.events["add"] += 1

    def crash(self, client: Client) -> None:
        client.running = False
        client.waiting = None
        self.events["crash"] += 1

    def restart(self, client: Client) -> None:
        """As another process, perhaps with the other protocol. A static one has its name still."""
        if client.running:
            self.crash(client)
        client.running, client.paused = True, False
        client.member_id = ""
        if self.with_classic and self.chance.random() < 0.4:
            client.classic = not client.classic
            client.topics = client.topics or frozenset({"t"})
            client.pattern = ""
        client.forget()
        self.events["restart"] += 1

    def leave(self, client: Client) -> None:
        if not client.member_id or client.waiting is not None or client.paused:
            return
        self.events["leave"] += 1
        if client.classic:
            member = MemberIdentity(member_id=client.member_id, group_instance_id=client.instance)
            self.send(client, LeaveGroupRequest(group_id=GROUP, members=[member]), 5)
        else:
            away = client.instance is not None and self.chance.random() < 0.5
            epoch = -2 if away else -1
            request = ConsumerGroupHeartbeatRequest(
                group_id=GROUP,
                member_id=client.member_id,
                member_epoch=epoch,
                instance_id=client.instance,
            )
            self.send(client, request, 1)
        client.running = False
        client.waiting = None
        client.member_id = ""
        client.forget()

    def resubscribe(self, client: Client) -> None:
        client.topics = frozenset(self.chance.sample(TOPICS, self.chance.randint(1, 2)))
        client.pattern = ""
        client.subscribes = True
        client.joined = client.synced = False

    def change_topics(self) -> None:
        """One goes, comes back, or grows."""
        topics = self.machine.topics
        name = self.chance.choice(TOPICS)
        count = topics.partition_count(name)
        if not count:
            topics.create(name, self.chance.randint(1, 5))
        elif self.chance.random() < 0.4:
            topics.delete(name)
        else:
            topics.grow(name, count + 1)
        self.machine.metadata_changed()
        self.events["topics"] += 1

    def advance(self, milliseconds: int) -> None:
        self.machine.advance(milliseconds)
        self.collect()

    def work(self) -> None:
        clients = [each for each in self.clients if each.running and not each.paused]
        self.chance.shuffle(clients)
        for client in clients:
            if client.waiting is None:
                self.act(client)

    def act(self, client: Client) -> None:
        if self.chance.random() < 0.2 and client.epoch > 0 and client.holds:
            self.commit(client)
            return
        if client.classic:
            self.act_classic(client)
            return
        self.reconcile(client)
        now = self.machine.now.monotonic
        if now < client.next_heartbeat and not (client.subscribes or client.acknowledges):
            return
        client.next_heartbeat = now + HEARTBEAT_MS
        self.send(client, self.heartbeat(client), 1)

    def reconcile(self, client: Client) -> None:
        """Give up first, and say so; then take."""
        if client.target is None:
            return
        if client.holds - client.target:
            if self.chance.random() < 0.3:
                return  # still busy with it
            client.holds &= client.target
            client.acknowledges = True
        elif client.target - client.holds:
            client.holds = set(client.target)
            client.acknowledges = True
        else:
            client.target = None

    def heartbeat(self, client: Client) -> ConsumerGroupHeartbeatRequest:
        if not client.member_id:
            client.member_id = f"{client.name}-{self.machine._new_id()}"
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=client.member_id,
            member_epoch=client.epoch,
            instance_id=client.instance,
        )
        if client.epoch == 0 or client.subscribes:
            request.subscribed_topic_names = sorted(client.topics)
            request.subscribed_topic_regex = client.pattern
            request.rebalance_timeout_ms = REBALANCE_MS
        if client.epoch == 0:
            request.topic_partitions = []
        elif client.acknowledges or client.subscribes or self.chance.random() < 0.2:
            by_topic: dict[bytes, list[int]] = {}
            for topic_id, partition in sorted(client.holds):
                by_topic.setdefault(topic_id, []).append(partition)
            request.topic_partitions = [
                TopicPartitionsRequest(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in by_topic.items()
            ]
        return request

    def act_classic(self, client: Client) -> None:
        now = self.machine.now.monotonic
        if not client.joined:
            metadata = subscription(";".join(sorted(client.topics)))
            # An eager member: it gives up all before it joins.
            client.holds.clear()
            request = JoinGroupRequest(
                group_id=GROUP,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                member_id=client.member_id,
                group_instance_id=client.instance,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
            )
            self.send(client, request, 9)
        elif not client.synced:
            request = SyncGroupRequest(
                group_id=GROUP,
                generation_id=client.epoch,
                member_id=client.member_id,
                group_instance_id=client.instance,
                assignments=[
                    SyncGroupRequestAssignment(member_id=each, assignment=b"")
                    for each in client.members
                ],
            )
            self.send(client, request, 3)
        elif now >= client.next_heartbeat:
            client.next_heartbeat = now + HEARTBEAT_MS
            request = HeartbeatRequest(
                group_id=GROUP,
                generation_id=client.epoch,
                member_id=client.member_id,
                group_instance_id=client.instance,
            )
            self.send(client, request, 4)

    def commit(self, client: Client) -> None:
        topic_id, partition = self.chance.choice(sorted(client.holds))
        name = self.machine.topics.topic_name(topic_id)
        if name is None:
            return
        # Perhaps one that was on its way for long, or that somebody made up.
        epoch = self.chance.choice([client.epoch] * 8 + [client.epoch - 1, client.epoch + 1])
        request = OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=epoch,
            member_id=client.member_id,
            group_instance_id=client.instance,
            topics=[
                OffsetCommitRequestTopic(
                    name=name,
                    partitions=[
                        OffsetCommitRequestPartition(partition_index=partition, committed_offset=1)
                    ],
                )
            ],
        )
        group = self.machine.shard.groups.get(GROUP)
        member = group.members.get(client.member_id) if isinstance(group, ConsumerGroup) else None
        answer = self.machine.call(request, 9, client.name)
        if not answer.topics:
            return  # the write failed
        code = ErrorCode(answer.topics[0].partitions[0].error_code)
        self.events[f"commit {code.name}"] += 1
        if code == ErrorCode.NONE and isinstance(group, ConsumerGroup):
            assert member is not None
            since = member.epoch_of(topic_id, partition)
            assert epoch == member.epoch or (since is not None and since <= epoch < member.epoch)

    # Requests and answers -----------------------------------------------------------------------

    def send(self, client: Client, request: Message, version: int) -> None:
        client.waiting = self.machine.request(client.name, request, version)
        self.collect()

    def collect(self) -> None:
        waiting = {each.waiting: each for each in self.clients if each.waiting is not None}
        for ticket in list(self.machine.answers):
            answer = self.machine.answers.pop(ticket)
            client = waiting.get(ticket)
            if client is None or not client.running:
                continue
            client.waiting = None
            if self.chance.random() < 0.03 and not client.classic:
                self.events["lost answer"] += 1
                # It does not know what the coordinator knows: it tells, and asks for, everything.
                client.subscribes = True
                continue
            self.receive(client, answer)

    def receive(self, client: Client, answer: Message) -> None:
        if not hasattr(answer, "error_code"):
            return
        code = ErrorCode(answer.error_code)
        self.events[code.name] += 1
        if code:
            self.on_error(client, code, answer)
        elif isinstance(answer, ConsumerGroupHeartbeatResponse):
            self.on_heartbeat(client, answer)
        elif hasattr(answer, "generation_id"):
            client.member_id, client.epoch = answer.member_id, answer.generation_id
            client.joined, client.synced = True, False
            client.members = [each.member_id for each in answer.members]
        elif hasattr(answer, "assignment"):
            client.synced = True
            client.next_heartbeat = self.machine.now.monotonic + HEARTBEAT_MS
            client.holds = {
                (topic_id, partition)
                for name, partition in assignment_partitions(answer.assignment)
                if (topic_id := self.machine.topics.topic_id(name)) is not None
            }

    @staticmethod
    def on_heartbeat(client: Client, answer: ConsumerGroupHeartbeatResponse) -> None:
        client.epoch = answer.member_epoch
        client.subscribes = client.acknowledges = False
        if answer.assignment is not None:
            client.target = {
                (each.topic_id, partition)
                for each in answer.assignment.topic_partitions
                for partition in each.partitions
            }

    def on_error(self, client: Client, code: ErrorCode, answer: Message) -> None:
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = answer.member_id
        elif code in (
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.FENCED_MEMBER_EPOCH,
        ):
            client.forget()
            if client.classic or code != ErrorCode.FENCED_MEMBER_EPOCH:
                client.member_id = ""
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            client.running = False
            client.member_id = ""
            client.forget()
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            client.joined = client.synced = False
        elif code == ErrorCode.GROUP_ID_NOT_FOUND:
            # The group is a classic one (again), or gone: a client joins anew.
            client.forget()
        else:
            assert code in (
                ErrorCode.UNRELEASED_INSTANCE_ID,
                ErrorCode.NOT_COORDINATOR,
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ), code

    # What must be so ----------------------------------------------------------------------------

    def check(self) -> None:
        shard = self.machine.shard
        group = shard.groups.get(GROUP)
        if isinstance(group, ConsumerGroup):
            check_consumer_group(group)
            self.check_owners(group)
            self.events["consumer"] += 1
        elif isinstance(group, ClassicGroup):
            self.events["classic"] += 1
        if not self.failures:
            assert lasting_groups(shard) == lasting_groups(self.machine.replayed())

    def check_owners(self, group: ConsumerGroup) -> None:
        """Of clients that are members, and are in touch, no two hold one partition."""
        owners: dict[Partition, str] = {}
        for client in self.clients:
            if not client.running or client.member_id not in group.members:
                continue
            for partition in client.holds:
                other = owners.setdefault(partition, client.name)
                assert other == client.name, f"{partition} is held by {other} and {client.name}"

    def settle(self) -> None:
        names: set[str] = set()
        for client in self.clients:
            client.paused = False
            if client.running and client.instance is not None:
                # Of two clients with one name, one has to go.
                if client.instance in names:
                    self.crash(client)
                names.add(client.instance)
        for _ in range(160):
            self.work()
            self.advance(250)
        self.check()
        group = self.machine.shard.groups.get(GROUP)
        alive = [client for client in self.clients if client.running]
        if not alive or not isinstance(group, ConsumerGroup) or group.is_empty:
            return
        self.events["settled"] += 1
        assert group.state_name == "Stable", group.state_name
        assert set(group.members) == {client.member_id for client in alive}
        for client in alive:
            target = {
                (topic_id, partition)
                for topic_id, partitions in group.targets[client.member_id].items()
                for partition in partitions
            }
            assert client.holds == target, client
        topics = self.machine.topics
        wanted = {
            (topics.topic_id(name), partition)
            for client in alive
            for name in group.names_for(group.members[client.member_id])
            for partition in range(topics.partition_count(name))
        }
        assert set().union(*(client.holds for client in alive)) == wanted
        assert len(self.machine.shard._consumer.timers) == len(group.members)


def check_consumer_group(group: ConsumerGroup) -> None:
    """The invariants of a group's fields."""
    members = group.members
    assert group.static_members == {
        each.instance_id: each.id for each in members.values() if each.instance_id is not None
    }
    assert group.classic_count == sum(each.uses_classic_protocol for each in members.values())
    assert group._by_topic == Counter(name for each in members.values() for name in each.topics)
    patterns = Counter(each.pattern for each in members.values() if each.pattern)
    assert group._by_pattern == patterns
    assert group.patterns.keys() <= patterns.keys()
    assert group.target_epoch <= group.epoch
    assert group.targets.keys() <= members.keys()
    owners: dict[Partition, str] = {}
    for member in members.values():
        _check_member(group, member)
        for owned in (member.assigned, member.revoking):
            for topic_id, partitions in owned.items():
                for partition in partitions:
                    assert owners.setdefault((topic_id, partition), member.id) == member.id
                    assert group.is_owned(topic_id, partition)
    known = {(topic_id, each) for topic_id, parts in group._owners.items() for each in parts}
    assert known == owners.keys()
    wanted: set[Partition] = set()
    for target in group.targets.values():
        own = {(topic_id, each) for topic_id, partitions in target.items() for each in partitions}
        assert not own & wanted, "a partition is the target of two members"
        wanted |= own


def _check_member(group: ConsumerGroup, member: ConsumerMember) -> None:
    assert member.epoch == -2 or 0 <= member.epoch <= group.target_epoch
    assert member.previous_epoch <= group.target_epoch
    assert bool(member.revoking) == (member.state is MemberState.UNREVOKED_PARTITIONS) or (
        member.epoch == -2
    )
    for topic_id, partitions in member.revoking.items():
        assert not partitions.keys() & member.assigned.get(topic_id, {}).keys()
    for owned in (member.assigned, member.revoking):
        for partitions in owned.values():
            assert partitions
            assert all(0 <= since <= group.target_epoch for since in partitions.values())


def lasting_groups(shard: GroupShard) -> object:
    """What a replay must give back. A classic group that rebalances is on its way."""
    groups: dict[str, object] = {}
    for group_id, group in shard.groups.items():
        if isinstance(group, ConsumerGroup):
            groups[group_id] = (
                group.epoch,
                group.metadata_hash,
                group.target_epoch,
                group.target_timestamp,
                group.members,
                group.targets,
                group.patterns,
                group._owners,
            )
        else:
            groups[group_id] = "classic"
    return groups, shard.offsets._committed
