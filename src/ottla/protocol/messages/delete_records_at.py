"""DeleteRecordsAt: delete single records by their offsets. An API of Ottla's own."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    ZERO_UUID,
    Bool,
    Int16,
    Int32,
    Int64,
    Message,
    Part,
    String,
    Uuid,
    field,
)


class DeletedRange(Part):
    first_offset: Int64 = 0
    last_offset: Int64 = 0


class DeleteRecordsAtPartition(Part):
    partition_index: Int32 = 0
    ranges: list[DeletedRange] = EMPTY


class DeleteRecordsAtTopic(Part):
    name: String = ""
    # If it is not zero: nothing is deleted in a topic of this name that has another id.
    topic_id: Uuid = field(default=ZERO_UUID, since=1, ignorable=True)
    partitions: list[DeleteRecordsAtPartition] = EMPTY


class DeleteRecordsAtRequest(
    Message, api_key=ApiKey.DELETE_RECORDS_AT, versions=(0, 1), flexible_since=0
):
    topics: list[DeleteRecordsAtTopic] = EMPTY
    timeout_ms: Int32 = 0
    # Records that are deleted already are passed over; else they are an error.
    skip_deleted: Bool = False
    # Only say whether it could be done, and how many records would be marked.
    validate_only: Bool = field(default=False, since=1)


class DeleteRecordsAtPartitionResult(Part):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    # How many records were marked by this request, or would be.
    deleted: Int64 = 0


class DeleteRecordsAtTopicResult(Part):
    name: String = ""
    partitions: list[DeleteRecordsAtPartitionResult] = EMPTY


class DeleteRecordsAtResponse(
    Message, api_key=ApiKey.DELETE_RECORDS_AT, versions=(0, 1), flexible_since=0
):
    throttle_time_ms: Int32 = 0
    topics: list[DeleteRecordsAtTopicResult] = EMPTY
