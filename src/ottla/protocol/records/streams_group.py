"""Keys and values of __consumer_offsets that hold Kafka Streams groups."""

from __future__ import annotations

from ottla.protocol.message import (
    EMPTY,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Part,
    String,
    UInt16,
    field,
)


class StreamsGroupMetadataKey(Message, versions=(0, 0)):
    group_id: String = ""


class LastAssignmentConfig(Part):
    key: String = ""
    value: String = ""


class StreamsGroupMetadataValue(Message, versions=(0, 0), flexible_since=0):
    epoch: Int32 = 0
    metadata_hash: Int64 = 0
    validated_topology_epoch: Int32 = field(default=-1, tag=0)
    last_assignment_configs: list[LastAssignmentConfig] | None = field(default=EMPTY, tag=1)


class StreamsGroupMemberMetadataKey(Message, versions=(0, 0)):
    group_id: String = ""
    member_id: String = ""


class Endpoint(Part):
    host: String = ""
    port: UInt16 = 0


class KeyValue(Part):
    key: String = ""
    value: String = ""


class StreamsGroupMemberMetadataValue(Message, versions=(0, 0), flexible_since=0):
    instance_id: String | None = ""
    rack_id: String | None = ""
    client_id: String = ""
    client_host: String = ""
    rebalance_timeout_ms: Int32 = -1
    topology_epoch: Int32 = 0
    process_id: String = ""
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] = EMPTY


class StreamsGroupTargetAssignmentMetadataKey(Message, versions=(0, 0)):
    group_id: String = ""


class StreamsGroupTargetAssignmentMetadataValue(Message, versions=(0, 0), flexible_since=0):
    assignment_epoch: Int32 = 0
    assignment_timestamp: Int64 = field(default=0, tag=0)


class StreamsGroupTargetAssignmentMemberKey(Message, versions=(0, 0)):
    group_id: String = ""
    member_id: String = ""


class StreamsGroupTargetAssignmentMemberTaskIds(Part):
    subtopology_id: String = ""
    partitions: list[Int32] = EMPTY


class StreamsGroupTargetAssignmentMemberValue(Message, versions=(0, 0), flexible_since=0):
    active_tasks: list[StreamsGroupTargetAssignmentMemberTaskIds] = EMPTY
    standby_tasks: list[StreamsGroupTargetAssignmentMemberTaskIds] = EMPTY
    warmup_tasks: list[StreamsGroupTargetAssignmentMemberTaskIds] = EMPTY


class StreamsGroupCurrentMemberAssignmentKey(Message, versions=(0, 0)):
    group_id: String = ""
    member_id: String = ""


class StreamsGroupCurrentMemberAssignmentTaskIds(Part):
    subtopology_id: String = ""
    partitions: list[Int32] = EMPTY
    assignment_epochs: list[Int32] | None = field(default=EMPTY, tag=0)


class StreamsGroupCurrentMemberAssignmentValue(Message, versions=(0, 0), flexible_since=0):
    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    active_tasks: list[StreamsGroupCurrentMemberAssignmentTaskIds] = EMPTY
    standby_tasks: list[StreamsGroupCurrentMemberAssignmentTaskIds] = EMPTY
    warmup_tasks: list[StreamsGroupCurrentMemberAssignmentTaskIds] = EMPTY
    active_tasks_pending_revocation: list[StreamsGroupCurrentMemberAssignmentTaskIds] = EMPTY
    standby_tasks_pending_revocation: list[StreamsGroupCurrentMemberAssignmentTaskIds] = EMPTY
    warmup_tasks_pending_revocation: list[StreamsGroupCurrentMemberAssignmentTaskIds] = EMPTY


class StreamsGroupTopologyKey(Message, versions=(0, 0)):
    group_id: String = ""


class TopicConfig(Part):
    key: String = ""
    value: String = ""


class TopicInfo(Part):
    name: String = ""
    partitions: Int32 = 0
    replication_factor: Int16 = 0
    topic_configs: list[TopicConfig] = EMPTY


class CopartitionGroup(Part):
    source_topics: list[Int16] = EMPTY
    source_topic_regex: list[Int16] = EMPTY
    repartition_source_topics: list[Int16] = EMPTY


class Subtopology(Part):
    subtopology_id: String = ""
    source_topics: list[String] = EMPTY
    source_topic_regex: list[String] = EMPTY
    state_changelog_topics: list[TopicInfo] = EMPTY
    repartition_sink_topics: list[String] = EMPTY
    repartition_source_topics: list[TopicInfo] = EMPTY
    copartition_groups: list[CopartitionGroup] = EMPTY


class StreamsGroupTopologyValue(Message, versions=(0, 0), flexible_since=0):
    epoch: Int32 = 0
    subtopologies: list[Subtopology] = EMPTY
