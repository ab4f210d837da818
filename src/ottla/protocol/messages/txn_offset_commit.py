"""TxnOffsetCommit: offsets that count once their transaction commits."""

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


class TxnOffsetCommitRequestPartition(Part):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = field(default=-1, since=2, ignorable=True)
    committed_metadata: String | None = ""


class TxnOffsetCommitRequestTopic(Part):
    name: String = ""
    partitions: list[TxnOffsetCommitRequestPartition] = EMPTY


class TxnOffsetCommitRequest(
    Message, api_key=ApiKey.TXN_OFFSET_COMMIT, versions=(0, 5), flexible_since=3
):
    transactional_id: String = ""
    group_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    generation_id: Int32 = field(default=-1, since=3)
    member_id: String = field(default="", since=3)
    group_instance_id: String | None = field(default=None, since=3)
    topics: list[TxnOffsetCommitRequestTopic] = EMPTY


class TxnOffsetCommitResponsePartition(Part):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class TxnOffsetCommitResponseTopic(Part):
    name: String = ""
    partitions: list[TxnOffsetCommitResponsePartition] = EMPTY


class TxnOffsetCommitResponse(
    Message, api_key=ApiKey.TXN_OFFSET_COMMIT, versions=(0, 5), flexible_since=3
):
    throttle_time_ms: Int32 = 0
    topics: list[TxnOffsetCommitResponseTopic] = EMPTY
