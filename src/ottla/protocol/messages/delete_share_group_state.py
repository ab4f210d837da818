"""DeleteShareGroupState: drop the state of a share partition."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    ZERO_UUID,
    Int16,
    Int32,
    Message,
    Part,
    String,
    Uuid,
)


class PartitionData(Part):
    partition: Int32 = 0


class DeleteStateData(Part):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = EMPTY


class DeleteShareGroupStateRequest(
    Message, api_key=ApiKey.DELETE_SHARE_GROUP_STATE, versions=(0, 0), flexible_since=0
):
    group_id: String = ""
    topics: list[DeleteStateData] = EMPTY


class PartitionResult(Part):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class DeleteStateResult(Part):
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionResult] = EMPTY


class DeleteShareGroupStateResponse(
    Message, api_key=ApiKey.DELETE_SHARE_GROUP_STATE, versions=(0, 0), flexible_since=0
):
    results: list[DeleteStateResult] = EMPTY
