"""OffsetDelete: forget a group's offsets of some partitions."""

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


class OffsetDeleteRequestPartition(Part):
    partition_index: Int32 = 0


class OffsetDeleteRequestTopic(Part):
    name: String = ""
    partitions: list[OffsetDeleteRequestPartition] = EMPTY


class OffsetDeleteRequest(Message, api_key=ApiKey.OFFSET_DELETE, versions=(0, 0)):
    group_id: String = ""
    topics: list[OffsetDeleteRequestTopic] = EMPTY


class OffsetDeleteResponsePartition(Part):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetDeleteResponseTopic(Part):
    name: String = ""
    partitions: list[OffsetDeleteResponsePartition] = EMPTY


class OffsetDeleteResponse(Message, api_key=ApiKey.OFFSET_DELETE, versions=(0, 0)):
    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: list[OffsetDeleteResponseTopic] = EMPTY
