"""CreatePartitions: give topics more partitions."""

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
)


class CreatePartitionsAssignment(Part):
    broker_ids: list[Int32] = EMPTY


class CreatePartitionsTopic(Part):
    name: String = ""
    count: Int32 = 0
    assignments: list[CreatePartitionsAssignment] | None = EMPTY


class CreatePartitionsRequest(
    Message, api_key=ApiKey.CREATE_PARTITIONS, versions=(0, 3), flexible_since=2
):
    topics: list[CreatePartitionsTopic] = EMPTY
    timeout_ms: Int32 = 0
    validate_only: Bool = False


class CreatePartitionsTopicResult(Part):
    name: String = ""
    error_code: Int16 = 0
    error_message: String | None = None


class CreatePartitionsResponse(
    Message, api_key=ApiKey.CREATE_PARTITIONS, versions=(0, 3), flexible_since=2
):
    throttle_time_ms: Int32 = 0
    results: list[CreatePartitionsTopicResult] = EMPTY
