"""StreamsGroupHeartbeat: the protocol of Kafka Streams groups."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Part,
    String,
    UInt16,
)


class KeyValue(Part):
    key: String = ""
    value: String = ""


class TopicInfo(Part):
    name: String = ""
    partitions: Int32 = 0
    replication_factor: Int16 = 0
    topic_configs: list[KeyValue] = EMPTY


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


class Topology(Part):
    epoch: Int32 = 0
    subtopologies: list[Subtopology] = EMPTY


class TaskIdsRequest(Part):
    subtopology_id: String = ""
    partitions: list[Int32] = EMPTY


class EndpointRequest(Part):
    host: String = ""
    port: UInt16 = 0


class TaskOffset(Part):
    subtopology_id: String = ""
    partition: Int32 = 0
    offset: Int64 = 0


class StreamsGroupHeartbeatRequest(
    Message, api_key=ApiKey.STREAMS_GROUP_HEARTBEAT, versions=(0, 0), flexible_since=0
):
    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    endpoint_information_epoch: Int32 = 0
    instance_id: String | None = None
    rack_id: String | None = None
    rebalance_timeout_ms: Int32 = -1
    topology: Topology | None = None
    active_tasks: list[TaskIdsRequest] | None = None
    standby_tasks: list[TaskIdsRequest] | None = None
    warmup_tasks: list[TaskIdsRequest] | None = None
    process_id: String | None = None
    user_endpoint: EndpointRequest | None = None
    client_tags: list[KeyValue] | None = None
    task_offsets: list[TaskOffset] | None = None
    task_end_offsets: list[TaskOffset] | None = None
    shutdown_application: Bool = False


class Status(Part):
    status_code: Int8 = 0
    status_detail: String = ""


class TaskIdsResponse(Part):
    subtopology_id: String = ""
    partitions: list[Int32] = EMPTY


class EndpointResponse(Part):
    host: String = ""
    port: UInt16 = 0


class TopicPartition(Part):
    topic: String = ""
    partitions: list[Int32] = EMPTY


class EndpointToPartitions(Part):
    user_endpoint: EndpointResponse = EMPTY
    active_partitions: list[TopicPartition] = EMPTY
    standby_partitions: list[TopicPartition] = EMPTY


class StreamsGroupHeartbeatResponse(
    Message, api_key=ApiKey.STREAMS_GROUP_HEARTBEAT, versions=(0, 0), flexible_since=0
):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    member_id: String = ""
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    acceptable_recovery_lag: Int32 = 0
    task_offset_interval_ms: Int32 = 0
    status: list[Status] | None = EMPTY
    active_tasks: list[TaskIdsResponse] | None = None
    standby_tasks: list[TaskIdsResponse] | None = None
    warmup_tasks: list[TaskIdsResponse] | None = None
    endpoint_information_epoch: Int32 = 0
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = None
