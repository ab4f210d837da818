"""OffsetForLeaderEpoch: where the records of a leader epoch end."""

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
    field,
)


class OffsetForLeaderPartition(Part):
    partition: Int32 = 0
    current_leader_epoch: Int32 = field(default=-1, since=2, ignorable=True)
    leader_epoch: Int32 = 0


class OffsetForLeaderTopic(Part):
    topic: String = ""
    partitions: list[OffsetForLeaderPartition] = EMPTY


class OffsetForLeaderEpochRequest(
    Message, api_key=ApiKey.OFFSET_FOR_LEADER_EPOCH, versions=(0, 4), flexible_since=4
):
    replica_id: Int32 = field(default=-2, since=3, ignorable=True)
    topics: list[OffsetForLeaderTopic] = EMPTY


class EpochEndOffset(Part):
    error_code: Int16 = 0
    partition: Int32 = 0
    leader_epoch: Int32 = field(default=-1, since=1, ignorable=True)
    end_offset: Int64 = -1


class OffsetForLeaderTopicResult(Part):
    topic: String = ""
    partitions: list[EpochEndOffset] = EMPTY


class OffsetForLeaderEpochResponse(
    Message, api_key=ApiKey.OFFSET_FOR_LEADER_EPOCH, versions=(0, 4), flexible_since=4
):
    throttle_time_ms: Int32 = field(default=0, since=2, ignorable=True)
    topics: list[OffsetForLeaderTopicResult] = EMPTY
