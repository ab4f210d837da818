"""EndTxn: commit or abort a transaction."""

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


class EndTxnRequest(Message, api_key=ApiKey.END_TXN, versions=(0, 5), flexible_since=3):
    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    committed: Bool = False


class EndTxnResponse(Message, api_key=ApiKey.END_TXN, versions=(0, 5), flexible_since=3):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = field(default=-1, since=5, ignorable=True)
    producer_epoch: Int16 = field(default=-1, since=5, ignorable=True)
