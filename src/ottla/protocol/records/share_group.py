"""Keys and values of __consumer_offsets that hold share groups."""

from __future__ import annotations

from ottla.protocol.message import (
    EMPTY,
    ZERO_UUID,
    Int8,
    Int32,
    Int64,
    Message,
    Part,
    String,
    Uuid,
    field,
)


class ShareGroupMetadataKey(Message, versions=(0, 0)):
    group_id: String = ""


class ShareGroupMetadataValue(Message, versions=(0, 0), flexible_since=0):
    epoch: Int32 = 0
    metadata_hash: Int64 = 0


class ShareGroupMemberMetadataKey(Message, versions=(0, 0)):
    group_id: String = ""
    member_id: String = ""


class ShareGroupMemberMetadataValue(Message, versions=(0, 0), flexible_since=0):
    rack_id: String | None = ""
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = EMPTY


class ShareGroupTargetAssignmentMetadataKey(Message, versions=(0, 0)):
    group_id: String = ""


class ShareGroupTargetAssignmentMetadataValue(Message, versions=(0, 0), flexible_since=0):
    assignment_epoch: Int32 = 0
    assignment_timestamp: Int64 = field(default=0, tag=0)


class ShareGroupTargetAssignmentMemberKey(Message, versions=(0, 0)):
    group_id: String = ""
    member_id: String = ""


class TopicPartition(Part):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = EMPTY


class ShareGroupTargetAssignmentMemberValue(Message, versions=(0, 0), flexible_since=0):
    topic_partitions: list[TopicPartition] = EMPTY


class ShareGroupCurrentMemberAssignmentKey(Message, versions=(0, 0)):
    group_id: String = ""
    member_id: String = ""


class TopicPartitions(Part):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = EMPTY


class ShareGroupCurrentMemberAssignmentValue(Message, versions=(0, 0), flexible_since=0):
    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    assigned_partitions: list[TopicPartitions] = EMPTY


class ShareGroupStatePartitionMetadataKey(Message, versions=(0, 0)):
    group_id: String = ""


class TopicPartitionsInfo(Part):
    topic_id: Uuid = ZERO_UUID
    topic_name: String = ""
    partitions: list[Int32] = EMPTY


class TopicInfo(Part):
    topic_id: Uuid = ZERO_UUID
    topic_name: String = ""


class ShareGroupStatePartitionMetadataValue(Message, versions=(0, 0), flexible_since=0):
    initializing_topics: list[TopicPartitionsInfo] = EMPTY
    initialized_topics: list[TopicPartitionsInfo] = EMPTY
    deleting_topics: list[TopicInfo] = EMPTY
