"""What the records of consumer groups do to them when they are replayed."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping

from ottla.coordinator.groups.classic.group import ClassicGroup
from ottla.coordinator.groups.consumer.group import ConsumerGroup
from ottla.coordinator.groups.consumer.member import ConsumerMember
from ottla.coordinator.groups.consumer.records import (
    CURRENT,
    GROUP_EPOCH,
    MEMBER,
    PATTERN,
    TARGET,
    TARGET_EPOCH,
    TOPIC_METADATA,
    read_epoch,
    read_group_key,
    read_part_key,
    read_pattern,
    read_target,
    read_target_epoch,
    with_current_record,
    with_member_record,
)
from ottla.coordinator.groups.group import Group

# The target epoch of a group whose target assignment was deleted: the last but one step of its end.
_NO_TARGET = -1


class ConsumerGroupReplay:
    def __init__(
        self, groups: MutableMapping[str, Group], member_gone: Callable[[str, str], None]
    ) -> None:
        self._groups = groups
        self._member_gone = member_gone

    def replay(self, kind: int, key: bytes, value: bytes | None) -> None:
        """Apply a record of the log to the groups. Raises MalformedMessage."""
        if kind in (GROUP_EPOCH, TARGET_EPOCH, TOPIC_METADATA):
            group_id, part = read_group_key(key), ""
        else:
            group_id, part = read_part_key(key)
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            if value is None:
                self._delete(group, kind, part)
            else:
                self._put(group, kind, part, value)
        elif value is not None:
            created = ConsumerGroup(group_id)
            self._put(created, kind, part, value)
            self._groups[group_id] = created
            if isinstance(group, ClassicGroup):
                # One that came to be by its offsets alone, or by a log that begins in the middle.
                group.retire()

    @staticmethod
    def _put(group: ConsumerGroup, kind: int, part: str, value: bytes) -> None:
        if kind == CURRENT:
            member = group.members.get(part) or ConsumerMember(part)
            group.put(with_current_record(member, value))
        elif kind == MEMBER:
            member = group.members.get(part) or ConsumerMember(part)
            group.put(with_member_record(member, value))
        elif kind == TARGET:
            group.targets[part] = read_target(value)
        elif kind == GROUP_EPOCH:
            decoded = read_epoch(value)
            group.epoch, group.metadata_hash = decoded.epoch, decoded.metadata_hash
        elif kind == TARGET_EPOCH:
            target = read_target_epoch(value)
            group.target_epoch = target.assignment_epoch
            group.target_timestamp = target.assignment_timestamp
        elif kind == PATTERN:
            group.patterns[part] = read_pattern(value)
        elif kind == TOPIC_METADATA:
            group.has_topic_metadata_record = True

    def _delete(self, group: ConsumerGroup, kind: int, part: str) -> None:
        if kind == CURRENT:
            group.without_assignment(part)
        elif kind == MEMBER:
            group.remove(part)
            self._member_gone(group.group_id, part)
        elif kind == TARGET:
            group.targets.pop(part, None)
        elif kind == GROUP_EPOCH:
            # The last of its records.
            del self._groups[group.group_id]
        elif kind == TARGET_EPOCH:
            group.target_epoch, group.target_timestamp = _NO_TARGET, 0
        elif kind == PATTERN:
            group.patterns.pop(part, None)
        elif kind == TOPIC_METADATA:
            group.has_topic_metadata_record = False
