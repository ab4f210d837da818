"""AlterPartitionReassignments: move partitions to other brokers, or stop that."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Bool,
    Int16,
    Int32,
    Message,
    Part,
    String,
    field,
)


class ReassignablePartition(Part):
    partition_index: Int32 = 0
    replicas: list[Int32] | None = None


class ReassignableTopic(Part):
    name: String = ""
    partitions: list[ReassignablePartition] = EMPTY


class AlterPartitionReassignmentsRequest(
    Message, api_key=ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions=(0, 1), flexible_since=0
):
    timeout_ms: Int32 = 60000
    allow_replication_factor_change: Bool = field(default=True, since=1)
    topics: list[ReassignableTopic] = EMPTY


class ReassignablePartitionResponse(Part):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""


class ReassignableTopicResponse(Part):
    name: String = ""
    partitions: list[ReassignablePartitionResponse] = EMPTY


class AlterPartitionReassignmentsResponse(
    Message, api_key=ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions=(0, 1), flexible_since=0
):
    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Bool = field(default=True, since=1, ignorable=True)
    error_code: Int16 = 0
    error_message: String | None = ""
    responses: list[ReassignableTopicResponse] = EMPTY
