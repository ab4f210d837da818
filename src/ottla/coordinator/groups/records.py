"""The records of `__consumer_offsets` that classic groups and offsets are kept in.

Key and value begin with two bytes: in a key they tell the kind of record, in a value its version.
The versions written are those of Apache Kafka 4.3: group metadata 3; offsets 4 (with the topic's id),
or 1 if the client of an old version asked for a retention of its own.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Final

from ottla.coordinator.groups.offsets import CommittedOffset
from ottla.protocol.message import ZERO_UUID, MalformedMessage
from ottla.protocol.records.classic_group import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
)
from ottla.protocol.records.offsets import OffsetCommitKey, OffsetCommitValue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ottla.coordinator.groups.classic.group import ClassicGroup

# Key and value of a record to be written; the value None deletes.
RecordPair = tuple[bytes, bytes | None]

# Kinds of keys. 3 to 8 and 16 belong to consumer groups (`consumer_group_records`).
LEGACY_OFFSET: Final = 0
OFFSET: Final = 1
GROUP: Final = 2

_GROUP_VALUE_VERSION: Final = 3
_OFFSET_VALUE_VERSION: Final = 4
_OFFSET_VALUE_WITH_EXPIRY_VERSION: Final = 1

_SHORT = Struct(">h")
_pack_short = _SHORT.pack
_read_short = _SHORT.unpack_from
_pack_int = Struct(">i").pack
_OFFSET_KEY_BEGIN = _pack_short(OFFSET)
# Version, offset, leader epoch, length of the metadata plus one, timestamp; one tagged field and it.
_PLAIN_OFFSET = Struct(">hqiBq3s16s")
_pack_plain_offset = _PLAIN_OFFSET.pack
_read_plain_offset = _PLAIN_OFFSET.unpack
# Number 0, of 16 bytes.
_TOPIC_ID_TAG = b"\x01\x00\x10"
_NO_METADATA = 1

_new_tuple = tuple.__new__  # a named tuple without the detour through its Python constructor

# Keys up to this length are remembered, decoded: names may have 32 kB.
_LONGEST_REMEMBERED: Final = 600


def kind_of(key: bytes) -> int:
    if len(key) < 2:
        raise MalformedMessage("the key of a record is too short")
    kind: int = _read_short(key)[0]
    return kind


# Offsets --------------------------------------------------------------------------------------------


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    # Written by hand, as its value: a commit makes one for each partition.
    group, name = group_id.encode(), topic.encode()
    return b"".join(
        (
            _OFFSET_KEY_BEGIN,
            _pack_short(len(group)),
            group,
            _pack_short(len(name)),
            name,
            _pack_int(partition),
        )
    )


def offset_value(
    offset: int,
    leader_epoch: int,
    metadata: str,
    commit_timestamp: int,
    expire_timestamp: int,
    topic_id: bytes,
) -> bytes:
    if metadata or expire_timestamp >= 0 or topic_id == ZERO_UUID:
        version = _OFFSET_VALUE_VERSION
        if expire_timestamp >= 0:
            version = _OFFSET_VALUE_WITH_EXPIRY_VERSION
        value = OffsetCommitValue(
            offset=offset,
            leader_epoch=leader_epoch,
            metadata=metadata,
            commit_timestamp=commit_timestamp,
            expire_timestamp=expire_timestamp,
            topic_id=topic_id,
        )
        return _pack_short(version) + value.encode(version)
    # What nearly all of them are.
    return _pack_plain_offset(
        _OFFSET_VALUE_VERSION,
        offset,
        leader_epoch,
        _NO_METADATA,
        commit_timestamp,
        _TOPIC_ID_TAG,
        topic_id,
    )


def offset_tombstone(group_id: str, topic: str, partition: int) -> RecordPair:
    return offset_key(group_id, topic, partition), None


def read_offset_key(key: bytes) -> OffsetCommitKey:
    """Decode the key of a committed offset. Keys are shared between callers: not to be changed."""
    return (_remembered_key if len(key) <= _LONGEST_REMEMBERED else _offset_key)(key)


def _offset_key(key: bytes) -> OffsetCommitKey:
    return OffsetCommitKey.decode(key, 2, 0)[0]


# Groups that are busy commit for the same partitions again and again.
_remembered_key = lru_cache(4096)(_offset_key)


def read_offset_value(value: bytes, record_offset: int) -> CommittedOffset:
    """What a record says, which stands at this offset."""
    if len(value) == _PLAIN_OFFSET.size:
        # What nearly all of them are, without an object between.
        version, offset, leader_epoch, length, timestamp, tag, topic_id = _read_plain_offset(value)
        if version == _OFFSET_VALUE_VERSION and length == _NO_METADATA and tag == _TOPIC_ID_TAG:
            return _new_tuple(
                CommittedOffset,
                (offset, leader_epoch, "", timestamp, -1, topic_id, record_offset),
            )
    version = value_version(value, OffsetCommitValue.versions)
    read = OffsetCommitValue.decode(value, 2, version)[0]
    return CommittedOffset(
        read.offset,
        read.leader_epoch,
        read.metadata,
        read.commit_timestamp,
        read.expire_timestamp,
        read.topic_id or ZERO_UUID,
        record_offset,
    )


# Classic groups -------------------------------------------------------------------------------------


def group_key(group_id: str) -> bytes:
    return _pack_short(GROUP) + GroupMetadataKey(group=group_id).encode(0)


def group_tombstone(group_id: str) -> RecordPair:
    return group_key(group_id), None


def empty_group_record(
    group_id: str, protocol_type: str | None, generation: int, timestamp: int
) -> RecordPair:
    value = GroupMetadataValue(
        protocol_type=protocol_type or "",
        generation=generation,
        protocol=None,
        leader=None,
        current_state_timestamp=timestamp,
    )
    return group_key(group_id), _group_value(value)


def group_record(
    group: ClassicGroup, assignments: Mapping[str, bytes], timestamp: int
) -> RecordPair:
    """A group whose members have (or now get) these assignments."""
    protocol = group.protocol
    assert protocol is not None
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=protocol,
        leader=group.leader,
        current_state_timestamp=timestamp,
        members=[
            MemberMetadata(
                member_id=member.id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout,
                session_timeout=member.session_timeout,
                subscription=member.protocols[protocol],
                assignment=assignments.get(member.id, b""),
            )
            for member in group.members.values()
        ],
    )
    return group_key(group.group_id), _group_value(value)


def read_group_key(key: bytes) -> str:
    return GroupMetadataKey.decode(key, 2, 0)[0].group


def read_group_value(value: bytes) -> GroupMetadataValue:
    return GroupMetadataValue.decode(value, 2, value_version(value, GroupMetadataValue.versions))[0]


def _group_value(value: GroupMetadataValue) -> bytes:
    return _pack_short(_GROUP_VALUE_VERSION) + value.encode(_GROUP_VALUE_VERSION)


def value_version(value: bytes, known: tuple[int, int]) -> int:
    """The version of a record's value. MalformedMessage if it is not one of those known."""
    if len(value) < 2:
        raise MalformedMessage("the value of a record is too short")
    version: int = _read_short(value)[0]
    if not known[0] <= version <= known[1]:
        raise MalformedMessage(f"version {version} of a record's value is not known")
    return version


__all__ = [
    "GROUP",
    "LEGACY_OFFSET",
    "OFFSET",
    "ZERO_UUID",
    "RecordPair",
    "empty_group_record",
    "group_key",
    "group_record",
    "group_tombstone",
    "kind_of",
    "offset_key",
    "offset_tombstone",
    "offset_value",
    "read_group_key",
    "read_group_value",
    "read_offset_key",
    "read_offset_value",
    "value_version",
]
