"""ListPartitionReassignments: the moves of partitions under way."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Int16,
    Int32,
    Message,
    Part,
    String,
)


class ListPartitionReassignmentsTopics(Part):
    name: String = ""
    partition_indexes: list[Int32] = EMPTY


class ListPartitionReassignmentsRequest(
    Message, api_key=ApiKey.LIST_PARTITION_REASSIGNMENTS, versions=(0, 0), flexible_since=0
):
    timeout_ms: Int32 = 60000
    topics: list[ListPartitionReassignmentsTopics] | None = None


class OngoingPartitionReassignment(Part):
    partition_index: Int32 = 0
    replicas: list[Int32] = EMPTY
    adding_replicas: list[Int32] = EMPTY
    removing_replicas: list[Int32] = EMPTY


class OngoingTopicReassignment(Part):
    name: String = ""
    partitions: list[OngoingPartitionReassignment] = EMPTY


class ListPartitionReassignmentsResponse(
    Message, api_key=ApiKey.LIST_PARTITION_REASSIGNMENTS, versions=(0, 0), flexible_since=0
):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    topics: list[OngoingTopicReassignment] = EMPTY
