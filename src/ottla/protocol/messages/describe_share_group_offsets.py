"""DescribeShareGroupOffsets: where share groups stand."""

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


class DescribeShareGroupOffsetsRequestTopic(Part):
    topic_name: String = ""
    partitions: list[Int32] = EMPTY


class DescribeShareGroupOffsetsRequestGroup(Part):
    group_id: String = ""
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = EMPTY


class DescribeShareGroupOffsetsRequest(
    Message, api_key=ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, versions=(0, 1), flexible_since=0
):
    groups: list[DescribeShareGroupOffsetsRequestGroup] = EMPTY


class DescribeShareGroupOffsetsResponsePartition(Part):
    partition_index: Int32 = 0
    start_offset: Int64 = 0
    leader_epoch: Int32 = 0
    lag: Int64 = field(default=-1, since=1, ignorable=True)
    error_code: Int16 = 0
    error_message: String | None = None


class DescribeShareGroupOffsetsResponseTopic(Part):
    topic_name: String = ""
    topic_id: Uuid = ZERO_UUID
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = EMPTY


class DescribeShareGroupOffsetsResponseGroup(Part):
    group_id: String = ""
    topics: list[DescribeShareGroupOffsetsResponseTopic] = EMPTY
    error_code: Int16 = 0
    error_message: String | None = None


class DescribeShareGroupOffsetsResponse(
    Message, api_key=ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, versions=(0, 1), flexible_since=0
):
    throttle_time_ms: Int32 = 0
    groups: list[DescribeShareGroupOffsetsResponseGroup] = EMPTY
