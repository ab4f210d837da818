"""Key and value of __transaction_state."""

from __future__ import annotations

from ottla.protocol.message import (
    EMPTY,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Part,
    String,
    field,
)


class TransactionLogKey(Message, versions=(0, 0)):
    transactional_id: String = ""


class PartitionsSchema(Part):
    topic: String = ""
    partition_ids: list[Int32] = EMPTY


class TransactionLogValue(Message, versions=(0, 1), flexible_since=1):
    producer_id: Int64 = 0
    previous_producer_id: Int64 = field(default=-1, since=1, tag=0)
    next_producer_id: Int64 = field(default=-1, since=1, tag=1)
    producer_epoch: Int16 = 0
    next_producer_epoch: Int16 = field(default=-1, since=1, tag=3)
    transaction_timeout_ms: Int32 = 0
    transaction_status: Int8 = 0
    transaction_partitions: list[PartitionsSchema] | None = EMPTY
    transaction_last_update_timestamp_ms: Int64 = 0
    transaction_start_timestamp_ms: Int64 = 0
    client_transaction_version: Int16 = field(default=0, since=1, tag=2)
