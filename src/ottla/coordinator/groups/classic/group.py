"""A classic group: its members, and the bookkeeping of a rebalance.

This module knows who is in the group and what each has said; `classic_protocol` decides what follows
from it. What lasts (see `settle`) is set by replaying the group's record; the rest is passing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ottla.coordinator.groups.group import Committer, GroupKind
from ottla.coordinator.groups.records import RecordPair, group_tombstone
from ottla.coordinator.groups.states import TABLE, ClassicState, Event
from ottla.coordinator.groups.timers import Timer, unset
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.message import MalformedMessage
from ottla.protocol.records.consumer_protocol import ConsumerProtocolSubscription

if TYPE_CHECKING:
    from ottla.coordinator.groups.offsets import CommittedOffset
    from ottla.coordinator.shard import Ticket
    from ottla.protocol.records.classic_group import GroupMetadataValue, MemberMetadata

# The protocol type of groups of consumers, whose subscriptions the coordinator can read.
CONSUMER = "consumer"

Protocols = dict[str, bytes]  # name -> the member's metadata for it; the one it likes best is first


class Waiting(NamedTuple):
    """A request that is answered later."""

    ticket: Ticket
    version: int


class ClassicMember:
    """One member. `joining` and `syncing` are its requests that wait for the others."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "id",
        "instance_id",
        "is_new",
        "joining",
        "protocols",
        "rebalance_timeout",
        "session",
        "session_timeout",
        "syncing",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout: int,
        session_timeout: int,
        protocols: Protocols,
        session: Timer,
        assignment: bytes = b"",
    ) -> None:
        self.id = member_id
        # The group.instance.id of a static member, which outlives restarts of its client.
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout = rebalance_timeout  # milliseconds, as the session timeout
        self.session_timeout = session_timeout
        self.protocols = protocols
        self.assignment = assignment
        self.session = session
        self.joining: Waiting | None = None
        self.syncing: Ticket | None = None
        # It has not been in a generation yet: its client may be gone without our knowing, as it
        # sends no heartbeats while its first JoinGroup waits.
        self.is_new = False

    @property
    def is_alive_without_heartbeats(self) -> bool:
        """Whether it counts as alive because a request of it waits here: it sends no heartbeats then."""
        return not self.is_new and (self.joining is not None or self.syncing is not None)

    def says(self, stored: MemberMetadata, protocol: str) -> bool:
        """Whether the stored record describes this member as it is now."""
        return (
            self.protocols.get(protocol) == stored.subscription
            and self.session_timeout == stored.session_timeout
            and self.rebalance_timeout == stored.rebalance_timeout
            and self.instance_id == stored.group_instance_id
        )


