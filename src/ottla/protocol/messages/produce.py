"""Produce: append record batches to partitions."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    NEVER,
    ZERO_UUID,
    Int16,
    Int32,
    Int64,
    Message,
    Part,
    Records,
    String,
    Uuid,
    field,
)


class PartitionProduceData(Part):
    index: Int32 = 0
    records: Records | None = None


class TopicProduceData(Part):
    name: String = field(default="", until=12, ignorable=True)
    topic_id: Uuid = field(default=ZERO_UUID, since=13, ignorable=True)
    partition_data: list[PartitionProduceData] = EMPTY


class ProduceRequest(Message, api_key=ApiKey.PRODUCE, versions=(0, 13), flexible_since=9):
    transactional_id: String | None = field(default=None, since=3)
    acks: Int16 = 0
    timeout_ms: Int32 = 0
    topic_data: list[TopicProduceData] = EMPTY


class BatchIndexAndErrorMessage(Part):
    batch_index: Int32 = 0
    batch_index_error_message: String | None = None


class LeaderIdAndEpoch(Part):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class PartitionProduceResponse(Part):
    index: Int32 = 0
    error_code: Int16 = 0
    base_offset: Int64 = 0
    log_append_time_ms: Int64 = field(default=-1, since=2, ignorable=True)
    log_start_offset: Int64 = field(default=-1, since=5, ignorable=True)
    record_errors: list[BatchIndexAndErrorMessage] = field(default=EMPTY, since=8, ignorable=True)
    error_message: String | None = field(default=None, since=8, ignorable=True)
    current_leader: LeaderIdAndEpoch | None = field(
        default=None, since=10, nullable_since=NEVER, tag=0
    )


class TopicProduceResponse(Part):
    name: String = field(default="", until=12, ignorable=True)
    topic_id: Uuid = field(default=ZERO_UUID, since=13, ignorable=True)
    partition_responses: list[PartitionProduceResponse] = EMPTY


class NodeEndpoint(Part):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None


class ProduceResponse(Message, api_key=ApiKey.PRODUCE, versions=(0, 13), flexible_since=9):
    responses: list[TopicProduceResponse] = EMPTY
    throttle_time_ms: Int32 = field(default=0, since=1, ignorable=True)
    node_endpoints: list[NodeEndpoint] = field(default=EMPTY, since=10, tag=0)
