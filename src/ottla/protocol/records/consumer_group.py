"""Keys and values of __consumer_offsets that hold next-generation consumer groups."""

from __future__ import annotations

from ottla.protocol.message import (
    EMPTY,
    ZERO_UUID,
    Bytes,
    Int8,
    Int32,
    Int64,
    Message,
    Part,
    String,
    Uuid,
    field,
)


class ConsumerGroupMetadataKey(Message, versions=(0, 0)):
    group_id: String = ""


class ConsumerGroupMetadataValue(Message, versions=(0, 0), flexible_since=0):
    epoch: Int32 = 0
    metadata_hash: Int64 = field(default=0, tag=0)


class ConsumerGroupPartitionMetadataKey(Message, versions=(0, 0)):
    group_id: String = ""


class PartitionMetadata(Part):
    partition: Int32 = 0
    racks: list[String] = EMPTY


class TopicMetadata(Part):
    topic_id: Uuid = ZERO_UUID
    topic_name: String = ""
    num_partitions: Int32 = 0
    partition_metadata: list[PartitionMetadata] = EMPTY


class ConsumerGroupPartitionMetadataValue(Message, versions=(0, 0), flexible_since=0):
    topics: list[TopicMetadata] = EMPTY


class ConsumerGroupMemberMetadataKey(Message, versions=(0, 0)):
    group_id: String = ""
    member_id: String = ""


class ClassicProtocol(Part):
    name: String = ""
    metadata: Bytes = b""


class ClassicMemberMetadata(Part):
    session_timeout_ms: Int32 = 0
    supported_protocols: list[ClassicProtocol] = EMPTY


class ConsumerGroupMemberMetadataValue(Message, versions=(0, 0), flexible_since=0):
    instance_id: String | None = ""
    rack_id: String | None = ""
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = EMPTY
    subscribed_topic_regex: String | None = ""
    rebalance_timeout_ms: Int32 = -1
    server_assignor: String | None = ""
    classic_member_metadata: ClassicMemberMetadata | None = field(default=EMPTY, tag=0)


class ConsumerGroupTargetAssignmentMetadataKey(Message, versions=(0, 0)):
    group_id: String = ""


class ConsumerGroupTargetAssignmentMetadataValue(Message, versions=(0, 0), flexible_since=0):
    assignment_epoch: Int32 = 0
    assignment_timestamp: Int64 = field(default=0, tag=0)


class ConsumerGroupTargetAssignmentMemberKey(Message, versions=(0, 0)):
    group_id: String = ""
    member_id: String = ""


class TopicPartition(Part):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = EMPTY


class ConsumerGroupTargetAssignmentMemberValue(Message, versions=(0, 0), flexible_since=0):
    topic_partitions: list[TopicPartition] = EMPTY


class ConsumerGroupCurrentMemberAssignmentKey(Message, versions=(0, 0)):
    group_id: String = ""
    member_id: String = ""


class TopicPartitions(Part):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = EMPTY
    assignment_epochs: list[Int32] | None = field(default=EMPTY, tag=0)


class ConsumerGroupCurrentMemberAssignmentValue(Message, versions=(0, 0), flexible_since=0):
    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    assigned_partitions: list[TopicPartitions] = EMPTY
    partitions_pending_revocation: list[TopicPartitions] = EMPTY


class ConsumerGroupRegularExpressionKey(Message, versions=(0, 0)):
    group_id: String = ""
    regular_expression: String = ""


class ConsumerGroupRegularExpressionValue(Message, versions=(0, 0), flexible_since=0):
    topics: list[String] = EMPTY
    version: Int64 = 0
    timestamp: Int64 = 0
