"""DeleteShareGroupOffsets: forget where a share group stands."""

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


class DeleteShareGroupOffsetsRequestTopic(Part):
    topic_name: String = ""


class DeleteShareGroupOffsetsRequest(
    Message, api_key=ApiKey.DELETE_SHARE_GROUP_OFFSETS, versions=(0, 0), flexible_since=0
):
    group_id: String = ""
    topics: list[DeleteShareGroupOffsetsRequestTopic] = EMPTY


class DeleteShareGroupOffsetsResponseTopic(Part):
    topic_name: String = ""
    topic_id: Uuid = ZERO_UUID
    error_code: Int16 = 0
    error_message: String | None = None


class DeleteShareGroupOffsetsResponse(
    Message, api_key=ApiKey.DELETE_SHARE_GROUP_OFFSETS, versions=(0, 0), flexible_since=0
):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    responses: list[DeleteShareGroupOffsetsResponseTopic] = EMPTY
