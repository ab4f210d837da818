"""AddOffsetsToTxn: make a group's offsets part of a transaction."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    Int16,
    Int32,
    Int64,
    Message,
    String,
)


class AddOffsetsToTxnRequest(
    Message, api_key=ApiKey.ADD_OFFSETS_TO_TXN, versions=(0, 4), flexible_since=3
):
    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    group_id: String = ""


class AddOffsetsToTxnResponse(
    Message, api_key=ApiKey.ADD_OFFSETS_TO_TXN, versions=(0, 4), flexible_since=3
):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
