"""ShareGroupDescribe: state and members of share groups."""

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


class ShareGroupDescribeRequest(
    Message, api_key=ApiKey.SHARE_GROUP_DESCRIBE, versions=(1, 1), flexible_since=0
):
    group_ids: list[String] = EMPTY
    include_authorized_operations: Bool = False


class TopicPartitions(Part):
    topic_id: Uuid = ZERO_UUID
    topic_name: String = ""
    partitions: list[Int32] = EMPTY


class Assignment(Part):
    topic_partitions: list[TopicPartitions] = EMPTY


class Member(Part):
    member_id: String = ""
    rack_id: String | None = None
    member_epoch: Int32 = 0
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = EMPTY
    assignment: Assignment = EMPTY


class DescribedGroup(Part):
    error_code: Int16 = 0
    error_message: String | None = None
    group_id: String = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: list[Member] = EMPTY
    authorized_operations: Int32 = -2147483648


class ShareGroupDescribeResponse(
    Message, api_key=ApiKey.SHARE_GROUP_DESCRIBE, versions=(1, 1), flexible_since=0
):
    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup] = EMPTY
