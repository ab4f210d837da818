"""ShareAcknowledge: acknowledge records that a share group acquired."""

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
    String,
    Uuid,
    field,
)


class AcknowledgementBatch(Part):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    acknowledge_types: list[Int8] = EMPTY


class AcknowledgePartition(Part):
    partition_index: Int32 = 0
    acknowledgement_batches: list[AcknowledgementBatch] = EMPTY


class AcknowledgeTopic(Part):
    topic_id: Uuid = ZERO_UUID
    partitions: list[AcknowledgePartition] = EMPTY


class ShareAcknowledgeRequest(
    Message, api_key=ApiKey.SHARE_ACKNOWLEDGE, versions=(1, 2), flexible_since=0
):
    group_id: String | None = None
    member_id: String | None = ""
    share_session_epoch: Int32 = 0
    is_renew_ack: Bool = field(default=False, since=2)
    topics: list[AcknowledgeTopic] = EMPTY


class LeaderIdAndEpoch(Part):
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


class PartitionData(Part):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    current_leader: LeaderIdAndEpoch = EMPTY


class ShareAcknowledgeTopicResponse(Part):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = EMPTY


class NodeEndpoint(Part):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None


class ShareAcknowledgeResponse(
    Message, api_key=ApiKey.SHARE_ACKNOWLEDGE, versions=(1, 2), flexible_since=0
):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    acquisition_lock_timeout_ms: Int32 = field(default=0, since=2, ignorable=True)
    responses: list[ShareAcknowledgeTopicResponse] = EMPTY
    node_endpoints: list[NodeEndpoint] = EMPTY
