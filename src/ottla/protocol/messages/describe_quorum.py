"""DescribeQuorum: state of a KRaft quorum, for clients that ask."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    ZERO_UUID,
    Int16,
    Int32,
    Int64,
    Message,
    Part,
    String,
    UInt16,
    Uuid,
    field,
)


class PartitionDataRequest(Part):
    partition_index: Int32 = 0


class TopicDataRequest(Part):
    topic_name: String = ""
    partitions: list[PartitionDataRequest] = EMPTY


class DescribeQuorumRequest(
    Message, api_key=ApiKey.DESCRIBE_QUORUM, versions=(0, 2), flexible_since=0
):
    topics: list[TopicDataRequest] = EMPTY


class ReplicaState(Part):
    replica_id: Int32 = 0
    replica_directory_id: Uuid = field(default=ZERO_UUID, since=2)
    log_end_offset: Int64 = 0
    last_fetch_timestamp: Int64 = field(default=-1, since=1, ignorable=True)
    last_caught_up_timestamp: Int64 = field(default=-1, since=1, ignorable=True)


class PartitionDataResponse(Part):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = field(default="", since=2, ignorable=True)
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    high_watermark: Int64 = 0
    current_voters: list[ReplicaState] = EMPTY
    observers: list[ReplicaState] = EMPTY


class TopicDataResponse(Part):
    topic_name: String = ""
    partitions: list[PartitionDataResponse] = EMPTY


class Listener(Part):
    name: String = ""
    host: String = ""
    port: UInt16 = 0


class Node(Part):
    node_id: Int32 = 0
    listeners: list[Listener] = EMPTY


class DescribeQuorumResponse(
    Message, api_key=ApiKey.DESCRIBE_QUORUM, versions=(0, 2), flexible_since=0
):
    error_code: Int16 = 0
    error_message: String | None = field(default="", since=2, ignorable=True)
    topics: list[TopicDataResponse] = EMPTY
    nodes: list[Node] = field(default=EMPTY, since=2)
