"""Groups of clients that join, work, crash, pause and come back, on a coordinator that moves.

Everything follows from the seed. After every step `World` compares what it sees with what must be so:

- a partition has one owner in a generation;
- generations that are stored grow;
- a request is answered once, and all are answered in the end;
- a commit is taken only from a member of the generation that the group is in;
- a replay of the log gives the state that lasts;
- when the trouble is over, the living clients share all partitions among them.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from groups_kit.machine import Machine
from ottla.coordinator.groups.classic.group import ClassicGroup
from ottla.coordinator.groups.records import GROUP, kind_of, read_group_key, read_group_value
from ottla.coordinator.groups.settings import GroupSettings
from ottla.coordinator.groups.shard import GroupShard
from ottla.coordinator.groups.states import ClassicState
from ottla.coordinator.shard import Replayed, Ticket
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
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
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

# What the members of a group share. The coordinator sees only bytes.
PARTITIONS = range(6)
SESSION_MS, REBALANCE_MS = 6_000, 9_000
HEARTBEAT_MS = 2_000


@dataclass
class Client:
    """A consumer, as a client library would behave."""

    name: str
    group: str
    instance: str | None
    version: int
    member_id: str = ""
    generation: int = -1
    # What it knows of its place: has joined; has its assignment.
    joined: bool = False
    synced: bool = False
    leads: bool = False
    members: list[str] = field(default_factory=list)
    running: bool = True
    waiting: Ticket | None = None
    asked: Message | None = None
    next_heartbeat: int = 0
    topic: str = "t"

    def forget(self) -> None:
        self.member_id, self.generation = "", -1
        self.lose_place()

    def lose_place(self) -> None:
        self.joined = self.synced = self.leads = False


class World:
    def __init__(self, seed: int, *, failures: bool = False, moves: bool = True) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.failures = failures
        self.moves = moves
        delay = self.chance.choice([0, 3_000])
        self.machine = Machine(GroupSettings(group_initial_rebalance_delay_ms=delay), seed)
        self.clients: list[Client] = []
        # (group, generation) -> partition -> owner, as members were told it.
        self.owners: dict[tuple[str, int], dict[int, str]] = {}
        self.named = 0
        self.seen_records = 0
        self.stored: dict[str, int] = {}
        self.answered: set[Ticket] = set()
        self.sent: set[Ticket] = set()
        self.events: Counter[str] = Counter()

    # Steps --------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        try:
            for _ in range(steps):
                self.step()
                self.check()
            self.settle()
        except AssertionError as error:
            raise AssertionError(f"seed {self.seed}: {error}") from error

    def step(self) -> None:
        chance = self.chance
        self.machine.failure = None
        if self.failures and chance.random() < 0.1:
            self.machine.failure = ErrorCode.COORDINATOR_NOT_AVAILABLE
        dice = chance.random()
        alive = [client for client in self.clients if client.running]
        if dice < 0.06 and len(alive) < 8:
            self.add()
        elif dice < 0.08 and alive:
            self.crash(chance.choice(alive))
        elif dice < 0.10 and alive:
            self.leave(chance.choice(alive))
        elif dice < 0.12 and self.clients:
            self.restart(chance.choice(self.clients))
        elif dice < 0.13 and self.moves:
            self.move()
        elif dice < 0.15:
            self.advance(chance.choice([500, 3_000, 8_000, 20_000, 400_000]))
        elif dice < 0.18 and alive:
            client = chance.choice(alive)
            client.topic = chance.choice(["t", "u", "v"])
            client.lose_place()
        else:
            self.work()
            self.advance(chance.choice([0, 10, 200]))
        self.machine.failure = None

    def add(self) -> None:
        chance = self.chance
        self.named += 1
        group = chance.choice(["g", "h"])
        instance = chance.choice([None, None, f"i{chance.randrange(4)}"])
        self.clients.append(
            Client(f"c{self.named}", group, instance, chance.choice([0, 3, 4, 8, 9]))
        )
        if self.clients[-1].version < 5:
            self.clients[-1].instance = None
        self.events["add"] += 1

    def crash(self, client: Client) -> None:
        client.running = False
        client.waiting = None
        self.events["crash"] += 1

    def restart(self, client: Client) -> None:
        """With a static id it may find its place again; what it remembers may be old."""
        client.running = True
        client.waiting = None
        if self.chance.random() < 0.7:
            client.forget()
        self.events["restart"] += 1

    def leave(self, client: Client) -> None:
        if client.waiting is not None or not client.member_id:
            return
        member = MemberIdentity(member_id=client.member_id, group_instance_id=client.instance)
        if client.version < 5:
            request = LeaveGroupRequest(group_id=client.group, member_id=client.member_id)
            self.send(client, request, 2)
        else:
            self.send(client, LeaveGroupRequest(group_id=client.group, members=[member]), 5)
        self.events["leave"] += 1

    def move(self) -> None:
        """Another broker becomes the coordinator."""
        self.machine.reload()
        self.events["move"] += 1
        self.collect()

    def advance(self, milliseconds: int) -> None:
        self.machine.advance(milliseconds)
        self.collect()

    def work(self) -> None:
        """Every client does what it would do by itself now."""
        clients = [client for client in self.clients if client.running]
        self.chance.shuffle(clients)
        for client in clients:
            if client.waiting is None:
                self.act(client)

    def act(self, client: Client) -> None:
        now = self.machine.now.monotonic
        if not client.joined:
            self.join(client)
        elif not client.synced:
            self.synchronize(client)
        elif now >= client.next_heartbeat:
            client.next_heartbeat = now + HEARTBEAT_MS
            request = HeartbeatRequest(
                group_id=client.group,
                generation_id=client.generation,
                member_id=client.member_id,
                group_instance_id=client.instance,
            )
            self.send(client, request, 4)
        elif self.chance.random() < 0.3:
            self.commit(client)

    def join(self, client: Client) -> None:
        request = JoinGroupRequest(
            group_id=client.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=client.member_id,
            group_instance_id=client.instance,
            protocol_type="consumer",
            protocols=[
                JoinGroupRequestProtocol(name="range", metadata=client.topic.encode()),
                JoinGroupRequestProtocol(name="sticky", metadata=client.topic.encode()),
            ],
        )
        self.send(client, request, client.version)

    def synchronize(self, client: Client) -> None:
        request = SyncGroupRequest(
            group_id=client.group,
            generation_id=client.generation,
            member_id=client.member_id,
            group_instance_id=client.instance,
        )
        if client.leads and client.members:
            shares: dict[str, list[int]] = {member: [] for member in client.members}
            for partition in PARTITIONS:
                shares[self.chance.choice(client.members)].append(partition)
            request.assignments = [
                SyncGroupRequestAssignment(member_id=member, assignment=bytes(share))
                for member, share in shares.items()
            ]
        self.send(client, request, 3)

    def commit(self, client: Client) -> None:
        partition = OffsetCommitRequestPartition(
            partition_index=self.chance.randrange(3), committed_offset=self.chance.randrange(100)
        )
        request = OffsetCommitRequest(
            group_id=client.group,
            generation_id_or_member_epoch=client.generation,
            member_id=client.member_id,
            group_instance_id=client.instance,
            topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
        )
        self.send(client, request, 8)

    # Requests and answers -----------------------------------------------------------------------

    def send(self, client: Client, request: Message, version: int) -> None:
        before = self.machine.shard.groups.get(client.group)
        ticket = self.machine.request(client.name, request, version)
        self.sent.add(ticket)
        client.waiting, client.asked = ticket, request
        if isinstance(request, OffsetCommitRequest):
            self.check_commit(request, ticket, before)
        self.collect()

    def collect(self) -> None:
        """Hand out the answers that have come."""
        owners = {client.waiting: client for client in self.clients if client.waiting is not None}
        for ticket in list(self.machine.answers):
            answer = self.machine.answers.pop(ticket)
            assert ticket not in self.answered, "answered twice"
            self.answered.add(ticket)
            client = owners.get(ticket)
            if client is not None:
                client.waiting = None
                self.receive(client, answer)

    def receive(self, client: Client, answer: Message) -> None:
        match answer:
            case JoinGroupResponse():
                self.on_join(client, answer)
            case SyncGroupResponse():
                self.on_sync(client, answer)
            case HeartbeatResponse() if answer.error_code:
                self.on_error(client, ErrorCode(answer.error_code))
            case OffsetCommitResponse():
                code = ErrorCode(answer.topics[0].partitions[0].error_code) if answer.topics else 0
                if code:
                    self.on_error(client, code)
            case LeaveGroupResponse():
                client.forget()
                client.running = self.chance.random() < 0.5

    def on_join(self, client: Client, answer: JoinGroupResponse) -> None:
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = answer.member_id
        elif answer.error_code:
            self.on_error(client, ErrorCode(answer.error_code))
        else:
            client.member_id, client.generation = answer.member_id, answer.generation_id
            client.joined, client.synced = True, False
            client.leads = answer.leader == answer.member_id and not answer.skip_assignment
            client.members = [member.member_id for member in answer.members]
            assert client.generation > 0
            assert bool(client.members) == (answer.leader == answer.member_id)

    def on_sync(self, client: Client, answer: SyncGroupResponse) -> None:
        if answer.error_code:
            self.on_error(client, ErrorCode(answer.error_code))
            return
        client.synced = True
        client.next_heartbeat = self.machine.now.monotonic + HEARTBEAT_MS
        owners = self.owners.setdefault((client.group, client.generation), {})
        # A static member that comes back has a new id, and its old place.
        owner = client.instance or client.member_id
        for partition in answer.assignment:
            assert owners.setdefault(partition, owner) == owner, (
                f"{partition} of {client.group} has two owners in {client.generation}"
            )
        self.events["synced"] += 1

    def on_error(self, client: Client, code: ErrorCode) -> None:
        self.events[code.name] += 1
        client.lose_place()
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            client.forget()
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            # Another one has its name: it gives up.
            client.running = False
            client.forget()
        else:
            assert code in (
                ErrorCode.REBALANCE_IN_PROGRESS,
                ErrorCode.NOT_COORDINATOR,
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ), code

    # What must be so ----------------------------------------------------------------------------

    def check_commit(self, request: OffsetCommitRequest, ticket: Ticket, before: object) -> None:
        answer = self.machine.answers[ticket]
        assert isinstance(answer, OffsetCommitResponse)
        if not answer.topics or answer.topics[0].partitions[0].error_code:
            return
        assert isinstance(before, ClassicGroup)
        assert request.generation_id_or_member_epoch == before.generation
        assert request.member_id in before.members

    def check(self) -> None:
        for group in self.machine.shard.groups.values():
            assert isinstance(group, ClassicGroup)
            check_group(group)
        for record in self.machine.log[self.seen_records :]:
            if isinstance(record, Replayed) and kind_of(record.key) == GROUP:
                self.check_generation(record)
        self.seen_records = len(self.machine.log)
        if not self.failures:
            assert lasting(self.machine.shard, live=self.machine.shard) == lasting(
                self.machine.replayed(), live=self.machine.shard
            )

    def check_generation(self, record: Replayed) -> None:
        group = read_group_key(record.key)
        if record.value is None:
            # Expired: another life begins.
            del self.stored[group]
            for key in [key for key in self.owners if key[0] == group]:
                del self.owners[key]
            return
        value = read_group_value(record.value)
        last = self.stored.get(group, -1)
        same = value.generation == last and bool(value.members)
        assert value.generation > last or same, f"{group}: {value.generation} after {last}"
        self.stored[group] = value.generation

    def settle(self) -> None:
        """The trouble is over: clients that live find together, and nothing is left waiting."""
        names: set[tuple[str, str]] = set()
        for client in self.clients:
            # Of two clients with one name, one has to go.
            if client.running and client.instance is not None:
                if (client.group, client.instance) in names:
                    self.crash(client)
                names.add((client.group, client.instance))
        for _ in range(150):
            self.work()
            self.advance(250)
            self.work()
            self.advance(250)
        self.check()
        # The last ones that only time removes: new members whose client died while they waited.
        alive = [client for client in self.clients if client.running]
        for _ in range(800):
            if not alive:
                self.advance(1_000)
            self.work()
            self.advance(500)
        self.check()
        for group_id in {client.group for client in alive}:
            group = self.machine.shard.groups[group_id]
            assert isinstance(group, ClassicGroup)
            assert group.state is ClassicState.STABLE, (group_id, group.state)
            living = {client.member_id for client in alive if client.group == group_id}
            assert set(group.members) == living
            shares = [each for member in group.members.values() for each in member.assignment]
            assert sorted(shares) == list(PARTITIONS)
        for client in alive:
            assert client.waiting is None, client
        waiting = self.sent - self.answered
        assert not waiting, f"never answered: {waiting}"


def check_group(group: ClassicGroup) -> None:
    """The invariants of a group's fields."""
    members = group.members
    assert group.joining_count == sum(each.joining is not None for each in members.values())
    assert group.static_members == {
        each.instance_id: each.id for each in members.values() if each.instance_id is not None
    }
    assert not group.pending_joins.keys() & members.keys()
    assert group.pending_syncs <= members.keys()
    assert group.leader is None or group.leader in members
    assert (group.leader is None) == (not members)
    if group.state is ClassicState.EMPTY:
        assert not members
    if group.state in (ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE):
        assert group.protocol is not None
        assert all(group.protocol in each.protocols for each in members.values())
        assert members
    if group.state is not ClassicState.COMPLETING_REBALANCE:
        assert all(each.syncing is None for each in members.values())
    if group.state is not ClassicState.PREPARING_REBALANCE:
        assert not group.joining_count
        assert group.rebalance.deadline is None
    else:
        assert group.rebalance.deadline is not None
    supporters = Counter(name for each in members.values() for name in each.protocols)
    assert +group._supporters == supporters
    for member in members.values():
        assert member.session.deadline is not None or member.is_alive_without_heartbeats


def lasting(shard: GroupShard, live: GroupShard) -> object:
    """What of a shard's state a replay must give back. A group that rebalances is on its way."""
    groups: dict[str, object] = {}
    for group_id, group in shard.groups.items():
        assert isinstance(group, ClassicGroup)
        now = live.groups.get(group_id)
        settled = now is not None and now.state_name in ("Stable", "Empty")
        groups[group_id] = settled and (
            group.state,
            group.generation,
            group.protocol_type,
            group.protocol,
            group.leader,
            group.state_timestamp,
            group.subscribed_topics,
            {
                each.id: (
                    each.instance_id,
                    each.client_id,
                    each.client_host,
                    each.rebalance_timeout,
                    each.session_timeout,
                    each.protocols[group.protocol or ""],
                    each.assignment,
                )
                for each in group.members.values()
            },
        )
    offsets = shard.offsets
    return groups, offsets._committed, offsets._pending, offsets._open
