"""ShareGroupHeartbeat: membership of share groups."""

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
)


class ShareGroupHeartbeatRequest(
    Message, api_key=ApiKey.SHARE_GROUP_HEARTBEAT, versions=(1, 1), flexible_since=0
):
    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    rack_id: String | None = None
    subscribed_topic_names: list[String] | None = None


class TopicPartitions(Part):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = EMPTY


class Assignment(Part):
    topic_partitions: list[TopicPartitions] = EMPTY


class ShareGroupHeartbeatResponse(
    Message, api_key=ApiKey.SHARE_GROUP_HEARTBEAT, versions=(1, 1), flexible_since=0
):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    member_id: String | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Assignment | None = None
