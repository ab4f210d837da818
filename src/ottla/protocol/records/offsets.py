"""Keys and values of __consumer_offsets that hold committed offsets."""

from __future__ import annotations

from ottla.protocol.message import (
    ZERO_UUID,
    Int32,
    Int64,
    Message,
    String,
    Uuid,
    field,
)


class LegacyOffsetCommitKey(Message, versions=(0, 0)):
    group: String = ""
    topic: String = ""
    partition: Int32 = 0


class LegacyOffsetCommitValue(Message, versions=(0, 0)):
    offset: Int64 = 0
    metadata: String = ""
    commit_timestamp: Int64 = 0


class OffsetCommitKey(Message, versions=(0, 0)):
    group: String = ""
    topic: String = ""
    partition: Int32 = 0


class OffsetCommitValue(Message, versions=(0, 4), flexible_since=4):
    offset: Int64 = 0
    leader_epoch: Int32 = field(default=-1, since=3, ignorable=True)
    metadata: String = ""
    commit_timestamp: Int64 = 0
    expire_timestamp: Int64 = field(default=-1, since=1, until=1, ignorable=True)
    topic_id: Uuid = field(default=ZERO_UUID, since=4, tag=0, ignorable=True)
