"""DescribeTopicPartitions: partitions of topics, page by page."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    ZERO_UUID,
    Bool,
    Int16,
    Int32,
    Message,
    Part,
    String,
    Uuid,
)


class TopicRequest(Part):
    name: String = ""


class CursorRequest(Part):
    topic_name: String = ""
    partition_index: Int32 = 0


class DescribeTopicPartitionsRequest(
    Message, api_key=ApiKey.DESCRIBE_TOPIC_PARTITIONS, versions=(0, 0), flexible_since=0
):
    topics: list[TopicRequest] = EMPTY
    response_partition_limit: Int32 = 2000
    cursor: CursorRequest | None = None


class DescribeTopicPartitionsResponsePartition(Part):
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = -1
    replica_nodes: list[Int32] = EMPTY
    isr_nodes: list[Int32] = EMPTY
    eligible_leader_replicas: list[Int32] | None = None
    last_known_elr: list[Int32] | None = None
    offline_replicas: list[Int32] = EMPTY


class DescribeTopicPartitionsResponseTopic(Part):
    error_code: Int16 = 0
    name: String | None = ""
    topic_id: Uuid = ZERO_UUID
    is_internal: Bool = False
    partitions: list[DescribeTopicPartitionsResponsePartition] = EMPTY
    topic_authorized_operations: Int32 = -2147483648


class CursorResponse(Part):
    topic_name: String = ""
    partition_index: Int32 = 0


class DescribeTopicPartitionsResponse(
    Message, api_key=ApiKey.DESCRIBE_TOPIC_PARTITIONS, versions=(0, 0), flexible_since=0
):
    throttle_time_ms: Int32 = 0
    topics: list[DescribeTopicPartitionsResponseTopic] = EMPTY
    next_cursor: CursorResponse | None = None
