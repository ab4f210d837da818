"""DescribeProducers: the producers that a partition remembers."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Int16,
    Int32,
    Int64,
    Message,
    Part,
    String,
)


class TopicRequest(Part):
    name: String = ""
    partition_indexes: list[Int32] = EMPTY


class DescribeProducersRequest(
    Message, api_key=ApiKey.DESCRIBE_PRODUCERS, versions=(0, 0), flexible_since=0
):
    topics: list[TopicRequest] = EMPTY


class ProducerState(Part):
    producer_id: Int64 = 0
    producer_epoch: Int32 = 0
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32 = 0
    current_txn_start_offset: Int64 = -1


class PartitionResponse(Part):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    active_producers: list[ProducerState] = EMPTY


class TopicResponse(Part):
    name: String = ""
    partitions: list[PartitionResponse] = EMPTY


class DescribeProducersResponse(
    Message, api_key=ApiKey.DESCRIBE_PRODUCERS, versions=(0, 0), flexible_since=0
):
    throttle_time_ms: Int32 = 0
    topics: list[TopicResponse] = EMPTY
