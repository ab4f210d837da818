"""ConsumerGroupHeartbeat: the whole protocol of next-generation consumer groups."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    ZERO_UUID,
    Int16,
    Int32,
    Message,
    Part,
    String,
    Uuid,
    field,
)


class TopicPartitionsRequest(Part):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = EMPTY


class ConsumerGroupHeartbeatRequest(
    Message, api_key=ApiKey.CONSUMER_GROUP_HEARTBEAT, versions=(0, 1), flexible_since=0
):
    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    instance_id: String | None = None
    rack_id: String | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: list[String] | None = None
    subscribed_topic_regex: String | None = field(default=None, since=1)
    server_assignor: String | None = None
    topic_partitions: list[TopicPartitionsRequest] | None = None


class TopicPartitionsResponse(Part):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = EMPTY


class Assignment(Part):
    topic_partitions: list[TopicPartitionsResponse] = EMPTY


class ConsumerGroupHeartbeatResponse(
    Message, api_key=ApiKey.CONSUMER_GROUP_HEARTBEAT, versions=(0, 1), flexible_since=0
):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    member_id: String | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Assignment | None = None
