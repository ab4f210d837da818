"""ListTransactions: the transactional ids that a broker coordinates."""

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


class ListTransactionsRequest(
    Message, api_key=ApiKey.LIST_TRANSACTIONS, versions=(0, 2), flexible_since=0
):
    state_filters: list[String] = EMPTY
    producer_id_filters: list[Int64] = EMPTY
    duration_filter: Int64 = field(default=-1, since=1)
    transactional_id_pattern: String | None = field(default=None, since=2)


class TransactionState(Part):
    transactional_id: String = ""
    producer_id: Int64 = 0
    transaction_state: String = ""


class ListTransactionsResponse(
    Message, api_key=ApiKey.LIST_TRANSACTIONS, versions=(0, 2), flexible_since=0
):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: list[String] = EMPTY
    transaction_states: list[TransactionState] = EMPTY
