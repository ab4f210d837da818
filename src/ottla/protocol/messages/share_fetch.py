"""ShareFetch: acquire records for a share group, and acknowledge earlier ones."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    ZERO_UUID,
    Bool,
    Int8,
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


class AcknowledgementBatch(Part):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    acknowledge_types: list[Int8] = EMPTY


class FetchPartition(Part):
    partition_index: Int32 = 0
    acknowledgement_batches: list[AcknowledgementBatch] = EMPTY


class FetchTopic(Part):
    topic_id: Uuid = ZERO_UUID
    partitions: list[FetchPartition] = EMPTY


class ForgottenTopic(Part):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = EMPTY


class ShareFetchRequest(Message, api_key=ApiKey.SHARE_FETCH, versions=(1, 2), flexible_since=0):
    group_id: String | None = None
    member_id: String | None = ""
    share_session_epoch: Int32 = 0
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 2147483647
    max_records: Int32 = 0
    batch_size: Int32 = 0
    share_acquire_mode: Int8 = field(default=0, since=2, ignorable=True)
    is_renew_ack: Bool = field(default=False, since=2)
    topics: list[FetchTopic] = EMPTY
    forgotten_topics_data: list[ForgottenTopic] = EMPTY


class LeaderIdAndEpoch(Part):
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


class AcquiredRecords(Part):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_count: Int16 = 0


class PartitionData(Part):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    acknowledge_error_code: Int16 = 0
    acknowledge_error_message: String | None = None
    current_leader: LeaderIdAndEpoch = EMPTY
    records: Records = b""
    acquired_records: list[AcquiredRecords] = EMPTY


class ShareFetchableTopicResponse(Part):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = EMPTY


class NodeEndpoint(Part):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None


class ShareFetchResponse(Message, api_key=ApiKey.SHARE_FETCH, versions=(1, 2), flexible_since=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    acquisition_lock_timeout_ms: Int32 = 0
    responses: list[ShareFetchableTopicResponse] = EMPTY
    node_endpoints: list[NodeEndpoint] = EMPTY
