"""CreateTopics: make topics, by count or by an explicit replica assignment."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    ZERO_UUID,
    Bool,
    Int8,
    Int16,
    Int32,
    Message,
    Part,
    String,
    Uuid,
    field,
)


class CreatableReplicaAssignment(Part):
    partition_index: Int32 = 0
    broker_ids: list[Int32] = EMPTY


class CreatableTopicConfig(Part):
    name: String = ""
    value: String | None = ""


class CreatableTopic(Part):
    name: String = ""
    num_partitions: Int32 = 0
    replication_factor: Int16 = 0
    assignments: list[CreatableReplicaAssignment] = EMPTY
    configs: list[CreatableTopicConfig] = EMPTY


class CreateTopicsRequest(Message, api_key=ApiKey.CREATE_TOPICS, versions=(0, 7), flexible_since=5):
    topics: list[CreatableTopic] = EMPTY
    timeout_ms: Int32 = 60000
    validate_only: Bool = field(default=False, since=1)


class CreatableTopicConfigs(Part):
    name: String = ""
    value: String | None = ""
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False


class CreatableTopicResult(Part):
    name: String = ""
    topic_id: Uuid = field(default=ZERO_UUID, since=7, ignorable=True)
    error_code: Int16 = 0
    error_message: String | None = field(default="", since=1, ignorable=True)
    topic_config_error_code: Int16 = field(default=0, since=5, tag=0, ignorable=True)
    num_partitions: Int32 = field(default=-1, since=5, ignorable=True)
    replication_factor: Int16 = field(default=-1, since=5, ignorable=True)
    configs: list[CreatableTopicConfigs] | None = field(default=EMPTY, since=5, ignorable=True)


class CreateTopicsResponse(
    Message, api_key=ApiKey.CREATE_TOPICS, versions=(0, 7), flexible_since=5
):
    throttle_time_ms: Int32 = field(default=0, since=2, ignorable=True)
    topics: list[CreatableTopicResult] = EMPTY
