"""The records of `__consumer_offsets` that consumer groups (KIP-848) are kept in.

A group is many small records, so that a change of one member writes one of them:

    3   group            its epoch, and the hash of the topics that it subscribes to
    4   topics           of Kafka before 4.1; only ever deleted here
    5   member           who it is and what it subscribes to
    6   target           the epoch of the target assignment, and when it was computed
    7   target, member   what a member is to have
    8   current, member  what a member has: its epoch, its state, its partitions
    16  pattern          the topics that a regular expression stood for when it was last resolved

The version of all values is 0. Lists are written in order, so that equal states are equal bytes.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.coordinator.groups.assignors import Partitions
from ottla.coordinator.groups.consumer.member import (
    ClassicSupport,
    ConsumerMember,
    MemberState,
    Owned,
)
from ottla.coordinator.groups.records import RecordPair, value_version
from ottla.protocol.records.consumer_group import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    TopicPartition,
    TopicPartitions,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.protocol.message import Message

# Kinds of keys.
GROUP_EPOCH: Final = 3
TOPIC_METADATA: Final = 4
MEMBER: Final = 5
TARGET_EPOCH: Final = 6
TARGET: Final = 7
CURRENT: Final = 8
PATTERN: Final = 16
KINDS: Final = frozenset(
    (GROUP_EPOCH, TOPIC_METADATA, MEMBER, TARGET_EPOCH, TARGET, CURRENT, PATTERN)
)

_VERSION: Final = 0
_pack_short = Struct(">h").pack


class ResolvedPattern(NamedTuple):
    """What a regular expression stood for."""

    topics: frozenset[str]
    version: int  # of the metadata that it was resolved with
    timestamp: int  # wall time


def _key(kind: int, key: Message) -> bytes:
    return _pack_short(kind) + key.encode(0)


def _value(value: Message) -> bytes:
    return _pack_short(_VERSION) + value.encode(_VERSION)


# Keys -----------------------------------------------------------------------------------------------


def epoch_key(group_id: str) -> bytes:
    return _key(GROUP_EPOCH, ConsumerGroupMetadataKey(group_id=group_id))


def topic_metadata_key(group_id: str) -> bytes:
    return _key(TOPIC_METADATA, ConsumerGroupPartitionMetadataKey(group_id=group_id))


def member_key(group_id: str, member_id: str) -> bytes:
    return _key(MEMBER, ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id))


def target_epoch_key(group_id: str) -> bytes:
    return _key(TARGET_EPOCH, ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id))


def target_key(group_id: str, member_id: str) -> bytes:
    key = ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    return _key(TARGET, key)


def current_key(group_id: str, member_id: str) -> bytes:
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)
    return _key(CURRENT, key)


def pattern_key(group_id: str, pattern: str) -> bytes:
    key = ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=pattern)
    return _key(PATTERN, key)


# Records --------------------------------------------------------------------------------------------


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> RecordPair:
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return epoch_key(group_id), _value(value)


def member_record(group_id: str, member: ConsumerMember) -> RecordPair:
    classic = member.classic
    value = ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.pattern,
        rebalance_timeout_ms=member.rebalance_timeout,
        server_assignor=member.assignor,
        classic_member_metadata=None
        if classic is None
        else ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout,
            supported_protocols=[
                ClassicProtocol(name=name, metadata=metadata)
                for name, metadata in classic.protocols
            ],
        ),
    )
    return member_key(group_id, member.id), _value(value)


def target_epoch_record(group_id: str, epoch: int, timestamp: int) -> RecordPair:
    value = ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp=timestamp
    )
    return target_epoch_key(group_id), _value(value)


def target_record(group_id: str, member_id: str, partitions: Partitions) -> RecordPair:
    value = ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            TopicPartition(topic_id=topic_id, partitions=sorted(partitions[topic_id]))
            for topic_id in sorted(partitions)
        ]
    )
    return target_key(group_id, member_id), _value(value)


def current_record(group_id: str, member: ConsumerMember) -> RecordPair:
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=_owned(member.assigned),
        partitions_pending_revocation=_owned(member.revoking),
    )
    return current_key(group_id, member.id), _value(value)


def _owned(owned: Owned) -> list[TopicPartitions]:
    written = []
    for topic_id in sorted(owned):
        since = owned[topic_id]
        partitions = sorted(since)
        epochs = [since[each] for each in partitions]
        written.append(
            TopicPartitions(topic_id=topic_id, partitions=partitions, assignment_epochs=epochs)
        )
    return written


def pattern_record(group_id: str, pattern: str, resolved: ResolvedPattern) -> RecordPair:
    value = ConsumerGroupRegularExpressionValue(
        topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.timestamp
    )
    return pattern_key(group_id, pattern), _value(value)


def member_tombstones(group_id: str, member_id: str) -> list[RecordPair]:
    """The end of one member, of a group that goes on."""
    return [
        (current_key(group_id, member_id), None),
        (target_key(group_id, member_id), None),
        (member_key(group_id, member_id), None),
    ]


def group_tombstones(
    group_id: str, member_ids: Iterable[str], patterns: Iterable[str]
) -> list[RecordPair]:
    """The end of a group, in the order in which its parts hang on each other."""
    members = list(member_ids)
    keys = [current_key(group_id, each) for each in members]
    keys += [target_key(group_id, each) for each in members]
    keys.append(target_epoch_key(group_id))
    keys += [member_key(group_id, each) for each in members]
    keys += [pattern_key(group_id, each) for each in patterns]
    keys += [topic_metadata_key(group_id), epoch_key(group_id)]
    return [(key, None) for key in keys]


# Reading --------------------------------------------------------------------------------------------


def read_group_key(key: bytes) -> str:
    """Reads the group id from a key of the kinds GROUP_EPOCH, TOPIC_METADATA and TARGET_EPOCH."""
    return ConsumerGroupMetadataKey.decode(key, 2, 0)[0].group_id


def read_part_key(key: bytes) -> tuple[str, str]:
    """Group and member (or pattern), of the other kinds: they have one form."""
    decoded = ConsumerGroupMemberMetadataKey.decode(key, 2, 0)[0]
    return decoded.group_id, decoded.member_id


def read_epoch(value: bytes) -> ConsumerGroupMetadataValue:
    value_version(value, ConsumerGroupMetadataValue.versions)
    return ConsumerGroupMetadataValue.decode(value, 2, _VERSION)[0]


def read_target_epoch(value: bytes) -> ConsumerGroupTargetAssignmentMetadataValue:
    value_version(value, ConsumerGroupTargetAssignmentMetadataValue.versions)
    return ConsumerGroupTargetAssignmentMetadataValue.decode(value, 2, _VERSION)[0]


def read_target(value: bytes) -> Partitions:
    value_version(value, ConsumerGroupTargetAssignmentMemberValue.versions)
    decoded = ConsumerGroupTargetAssignmentMemberValue.decode(value, 2, _VERSION)[0]
    return {each.topic_id: frozenset(each.partitions) for each in decoded.topic_partitions}


def read_pattern(value: bytes) -> ResolvedPattern:
    value_version(value, ConsumerGroupRegularExpressionValue.versions)
    decoded = ConsumerGroupRegularExpressionValue.decode(value, 2, _VERSION)[0]
    return ResolvedPattern(frozenset(decoded.topics), decoded.version, decoded.timestamp)


def with_member_record(member: ConsumerMember, value: bytes) -> ConsumerMember:
    """The member after a record of kind MEMBER."""
    value_version(value, ConsumerGroupMemberMetadataValue.versions)
    decoded = ConsumerGroupMemberMetadataValue.decode(value, 2, _VERSION)[0]
    classic = decoded.classic_member_metadata
    return member._replace(
        instance_id=decoded.instance_id,
        rack=decoded.rack_id,
        client_id=decoded.client_id,
        client_host=decoded.client_host,
        topics=frozenset(decoded.subscribed_topic_names),
        pattern=decoded.subscribed_topic_regex,
        rebalance_timeout=decoded.rebalance_timeout_ms,
        assignor=decoded.server_assignor,
        classic=None
        if classic is None
        else ClassicSupport(
            classic.session_timeout_ms,
            tuple((each.name, each.metadata) for each in classic.supported_protocols),
        ),
    )


def with_current_record(member: ConsumerMember, value: bytes) -> ConsumerMember:
    """The member after a record of kind CURRENT."""
    value_version(value, ConsumerGroupCurrentMemberAssignmentValue.versions)
    decoded = ConsumerGroupCurrentMemberAssignmentValue.decode(value, 2, _VERSION)[0]
    epoch = decoded.member_epoch
    return member._replace(
        epoch=epoch,
        previous_epoch=decoded.previous_member_epoch,
        state=MemberState.of_record(decoded.state),
        assigned=_read_owned(decoded.assigned_partitions, epoch),
        revoking=_read_owned(decoded.partitions_pending_revocation, epoch),
    )


def _read_owned(written: list[TopicPartitions], member_epoch: int) -> Owned:
    owned: dict[bytes, dict[int, int]] = {}
    for each in written:
        epochs = each.assignment_epochs
        if epochs is None or len(epochs) != len(each.partitions):
            # Kafka before 4.3 did not tell.
            epochs = [max(member_epoch, 0)] * len(each.partitions)
        owned[each.topic_id] = dict(zip(each.partitions, epochs, strict=True))
    return owned
