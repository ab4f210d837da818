"""ReadShareGroupStateSummary: the start of a share partition, without its batches."""

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
    Uuid,
    field,
)


class PartitionData(Part):
    partition: Int32 = 0
    leader_epoch: Int32 = 0


class ReadStateSummaryData(Part):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = EMPTY


class ReadShareGroupStateSummaryRequest(
    Message, api_key=ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, versions=(0, 1), flexible_since=0
):
    group_id: String = ""
    topics: list[ReadStateSummaryData] = EMPTY


class PartitionResult(Part):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    state_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Int32 = field(default=-1, since=1, ignorable=True)


class ReadStateSummaryResult(Part):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionResult] = EMPTY


class ReadShareGroupStateSummaryResponse(
    Message, api_key=ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, versions=(0, 1), flexible_since=0
):
    results: list[ReadStateSummaryResult] = EMPTY
