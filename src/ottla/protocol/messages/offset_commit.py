"""OffsetCommit: store how far a group has read."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    ZERO_UUID,
    Int16,
    Int32,
    Int64,
    Message,
    Part,
    String,
    Uuid,
    field,
)


class OffsetCommitRequestPartition(Part):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = field(default=-1, since=6, ignorable=True)
    commit_timestamp: Int64 = field(default=-1, since=1, until=1)
    committed_metadata: String | None = ""


class OffsetCommitRequestTopic(Part):
    name: String = field(default="", until=9, ignorable=True)
    topic_id: Uuid = field(default=ZERO_UUID, since=10, ignorable=True)
    partitions: list[OffsetCommitRequestPartition] = EMPTY


class OffsetCommitRequest(
    Message, api_key=ApiKey.OFFSET_COMMIT, versions=(0, 10), flexible_since=8
):
    group_id: String = ""
    generation_id_or_member_epoch: Int32 = field(default=-1, since=1, ignorable=True)
    member_id: String = field(default="", since=1, ignorable=True)
    group_instance_id: String | None = field(default=None, since=7)
    retention_time_ms: Int64 = field(default=-1, since=2, until=4, ignorable=True)
    topics: list[OffsetCommitRequestTopic] = EMPTY


class OffsetCommitResponsePartition(Part):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetCommitResponseTopic(Part):
    name: String = field(default="", until=9, ignorable=True)
    topic_id: Uuid = field(default=ZERO_UUID, since=10, ignorable=True)
    partitions: list[OffsetCommitResponsePartition] = EMPTY


class OffsetCommitResponse(
    Message, api_key=ApiKey.OFFSET_COMMIT, versions=(0, 10), flexible_since=8
):
    throttle_time_ms: Int32 = field(default=0, since=3, ignorable=True)
    topics: list[OffsetCommitResponseTopic] = EMPTY
