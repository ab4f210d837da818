"""DescribeTransactions: state of transactional ids."""

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
)


class DescribeTransactionsRequest(
    Message, api_key=ApiKey.DESCRIBE_TRANSACTIONS, versions=(0, 0), flexible_since=0
):
    transactional_ids: list[String] = EMPTY


class TopicData(Part):
    topic: String = ""
    partitions: list[Int32] = EMPTY


class TransactionState(Part):
    error_code: Int16 = 0
    transactional_id: String = ""
    transaction_state: String = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = 0
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    topics: list[TopicData] = EMPTY


class DescribeTransactionsResponse(
    Message, api_key=ApiKey.DESCRIBE_TRANSACTIONS, versions=(0, 0), flexible_since=0
):
    throttle_time_ms: Int32 = 0
    transaction_states: list[TransactionState] = EMPTY
