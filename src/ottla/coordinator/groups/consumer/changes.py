"""What follows from the change of one member of a consumer group, step by step.

    subscribe        its record, if it says anything new
    update_patterns  regular expressions that nobody uses go; new ones are to be resolved
    refresh          the group epoch grows if subscriptions or topics changed
    assign           a target assignment for the epoch, if it is time for one
    reconcile        the member's own next step towards the target

Each step adds the records that it takes; nothing changes until they are replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from ottla.coordinator.groups.assignors import ASSIGNORS, MemberSubscription, Partitions
from ottla.coordinator.groups.consumer.group import NO_PARTITIONS, ConsumerGroup
from ottla.coordinator.groups.consumer.hash import TopicHashes
from ottla.coordinator.groups.consumer.member import ConsumerMember
from ottla.coordinator.groups.consumer.reconciliation import Target, reconcile
from ottla.coordinator.groups.consumer.records import (
    ResolvedPattern,
    current_record,
    epoch_record,
    member_record,
    member_tombstones,
    pattern_key,
    pattern_record,
    target_epoch_record,
    target_record,
    topic_metadata_key,
)
from ottla.coordinator.groups.patterns import InvalidPattern, TopicPattern, resolve
from ottla.protocol.errors import ErrorCode, ProtocolError

if TYPE_CHECKING:
    from ottla.coordinator.groups.records import RecordPair
    from ottla.coordinator.groups.settings import ConsumerGroupTimes, GroupSettings
    from ottla.coordinator.metadata_view import MetadataView
    from ottla.coordinator.shard import Instant

# Patterns are resolved again after this time even if no topic was created (rights may have changed),
# and never more often than this, however many topics come.
PATTERN_REFRESH_MS: Final = 600_000
PATTERN_REFRESH_AT_LEAST_MS: Final = 10_000
# Characters of what is said of a pattern, which may quote all of it.
_LONGEST_REASON: Final = 200


class PatternChange(Enum):
    NONE = auto()
    # The member has another pattern, of which it is not known yet what it stands for.
    UNRESOLVED = auto()
    RESOLVED = auto()


@dataclass(slots=True)
class Change:
    """A member before and after, and the records that make the one the other."""

    group: ConsumerGroup  # perhaps not there yet: then its records are among these
    before: ConsumerMember
    after: ConsumerMember
    now: Instant
    records: list[RecordPair] = field(default_factory=list)
    epoch: int = 0  # of the group, when the records are replayed
    subscription_changed: bool = False
    to_resolve: frozenset[str] = frozenset()
    reconciled: bool = False  # its assignment (or its way there) changed

    def __post_init__(self) -> None:
        self.epoch = self.group.epoch


class ConsumerGroupChanges:
    def __init__(
        self,
        settings: Callable[[], GroupSettings],
        own_settings: Callable[[str], Mapping[str, str]],
        metadata: MetadataView,
    ) -> None:
        self._settings = settings
        self._own_settings = own_settings
        self._metadata = metadata
        self._hashes = TopicHashes(metadata)
        # The version of the metadata that last brought a new topic.
        self.topics_created_at = metadata.version

    def times(self, group_id: str) -> ConsumerGroupTimes:
        return self._settings().consumer_times(self._own_settings(group_id))

    @property
    def default_assignor(self) -> str:
        return self._settings().group_consumer_assignors[0]

    # The steps ----------------------------------------------------------------------------------

    @staticmethod
    def subscribe(change: Change) -> bool:
        """Whether it subscribes to other names than before."""
        if change.after == change.before:
            return False
        change.records.append(member_record(change.group.group_id, change.after))
        return change.after.topics != change.before.topics

    def update_patterns(self, change: Change) -> PatternChange:
        group = change.group
        old, new = change.before.pattern, change.after.pattern
        result = PatternChange.NONE
        needed = False
        if old != new:
            result = PatternChange.UNRESOLVED
            if old and group.subscribers_of_pattern(old) == 1:
                change.records.append((pattern_key(group.group_id, old), None))
            if new:
                if group.subscribers_of_pattern(new) == 0:
                    _check_pattern(new)
                    needed = True
                elif new in group.patterns:
                    result = PatternChange.RESOLVED
            elif old:
                result = PatternChange.RESOLVED
        in_use = group.patterns_after(change.before, change.after)
        if in_use and self._is_due(group, in_use, needed, change.now):
            change.to_resolve = in_use
        return result

    def _is_due(
        self, group: ConsumerGroup, in_use: frozenset[str], needed: bool, now: Instant
    ) -> bool:
        # All of a group are resolved together, so any one tells.
        last = next(iter(group.patterns.values()), None)
        if last is None:
            return True
        if now.is_within(PATTERN_REFRESH_AT_LEAST_MS + 1, last.timestamp):
            return False
        return (
            needed
            or len(in_use) != len(group.patterns)
            or last.version < self.topics_created_at
            or not now.is_within(PATTERN_REFRESH_MS + 1, last.timestamp)
        )

    def refresh(self, change: Change, *, changed: bool) -> None:
        """Begin a new group epoch if what the group subscribes to has changed. `changed`: the member's
        subscription has; topics are compared anyway when that is due."""
        group = change.group
        if not changed and not group.needs_refresh:
            return
        topics = group.topics_after([change.before], [change.after])
        metadata_hash = self._hashes.of_group(topics)
        if changed or metadata_hash != group.metadata_hash:
            change.epoch += 1
            change.records.append(epoch_record(group.group_id, change.epoch, metadata_hash))
        group.refreshed_at = change.epoch
        if group.has_topic_metadata_record:
            change.records.append((topic_metadata_key(group.group_id), None))

    def assign(self, change: Change) -> Target:
        """What the member is to have: by the last target assignment, or by a new one."""
        group, after = change.group, change.after
        if group.target_epoch >= change.epoch or not self._may_assign(group, change.now):
            return Target(group.target_epoch, group.target_of(after))
        members = dict(group.members)
        replaced = group.static_member(after.instance_id)
        if replaced is not None and replaced.id != after.id:
            del members[replaced.id]
        members[after.id] = after
        targets = self._targets(group, members, change)
        for member_id in members:
            target = targets.get(member_id, NO_PARTITIONS)
            if group.targets.get(member_id) != target:
                change.records.append(target_record(group.group_id, member_id, target))
        change.records.append(target_epoch_record(group.group_id, change.epoch, change.now.wall))
        return Target(change.epoch, targets.get(after.id, NO_PARTITIONS))

    def target_is_due(self, group: ConsumerGroup, now: Instant) -> bool:
        """Whether the next member that asks brings a new target assignment about."""
        return group.target_epoch < group.epoch and self._may_assign(group, now)

    def _may_assign(self, group: ConsumerGroup, now: Instant) -> bool:
        if not group.target_timestamp:
            return True
        interval = self.times(group.group_id).assignment_interval
        return not interval or not now.is_within(interval, group.target_timestamp)

    def _targets(
        self, group: ConsumerGroup, members: Mapping[str, ConsumerMember], change: Change
    ) -> Mapping[str, Partitions]:
        name = group.assignor_after(change.before, change.after)
        if name not in self._settings().group_consumer_assignors:
            name = self.default_assignor
        # Most members of a group subscribe to the same.
        known: dict[frozenset[str], frozenset[bytes]] = {}
        counts: dict[bytes, int] = {}
        described = {}
        for member_id, member in members.items():
            names = group.names_for(member)
            topic_ids = known.get(names)
            if topic_ids is None:
                found = self._topics(names)
                counts.update(found)
                topic_ids = known[names] = frozenset(found)
            assigned = group.targets.get(member_id, NO_PARTITIONS)
            if member_id == change.after.id:
                assigned = group.target_of(member)
            described[member_id] = MemberSubscription(
                topic_ids, assigned, member.instance_id, member.rack
            )
        return ASSIGNORS[name].assign(described, counts)

    def _topics(self, names: Iterable[str]) -> dict[bytes, int]:
        """The topics that exist, with their numbers of partitions."""
        found = {}
        for name in names:
            topic_id = self._metadata.topic_id(name)
            if topic_id is not None:
                found[topic_id] = self._metadata.partition_count(name)
        return found

    def reconcile(
        self, change: Change, target: Target, held: Mapping[bytes, frozenset[int]] | None
    ) -> None:
        """Bring the member one step closer to its target. `held`: the partitions that it says it has;
        None if it does not say."""
        group, member = change.group, change.after
        if not change.subscription_changed and member.is_reconciled_to(target.epoch):
            return
        change.after = reconcile(
            member,
            target,
            self._topics(group.names_for(member)),
            group.is_owned,
            held,
            subscription_changed=change.subscription_changed,
        )
        if change.after != member:
            change.records.append(current_record(group.group_id, change.after))
            change.reconciled = True

    # Apart from the steps -----------------------------------------------------------------------

    @staticmethod
    def replace(change: Change, old: ConsumerMember) -> None:
        """Let a static member that is back under a new id take over what the old one has."""
        group_id, new = change.group.group_id, change.before
        target = change.group.targets.get(old.id, NO_PARTITIONS)
        change.records += member_tombstones(group_id, old.id)
        change.records.append(member_record(group_id, new))
        change.records.append(target_record(group_id, new.id, target))
        change.records.append(current_record(group_id, new))

    def removed(self, group: ConsumerGroup, members: list[ConsumerMember]) -> list[RecordPair]:
        """The records that end some members of a group."""
        group_id = group.group_id
        records = [each for member in members for each in member_tombstones(group_id, member.id)]
        records += [(pattern_key(group_id, each), None) for each in group.unused_patterns(members)]
        metadata_hash = self._hashes.of_group(group.topics_after(members))
        records.append(epoch_record(group_id, group.epoch + 1, metadata_hash))
        return records

    def resolved(
        self, group: ConsumerGroup, patterns: Iterable[str], now: Instant
    ) -> list[RecordPair]:
        """The records with the topics that patterns match now; new ones lead to a new assignment."""
        found: dict[str, frozenset[str]] = {}
        compiled = []
        for text in patterns:
            if group.subscribers_of_pattern(text):
                # Stands for nothing if it cannot be read: stored by a broker that could.
                found[text] = frozenset()
                with suppress(InvalidPattern):
                    compiled.append(TopicPattern.compile(text))
        for pattern, names in resolve(compiled, list(self._metadata.topic_names())).items():
            found[pattern.text] = names
        standing = {text: known.topics for text, known in group.patterns.items()}
        records = []
        changed = False
        for text, names in found.items():
            changed = changed or names != standing.get(text, frozenset())
            standing[text] = names
            resolution = ResolvedPattern(names, self._metadata.version, now.wall)
            records.append(pattern_record(group.group_id, text, resolution))
        metadata_hash = self._hashes.of_group(group.topics_by_name().union(*standing.values()))
        if changed or metadata_hash != group.metadata_hash:
            epoch = group.epoch + 1
            records.append(epoch_record(group.group_id, epoch, metadata_hash))
            group.refreshed_at = epoch
        return records


def _check_pattern(text: str) -> None:
    try:
        TopicPattern.compile(text)
    except InvalidPattern as error:
        raise ProtocolError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"The pattern cannot be used: {str(error)[:_LONGEST_REASON]}",
        ) from None
