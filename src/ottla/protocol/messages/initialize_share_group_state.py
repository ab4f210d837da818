"""InitializeShareGroupState: begin the state of a share partition."""

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
)


class PartitionData(Part):
    partition: Int32 = 0
    state_epoch: Int32 = 0
    start_offset: Int64 = 0


class InitializeStateData(Part):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = EMPTY


class InitializeShareGroupStateRequest(
    Message, api_key=ApiKey.INITIALIZE_SHARE_GROUP_STATE, versions=(0, 0), flexible_since=0
):
    group_id: String = ""
    topics: list[InitializeStateData] = EMPTY


class PartitionResult(Part):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class InitializeStateResult(Part):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionResult] = EMPTY


class InitializeShareGroupStateResponse(
    Message, api_key=ApiKey.INITIALIZE_SHARE_GROUP_STATE, versions=(0, 0), flexible_since=0
):
    results: list[InitializeStateResult] = EMPTY
