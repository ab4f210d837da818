"""AddPartitionsToTxn: make partitions part of a transaction, or ask if they are."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Bool,
    Int16,
    Int32,
    Int64,
    Message,
    Part,
    String,
    field,
)


class AddPartitionsToTxnTopic(Part):
    name: String = ""
    partitions: list[Int32] = EMPTY


class AddPartitionsToTxnTransaction(Part):
    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    verify_only: Bool = False
    topics: list[AddPartitionsToTxnTopic] = EMPTY


class AddPartitionsToTxnRequest(
    Message, api_key=ApiKey.ADD_PARTITIONS_TO_TXN, versions=(0, 5), flexible_since=3
):
    transactions: list[AddPartitionsToTxnTransaction] = field(default=EMPTY, since=4)
    v3_and_below_transactional_id: String = field(default="", until=3)
    v3_and_below_producer_id: Int64 = field(default=0, until=3)
    v3_and_below_producer_epoch: Int16 = field(default=0, until=3)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field(default=EMPTY, until=3)


class AddPartitionsToTxnPartitionResult(Part):
    partition_index: Int32 = 0
    partition_error_code: Int16 = 0


class AddPartitionsToTxnTopicResult(Part):
    name: String = ""
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = EMPTY


class AddPartitionsToTxnResult(Part):
    transactional_id: String = ""
    topic_results: list[AddPartitionsToTxnTopicResult] = EMPTY


class AddPartitionsToTxnResponse(
    Message, api_key=ApiKey.ADD_PARTITIONS_TO_TXN, versions=(0, 5), flexible_since=3
):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = field(default=0, since=4, ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = field(default=EMPTY, since=4)
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field(
        default=EMPTY, until=3
    )
