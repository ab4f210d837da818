"""DeleteRecords: move a partition's start forward."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Int16,
    Int32,
    Int64,
    Message,
    Part,
    String,
)


class DeleteRecordsPartition(Part):
    partition_index: Int32 = 0
    offset: Int64 = 0


class DeleteRecordsTopic(Part):
    name: String = ""
    partitions: list[DeleteRecordsPartition] = EMPTY


class DeleteRecordsRequest(
    Message, api_key=ApiKey.DELETE_RECORDS, versions=(0, 2), flexible_since=2
):
    topics: list[DeleteRecordsTopic] = EMPTY
    timeout_ms: Int32 = 0


class DeleteRecordsPartitionResult(Part):
    partition_index: Int32 = 0
    low_watermark: Int64 = 0
    error_code: Int16 = 0


class DeleteRecordsTopicResult(Part):
    name: String = ""
    partitions: list[DeleteRecordsPartitionResult] = EMPTY


class DeleteRecordsResponse(
    Message, api_key=ApiKey.DELETE_RECORDS, versions=(0, 2), flexible_since=2
):
    throttle_time_ms: Int32 = 0
    topics: list[DeleteRecordsTopicResult] = EMPTY
