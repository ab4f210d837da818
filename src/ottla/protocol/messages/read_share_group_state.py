"""ReadShareGroupState: read the state of a share partition."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    ZERO_UUID,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Part,
    String,
    Uuid,
)


class PartitionData(Part):
    partition: Int32 = 0
    leader_epoch: Int32 = 0


class ReadStateData(Part):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = EMPTY


class ReadShareGroupStateRequest(
    Message, api_key=ApiKey.READ_SHARE_GROUP_STATE, versions=(0, 0), flexible_since=0
):
    group_id: String = ""
    topics: list[ReadStateData] = EMPTY


class StateBatch(Part):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_state: Int8 = 0
    delivery_count: Int16 = 0


class PartitionResult(Part):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    state_epoch: Int32 = 0
    start_offset: Int64 = 0
    state_batches: list[StateBatch] = EMPTY


class ReadStateResult(Part):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionResult] = EMPTY


class ReadShareGroupStateResponse(
    Message, api_key=ApiKey.READ_SHARE_GROUP_STATE, versions=(0, 0), flexible_since=0
):
    results: list[ReadStateResult] = EMPTY
