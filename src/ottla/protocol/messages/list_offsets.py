"""ListOffsets: the offset of a time, or of one of the log's special positions."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Part,
    String,
    field,
)


class ListOffsetsPartition(Part):
    partition_index: Int32 = 0
    current_leader_epoch: Int32 = field(default=-1, since=4, ignorable=True)
    timestamp: Int64 = 0
    max_num_offsets: Int32 = field(default=1, until=0)


class ListOffsetsTopic(Part):
    name: String = ""
    partitions: list[ListOffsetsPartition] = EMPTY


class ListOffsetsRequest(Message, api_key=ApiKey.LIST_OFFSETS, versions=(0, 11), flexible_since=6):
    replica_id: Int32 = 0
    isolation_level: Int8 = field(default=0, since=2)
    topics: list[ListOffsetsTopic] = EMPTY
    timeout_ms: Int32 = field(default=0, since=10, ignorable=True)


class ListOffsetsPartitionResponse(Part):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    old_style_offsets: list[Int64] = field(default=EMPTY, until=0)
    timestamp: Int64 = field(default=-1, since=1)
    offset: Int64 = field(default=-1, since=1)
    leader_epoch: Int32 = field(default=-1, since=4)


class ListOffsetsTopicResponse(Part):
    name: String = ""
    partitions: list[ListOffsetsPartitionResponse] = EMPTY


class ListOffsetsResponse(Message, api_key=ApiKey.LIST_OFFSETS, versions=(0, 11), flexible_since=6):
    throttle_time_ms: Int32 = field(default=0, since=2, ignorable=True)
    topics: list[ListOffsetsTopicResponse] = EMPTY
