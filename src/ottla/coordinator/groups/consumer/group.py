"""A consumer group of the new protocol (KIP-848): its members, their subscriptions and assignments.

Three epochs tell how far a group is. The *group epoch* grows whenever a new assignment is wanted:
members, subscriptions or topics changed. The *target epoch* is the group epoch that the target
assignment was computed for. A *member epoch* is the target epoch that a member has arrived at:

    EMPTY         no members
    ASSIGNING     the group epoch is ahead of the target: an assignment is to be computed
    RECONCILING   some member is not yet where the target wants it
    STABLE        all are

All of this lasts: it changes only when records are replayed. What members wait for (timers) is with
the protocol (`consumer_group_protocol`), which decides what is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Final

from ottla.coordinator.groups.assignors import Partitions
from ottla.coordinator.groups.consumer.member import (
    LEAVE_EPOCH,
    NOTHING_OWNED,
    ConsumerMember,
    MemberState,
    Owned,
)
from ottla.coordinator.groups.consumer.records import ResolvedPattern, group_tombstones
from ottla.coordinator.groups.group import Committer, GroupKind, PartitionCheck
from ottla.protocol.errors import ErrorCode, ProtocolError

if TYPE_CHECKING:
    from ottla.coordinator.groups.offsets import CommittedOffset
    from ottla.coordinator.groups.records import RecordPair

# What members of the classic protocol call themselves, if they are consumers.
CONSUMER: Final = "consumer"
NO_PARTITIONS: Final[Partitions] = {}
# The group epoch, and the target's, before anything happened.
FIRST_EPOCH: Final = 1
# A member that speaks the new protocol has to commit in this version, or a later one.
_COMMIT_SINCE: Final = 9


class ConsumerGroupState(Enum):
    """The values are what clients are shown."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ConsumerGroup:
    """A group of the protocol of KIP-848: its members, epochs and target assignment."""

    kind = GroupKind.CONSUMER
    listed_protocol_type = CONSUMER

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self.epoch = FIRST_EPOCH
        # Of the topics that are subscribed to: when it differs, an assignment is wanted.
        self.metadata_hash = 0
        self.target_epoch = FIRST_EPOCH
        self.target_timestamp = 0  # wall time; 0: never computed
        self.members: dict[str, ConsumerMember] = {}
        # May hold members whose own records are not replayed yet.
        self.targets: dict[str, Partitions] = {}
        # instance id -> member id. Invariant: exactly the static ones of `members`.
        self.static_members: dict[str, str] = {}
        self.patterns: dict[str, ResolvedPattern] = {}
        # Kafka before 4.1 left one, which is deleted with the next change of topics.
        self.has_topic_metadata_record = False
        # Counts over `members`, without zeros.
        self._by_topic: Counter[str] = Counter()
        self._by_pattern: Counter[str] = Counter()
        self._by_assignor: Counter[str] = Counter()
        self._by_classic_protocol: Counter[str] = Counter()
        self.classic_count = 0
        # Who holds a partition, or may still: topic id -> partition -> its member's epoch.
        self._owners: dict[bytes, dict[int, int]] = {}
        # Passing: the group epoch with which the topics were last looked at. None: they changed.
        self.refreshed_at: int | None = None

    @property
    def group_id(self) -> str:
        return self._group_id

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(each.is_reconciled_to(self.target_epoch) for each in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def needs_refresh(self) -> bool:
        """Whether topics may have changed since they were last compared (or the result was lost)."""
        return self.refreshed_at is None or self.epoch < self.refreshed_at

    # What replaying changes ---------------------------------------------------------------------

    def put(self, member: ConsumerMember) -> None:
        old = self.members.get(member.id)
        if old is not None:
            self._count(old, -1)
            self._let_go(old)
        self.members[member.id] = member
        self._count(member, 1)
        for owned in (member.assigned, member.revoking):
            self._hold(owned, member.epoch)

    def remove(self, member_id: str) -> None:
        old = self.members.pop(member_id, None)
        if old is not None:
            self._count(old, -1)
            self._let_go(old)

    def without_assignment(self, member_id: str) -> None:
        """Replay the deletion of a member's current assignment, the first step of its removal."""
        member = self.members.get(member_id)
        if member is not None:
            self.put(
                member._replace(
                    epoch=LEAVE_EPOCH,
                    previous_epoch=LEAVE_EPOCH,
                    assigned=NOTHING_OWNED,
                    revoking=NOTHING_OWNED,
                )
            )

    def _count(self, member: ConsumerMember, by: int) -> None:
        for topic in member.topics:
            _add(self._by_topic, topic, by)
        if member.pattern:
            _add(self._by_pattern, member.pattern, by)
        if member.assignor is not None:
            _add(self._by_assignor, member.assignor, by)
        if member.classic is not None:
            self.classic_count += by
            for name in {name for name, _ in member.classic.protocols}:
                _add(self._by_classic_protocol, name, by)
        instance_id = member.instance_id
        if instance_id is not None:
            if by > 0:
                self.static_members[instance_id] = member.id
            elif self.static_members.get(instance_id) == member.id:
                del self.static_members[instance_id]

    def _hold(self, owned: Owned, epoch: int) -> None:
        for topic_id, partitions in owned.items():
            owners = self._owners.setdefault(topic_id, {})
            for partition in partitions:
                # In a log that was compacted two members may seem to have one, for a while: the
                # later epoch is right.
                if owners.get(partition, epoch) <= epoch:
                    owners[partition] = epoch

    def _let_go(self, member: ConsumerMember) -> None:
        for owned in (member.assigned, member.revoking):
            for topic_id, partitions in owned.items():
                owners = self._owners.get(topic_id)
                if owners is None:
                    continue
                for partition in partitions:
                    if owners.get(partition) == member.epoch:
                        del owners[partition]
                if not owners:
                    del self._owners[topic_id]

    # Members ------------------------------------------------------------------------------------

    def member(self, member_id: str) -> ConsumerMember:
        member = self.members.get(member_id)
        if member is None:
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        if instance_id is None:
            return None
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def member_by_instance(self, member_id: str, instance_id: str) -> ConsumerMember:
        """The static member with this instance id; ProtocolError unless it has this member id."""
        member = self.static_member(instance_id)
        if member is None:
            raise ProtocolError(
                ErrorCode.UNKNOWN_MEMBER_ID, "No member of the group has this instance id."
            )
        if member.id != member_id:
            raise ProtocolError(
                ErrorCode.FENCED_INSTANCE_ID,
                "The instance id belongs to another member now.",
            )
        return member

    def check_member(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        if instance_id is None:
            return self.member(member_id)
        return self.member_by_instance(member_id, instance_id)

    def target_of(self, member: ConsumerMember) -> Partitions:
        """The target assignment; of a static member that is back, by its old id."""
        owner = member.id
        if member.instance_id is not None:
            owner = self.static_members.get(member.instance_id, owner)
        return self.targets.get(owner, NO_PARTITIONS)

    def is_owned(self, topic_id: bytes, partition: int) -> bool:
        return partition in self._owners.get(topic_id, ())

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Whether something that the member is to get is still held by another."""
        if member.state is not MemberState.UNRELEASED_PARTITIONS:
            return False
        return any(
            partition not in member.assigned.get(topic_id, ())
            and self.is_owned(topic_id, partition)
            for topic_id, partitions in self.targets.get(member.id, NO_PARTITIONS).items()
            for partition in partitions
        )

    # Subscriptions ------------------------------------------------------------------------------

    def names_for(self, member: ConsumerMember) -> frozenset[str]:
        """The topics that a member subscribes to, by name and by pattern."""
        resolved = self.patterns.get(member.pattern) if member.pattern else None
        return member.topics if resolved is None else member.topics | resolved.topics

    def subscribers_of_pattern(self, pattern: str) -> int:
        return self._by_pattern[pattern]

    def patterns_after(self, old: ConsumerMember, new: ConsumerMember) -> frozenset[str]:
        """The patterns in use when `new` takes the place of `old`."""
        counts = Counter(self._by_pattern)
        if old.pattern:
            counts[old.pattern] -= 1
        if new.pattern:
            counts[new.pattern] += 1
        return frozenset(pattern for pattern, count in counts.items() if count > 0)

    def topics_after(
        self, gone: Iterable[ConsumerMember], come: Iterable[ConsumerMember] = ()
    ) -> set[str]:
        """The topics subscribed to when some members are no longer (as they were), others are."""
        by_topic, by_pattern = Counter(self._by_topic), Counter(self._by_pattern)
        for sign, members in ((-1, gone), (1, come)):
            for member in members:
                for topic in member.topics:
                    by_topic[topic] += sign
                if member.pattern:
                    by_pattern[member.pattern] += sign
        topics = {topic for topic, count in by_topic.items() if count > 0}
        for pattern, resolved in self.patterns.items():
            if by_pattern[pattern] > 0:
                topics |= resolved.topics
        return topics

    def topics_by_name(self) -> set[str]:
        """The topics that some member subscribes to by name."""
        return set(self._by_topic)

    def unused_patterns(self, gone: Iterable[ConsumerMember]) -> list[str]:
        """The patterns that nobody subscribes to without these members."""
        counts = Counter(member.pattern for member in gone if member.pattern)
        return [pattern for pattern, count in counts.items() if self._by_pattern[pattern] == count]

    def assignor_after(self, old: ConsumerMember, new: ConsumerMember) -> str | None:
        """The assignor that most members ask for; None if nobody does."""
        counts = Counter(self._by_assignor)
        if old.assignor is not None:
            counts[old.assignor] -= 1
        if new.assignor is not None:
            counts[new.assignor] += 1
        return _most(counts)

    @property
    def assignor(self) -> str | None:
        return _most(self._by_assignor)

    # Members of the classic protocol ------------------------------------------------------------

    def supports_classic(self, protocol_type: str, protocols: Iterable[str]) -> bool:
        """Whether a member that speaks the classic protocol, with these, fits in."""
        return protocol_type == CONSUMER and any(
            self._by_classic_protocol[name] == self.classic_count for name in protocols
        )

    def all_use_classic_without(self, gone: Iterable[ConsumerMember]) -> bool:
        leaving = list(gone)
        classic = sum(each.uses_classic_protocol for each in leaving)
        return self.classic_count - classic == len(self.members) - len(leaving)

    # What is asked of every kind of group -------------------------------------------------------

    def check_commit(self, committer: Committer) -> PartitionCheck | None:
        if committer.generation < 0 and not self.members:
            # An admin tool, or a consumer that manages its partitions itself.
            return None
        if (
            committer.transactional
            and committer.generation == -1
            and not committer.member_id
            and committer.instance_id is None
        ):
            # Old clients commit in transactions without saying who they are.
            return None
        member = self.member(committer.member_id)
        if (
            not committer.transactional
            and not member.uses_classic_protocol
            and committer.version < _COMMIT_SINCE
        ):
            raise ProtocolError(ErrorCode.UNSUPPORTED_VERSION)
        if committer.generation == member.epoch:
            return None
        stale = _stale(member, committer.transactional)
        if committer.generation > member.epoch:
            raise ProtocolError(stale)

        def check(topic_id: bytes, partition: int) -> None:
            """Checks an earlier epoch: valid for partitions that the member had then and still has."""
            since = member.epoch_of(topic_id, partition)
            if since is None or committer.generation < since:
                raise ProtocolError(stale)

        return check

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is None and member_epoch < 0:
            return
        member = self.member(member_id or "")
        if member.epoch != member_epoch:
            raise ProtocolError(_stale(member, transactional=False))

    def check_offset_delete(self) -> None:
        """Offsets of topics that are not subscribed to may always be deleted."""

    def check_delete(self) -> None:
        if self.members:
            raise ProtocolError(ErrorCode.NON_EMPTY_GROUP)

    def subscribes_to(self, topic: str) -> bool:
        return topic in self._by_topic or any(
            topic in resolved.topics for resolved in self.patterns.values()
        )

    def expires_from(self, committed: CommittedOffset) -> int | None:
        return committed.commit_timestamp

    def tombstones(self) -> list[RecordPair]:
        return group_tombstones(self._group_id, self.members, self.patterns)


def _stale(member: ConsumerMember, transactional: bool) -> ErrorCode:
    if member.uses_classic_protocol or transactional:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.STALE_MEMBER_EPOCH


def _add(counts: Counter[str], name: str, by: int) -> None:
    counts[name] += by
    if not counts[name]:
        del counts[name]


def _most(counts: Counter[str]) -> str | None:
    asked = [(count, name) for name, count in counts.items() if count > 0]
    return max(asked)[1] if asked else None
