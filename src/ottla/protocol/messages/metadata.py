"""Metadata: brokers, topics, partitions and who leads them."""

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
    field,
)


class MetadataRequestTopic(Part):
    topic_id: Uuid = field(default=ZERO_UUID, since=10, ignorable=True)
    name: String | None = field(default="", nullable_since=10)


class MetadataRequest(Message, api_key=ApiKey.METADATA, versions=(0, 13), flexible_since=9):
    topics: list[MetadataRequestTopic] | None = field(default=EMPTY, nullable_since=1)
    allow_auto_topic_creation: Bool = field(default=True, since=4)
    include_cluster_authorized_operations: Bool = field(default=False, since=8, until=10)
    include_topic_authorized_operations: Bool = field(default=False, since=8)


class MetadataResponseBroker(Part):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = field(default=None, since=1, ignorable=True)


class MetadataResponsePartition(Part):
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = field(default=-1, since=7, ignorable=True)
    replica_nodes: list[Int32] = EMPTY
    isr_nodes: list[Int32] = EMPTY
    offline_replicas: list[Int32] = field(default=EMPTY, since=5, ignorable=True)


class MetadataResponseTopic(Part):
    error_code: Int16 = 0
    name: String | None = field(default="", nullable_since=12)
    topic_id: Uuid = field(default=ZERO_UUID, since=10, ignorable=True)
    is_internal: Bool = field(default=False, since=1, ignorable=True)
    partitions: list[MetadataResponsePartition] = EMPTY
    topic_authorized_operations: Int32 = field(default=-2147483648, since=8)


class MetadataResponse(Message, api_key=ApiKey.METADATA, versions=(0, 13), flexible_since=9):
    throttle_time_ms: Int32 = field(default=0, since=3, ignorable=True)
    brokers: list[MetadataResponseBroker] = EMPTY
    cluster_id: String | None = field(default=None, since=2, ignorable=True)
    controller_id: Int32 = field(default=-1, since=1, ignorable=True)
    topics: list[MetadataResponseTopic] = EMPTY
    cluster_authorized_operations: Int32 = field(default=-2147483648, since=8, until=10)
    error_code: Int16 = field(default=0, since=13, ignorable=True)
