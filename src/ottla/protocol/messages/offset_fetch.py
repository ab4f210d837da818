"""OffsetFetch: how far groups have read."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    ZERO_UUID,
    Bool,
    Int16,
    Int32,
    Int64,
    Message,
    Part,
    String,
    Uuid,
    field,
)


class OffsetFetchRequestTopic(Part):
    name: String = ""
    partition_indexes: list[Int32] = EMPTY


class OffsetFetchRequestTopics(Part):
    name: String = field(default="", until=9, ignorable=True)
    topic_id: Uuid = field(default=ZERO_UUID, since=10, ignorable=True)
    partition_indexes: list[Int32] = EMPTY


class OffsetFetchRequestGroup(Part):
    group_id: String = ""
    member_id: String | None = field(default=None, since=9, ignorable=True)
    member_epoch: Int32 = field(default=-1, since=9, ignorable=True)
    topics: list[OffsetFetchRequestTopics] | None = EMPTY


class OffsetFetchRequest(Message, api_key=ApiKey.OFFSET_FETCH, versions=(0, 10), flexible_since=6):
    group_id: String = field(default="", until=7)
    topics: list[OffsetFetchRequestTopic] | None = field(default=EMPTY, until=7, nullable_since=2)
    groups: list[OffsetFetchRequestGroup] = field(default=EMPTY, since=8)
    require_stable: Bool = field(default=False, since=7)


class OffsetFetchResponsePartition(Part):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = field(default=-1, since=5, ignorable=True)
    metadata: String | None = ""
    error_code: Int16 = 0


class OffsetFetchResponseTopic(Part):
    name: String = ""
    partitions: list[OffsetFetchResponsePartition] = EMPTY


class OffsetFetchResponsePartitions(Part):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = -1
    metadata: String | None = ""
    error_code: Int16 = 0


class OffsetFetchResponseTopics(Part):
    name: String = field(default="", until=9, ignorable=True)
    topic_id: Uuid = field(default=ZERO_UUID, since=10, ignorable=True)
    partitions: list[OffsetFetchResponsePartitions] = EMPTY


class OffsetFetchResponseGroup(Part):
    group_id: String = ""
    topics: list[OffsetFetchResponseTopics] = EMPTY
    error_code: Int16 = 0


class OffsetFetchResponse(Message, api_key=ApiKey.OFFSET_FETCH, versions=(0, 10), flexible_since=6):
    throttle_time_ms: Int32 = field(default=0, since=3, ignorable=True)
    topics: list[OffsetFetchResponseTopic] = field(default=EMPTY, until=7)
    error_code: Int16 = field(default=0, since=2, until=7, ignorable=True)
    groups: list[OffsetFetchResponseGroup] = field(default=EMPTY, since=8)
