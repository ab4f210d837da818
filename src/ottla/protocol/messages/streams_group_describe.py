"""StreamsGroupDescribe: state and members of Kafka Streams groups."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Bool,
    Int16,
    Int32,
    Int64,
    Message,
    Part,
    String,
    UInt16,
)


class StreamsGroupDescribeRequest(
    Message, api_key=ApiKey.STREAMS_GROUP_DESCRIBE, versions=(0, 0), flexible_since=0
):
    group_ids: list[String] = EMPTY
    include_authorized_operations: Bool = False


class KeyValue(Part):
    key: String = ""
    value: String = ""


class TopicInfo(Part):
    name: String = ""
    partitions: Int32 = 0
    replication_factor: Int16 = 0
    topic_configs: list[KeyValue] = EMPTY


class Subtopology(Part):
    subtopology_id: String = ""
    source_topics: list[String] = EMPTY
    repartition_sink_topics: list[String] = EMPTY
    state_changelog_topics: list[TopicInfo] = EMPTY
    repartition_source_topics: list[TopicInfo] = EMPTY


class Topology(Part):
    epoch: Int32 = 0
    subtopologies: list[Subtopology] | None = None


class Endpoint(Part):
    host: String = ""
    port: UInt16 = 0


class TaskOffset(Part):
    subtopology_id: String = ""
    partition: Int32 = 0
    offset: Int64 = 0


class TaskIds(Part):
    subtopology_id: String = ""
    partitions: list[Int32] = EMPTY


class Assignment(Part):
    active_tasks: list[TaskIds] = EMPTY
    standby_tasks: list[TaskIds] = EMPTY
    warmup_tasks: list[TaskIds] = EMPTY


class Member(Part):
    member_id: String = ""
    member_epoch: Int32 = 0
    instance_id: String | None = None
    rack_id: String | None = None
    client_id: String = ""
    client_host: String = ""
    topology_epoch: Int32 = 0
    process_id: String = ""
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] = EMPTY
    task_offsets: list[TaskOffset] = EMPTY
    task_end_offsets: list[TaskOffset] = EMPTY
    assignment: Assignment = EMPTY
    target_assignment: Assignment = EMPTY
    is_classic: Bool = False


class DescribedGroup(Part):
    error_code: Int16 = 0
    error_message: String | None = None
    group_id: String = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    topology: Topology | None = None
    members: list[Member] = EMPTY
    authorized_operations: Int32 = -2147483648


class StreamsGroupDescribeResponse(
    Message, api_key=ApiKey.STREAMS_GROUP_DESCRIBE, versions=(0, 0), flexible_since=0
):
    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup] = EMPTY
