"""InitProducerId: get a producer id and epoch, and fence older producers."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    Bool,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    field,
)


class InitProducerIdRequest(
    Message, api_key=ApiKey.INIT_PRODUCER_ID, versions=(0, 6), flexible_since=2
):
    transactional_id: String | None = ""
    transaction_timeout_ms: Int32 = 0
    producer_id: Int64 = field(default=-1, since=3)
    producer_epoch: Int16 = field(default=-1, since=3)
    enable2_pc: Bool = field(default=False, since=6)
    keep_prepared_txn: Bool = field(default=False, since=6)


class InitProducerIdResponse(
    Message, api_key=ApiKey.INIT_PRODUCER_ID, versions=(0, 6), flexible_since=2
):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0
    ongoing_txn_producer_id: Int64 = field(default=-1, since=6)
    ongoing_txn_producer_epoch: Int16 = field(default=-1, since=6)