class ClassicGroup:
    """A group of the classic protocol: its members, generation and leader."""

    kind = GroupKind.CLASSIC

    def __init__(self, group_id: str, rebalance: Timer, synchronization: Timer) -> None:
        self._group_id = group_id
        self.state = ClassicState.EMPTY
        self.previous_state = ClassicState.DEAD
        # Grows with every rebalance. In COMPLETING_REBALANCE it is one that is not stored yet.
        self.generation = 0
        # What the members speak ("consumer", "connect"). None: only offsets, never a member.
        self.protocol_type: str | None = None
        # The assignor that was chosen. Not None in COMPLETING_REBALANCE and STABLE.
        self.protocol: str | None = None
        self.leader: str | None = None  # always a member, or None
        # Wall time since when it is in its (stored) state; -1 if that is not known.
        self.state_timestamp = -1
        self.members: dict[str, ClassicMember] = {}
        # instance id -> member id. Invariant: exactly the static ones of `members`.
        self.static_members: dict[str, str] = {}
        # Ids that were handed out and have not joined yet; each with its session.
        self.pending_joins: dict[str, Timer] = {}
        # Members of this generation that have not synchronized yet.
        self.pending_syncs: set[str] = set()
        # Invariant: the number of members whose `joining` is set.
        self.joining_count = 0
        # Of a first rebalance: whether someone joined since its delay began to count (anew), and how
        # much longer it may be delayed, in milliseconds.
        self.new_member_added = False
        self.delay_left = 0
        # What the members of the generation subscribe to; None if that cannot be read.
        self.subscribed_topics: frozenset[str] | None = None
        # The end of PREPARING_REBALANCE, and the time to synchronize after it.
        self.rebalance = rebalance
        self.synchronization = synchronization
        # How many members know a protocol.
        self._supporters: Counter[str] = Counter()

    @property
    def group_id(self) -> str:
        return self._group_id

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicState.EMPTY

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def listed_protocol_type(self) -> str:
        return self.protocol_type or ""

    def move(self, event: Event) -> None:
        """Change the state; the table in `states` says to which."""
        self.previous_state, self.state = self.state, TABLE[self.state][event]

    # What lasts ---------------------------------------------------------------------------------

    def settle(
        self, value: GroupMetadataValue, revive: Callable[[MemberMetadata], ClassicMember]
    ) -> None:
        """Take over the group's record: it is stable, or empty, from now on.

        Members that are here already keep what they said and the record does not hold: their other
        protocols. The others are brought to life.
        """
        protocol = value.protocol if value.protocol or not value.members else ""
        for gone in self.members.keys() - {stored.member_id for stored in value.members}:
            self.remove(gone)
        for stored in value.members:
            known = self.members.get(stored.member_id)
            if known is not None and known.says(stored, protocol or ""):
                known.assignment = stored.assignment
            else:
                # A log is being replayed, and tells of this member, perhaps not for the first time.
                self.remove(stored.member_id)
                self.insert(revive(stored))
        self.previous_state = self.state
        self.state = ClassicState.STABLE if value.members else ClassicState.EMPTY
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol = protocol
        self.leader = value.leader
        self.state_timestamp = value.current_state_timestamp
        self.subscribed_topics = self._read_subscriptions()

    # Members ------------------------------------------------------------------------------------

    def add(self, member: ClassicMember, protocol_type: str, waiting: Waiting) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        self.insert(member)
        self.wait_for_join(member, waiting)
        self.forget_pending(member.id)
        if self.leader is None:
            self.leader = member.id

    def insert(self, member: ClassicMember) -> None:
        """Adds a member that has not joined by a request here."""
        self.members[member.id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.id
        self._supporters.update(member.protocols.keys())

    def remove(self, member_id: str) -> ClassicMember | None:
        """Forget a member whose requests have all been answered, or an id that was handed out."""
        self.forget_pending(member_id)
        self.pending_syncs.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        assert member.joining is None
        self._supporters.subtract(member.protocols.keys())
        if member.instance_id is not None:
            del self.static_members[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        unset(member.session)
        return member

    def forget_pending(self, member_id: str) -> None:
        session = self.pending_joins.pop(member_id, None)
        if session is not None:
            unset(session)

    def retire(self) -> None:
        """The group is no more, or of another kind: nothing that it waited for is to happen."""
        for timer in (
            self.rebalance,
            self.synchronization,
            *self.pending_joins.values(),
            *(member.session for member in self.members.values()),
        ):
            unset(timer)

    def replace(self, old: ClassicMember, new: ClassicMember) -> None:
        """Replaces a static member that is back under a new id."""
        was_leader = self.leader == old.id
        assert old.instance_id == new.instance_id
        self.remove(old.id)
        self.insert(new)
        if was_leader:
            self.leader = new.id

    def update(
        self,
        member: ClassicMember,
        protocols: Protocols,
        rebalance_timeout: int,
        session_timeout: int,
    ) -> None:
        self._supporters.subtract(member.protocols.keys())
        self._supporters.update(protocols.keys())
        member.protocols = protocols
        member.rebalance_timeout = rebalance_timeout
        member.session_timeout = session_timeout

    def wait_for_join(self, member: ClassicMember, waiting: Waiting) -> Waiting | None:
        """Hold a member's JoinGroup; the one it takes the place of, if there is one."""
        before, member.joining = member.joining, waiting
        if before is None:
            self.joining_count += 1
        return before

    def take_join(self, member: ClassicMember) -> Waiting | None:
        """The waiting JoinGroup of a member, to be answered now."""
        waiting, member.joining = member.joining, None
        if waiting is not None:
            self.joining_count -= 1
        return waiting

    @property
    def all_have_joined(self) -> bool:
        return self.joining_count == len(self.members) and not self.pending_joins

    @property
    def rebalance_timeout(self) -> int:
        longest = max((each.rebalance_timeout for each in self.members.values()), default=0)
        return max(longest, 0)

    def elect_leader(self) -> bool:
        """Chooses a leader among those that have joined. False if nobody has."""
        leader = self.members.get(self.leader) if self.leader is not None else None
        if leader is not None and leader.joining is not None:
            return True
        for member in self.members.values():
            if member.joining is not None:
                self.leader = member.id
                return True
        return False

    def begin_generation(self) -> None:
        """All have joined: choose the protocol of the next generation."""
        self.generation += 1
        self.protocol = self.select_protocol()
        self.subscribed_topics = self._read_subscriptions()
        self.pending_syncs.clear()
        self.move(Event.ALL_JOINED)

    # Protocols ----------------------------------------------------------------------------------

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member that speaks these fits in."""
        if self.state is ClassicState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        everybody = len(self.members)
        return protocol_type == self.protocol_type and any(
            self._supporters[name] == everybody for name in protocols
        )

    def select_protocol(self) -> str:
        """Returns the protocol that most members prefer, of those that all members know."""
        everybody = len(self.members)
        votes = Counter(
            next(name for name in member.protocols if self._supporters[name] == everybody)
            for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def _read_subscriptions(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER:
            return None
        if not self.members:
            return frozenset()
        if self.protocol is None:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            try:
                # Every version begins as version 0 does, after two bytes that name it.
                subscription, _ = ConsumerProtocolSubscription.decode(
                    member.protocols[self.protocol], 2, 0
                )
            except MalformedMessage:
                return None
            topics.update(subscription.topics)
        return frozenset(topics)

    # What is asked of every kind of group -------------------------------------------------------

    def check_member(self, member_id: str, instance_id: str | None) -> ClassicMember:
        if instance_id is not None:
            owner = self.static_members.get(instance_id)
            if owner is None:
                raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID)
            if owner != member_id:
                raise ProtocolError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def check_commit(self, committer: Committer) -> None:
        if committer.generation < 0 and self.is_empty:
            # An admin tool, or a consumer that manages its partitions itself.
            return
        claims = committer.generation >= 0 or committer.member_id or committer.instance_id
        if claims:
            self.check_member(committer.member_id, committer.instance_id)
            if committer.generation != self.generation:
                raise ProtocolError(ErrorCode.ILLEGAL_GENERATION)
        elif not committer.transactional and not self.is_empty:
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID)
        # Old clients commit in transactions without saying who they are, so for those neither the
        # member nor the state counts.
        if not committer.transactional and self.state is ClassicState.COMPLETING_REBALANCE:
            raise ProtocolError(ErrorCode.REBALANCE_IN_PROGRESS)

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Everybody may read the offsets of a classic group."""

    def check_offset_delete(self) -> None:
        if not self.is_empty and self.protocol_type != CONSUMER:
            raise ProtocolError(ErrorCode.NON_EMPTY_GROUP)

    def check_delete(self) -> None:
        if not self.is_empty:
            raise ProtocolError(ErrorCode.NON_EMPTY_GROUP)

    def subscribes_to(self, topic: str) -> bool:
        if self.subscribed_topics is None:
            # Consumers whose subscriptions cannot be read may subscribe to anything.
            return self.protocol_type == CONSUMER
        return topic in self.subscribed_topics

    def expires_from(self, committed: CommittedOffset) -> int | None:
        if self.protocol_type is None:
            return committed.commit_timestamp
        if self.is_empty:
            return self.state_timestamp if self.state_timestamp >= 0 else committed.commit_timestamp
        if self.state is ClassicState.STABLE and self.subscribed_topics is not None:
            # Of topics that nobody subscribes to any more.
            return committed.commit_timestamp
        return None

    def tombstones(self) -> list[RecordPair]:
        return [group_tombstone(self.group_id)]


def stored_member(stored: MemberMetadata, protocol: str | None, session: Timer) -> ClassicMember:
    """A member as the group's record tells of it."""
    rebalance_timeout = stored.rebalance_timeout
    return ClassicMember(
        stored.member_id,
        stored.group_instance_id,
        stored.client_id,
        stored.client_host,
        # The oldest records have only one timeout.
        stored.session_timeout if rebalance_timeout == -1 else rebalance_timeout,
        stored.session_timeout,
        {protocol or "": stored.subscription},
        session,
        stored.assignment,
    )


def assignments_of(group: ClassicGroup) -> Mapping[str, bytes]:
    return {member.id: member.assignment for member in group.members.values()}
