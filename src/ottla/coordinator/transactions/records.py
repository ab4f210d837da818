"""The records of `__transaction_state`.

Key and value begin with two bytes: in a key they tell the kind of record, of which there is one; in a
value its version. Version 1 can hold what the second transaction protocol and two-phase commit need;
version 0 is written as long as the cluster has not finalized the feature transaction.version.
The next identity of a transaction that changed hands is stored in the fields that Kafka has for it.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from ottla.coordinator.transactions.states import State
from ottla.coordinator.transactions.transaction import (
    NO_EPOCH,
    TopicPartition,
    Transaction,
)
from ottla.protocol.message import MalformedMessage
from ottla.protocol.records.transaction_log import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)

# The one kind of key.
TRANSACTION: Final = 0

_SHORT = Struct(">h")
_FIRST_FLEXIBLE = 1


def key_of(transactional_id: str) -> bytes:
    return _SHORT.pack(TRANSACTION) + TransactionLogKey(transactional_id=transactional_id).encode(0)


def read_key(key: bytes) -> str | None:
    """The transactional id; None if the record is of a kind that this version does not know."""
    if len(key) < _SHORT.size:
        raise MalformedMessage("the key of a record is too short")
    if _SHORT.unpack_from(key)[0] != TRANSACTION:
        return None
    return TransactionLogKey.decode(key, _SHORT.size, 0)[0].transactional_id


def value_of(transaction: Transaction, level: int) -> bytes:
    """The value of a transaction's record; `level` is that of the feature transaction.version."""
    version = _FIRST_FLEXIBLE if level >= 1 else 0
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=_topics(transaction),
        transaction_last_update_timestamp_ms=transaction.updated,
        transaction_start_timestamp_ms=transaction.started,
    )
    if version >= _FIRST_FLEXIBLE:
        value.previous_producer_id = transaction.former_id
        value.next_producer_id = transaction.next_producer_id
        value.next_producer_epoch = transaction.next_epoch
        value.client_transaction_version = transaction.version
    return _SHORT.pack(version) + value.encode(version)


def _topics(transaction: Transaction) -> list[PartitionsSchema] | None:
    if transaction.state is State.EMPTY:
        return None
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(transaction.partitions):
        topics.setdefault(topic, []).append(index)
    return [
        PartitionsSchema(topic=topic, partition_ids=indexes) for topic, indexes in topics.items()
    ]


def read_value(transactional_id: str, value: bytes) -> Transaction:
    """MalformedMessage if it is damaged or of an unknown version."""
    if len(value) < _SHORT.size:
        raise MalformedMessage("the value of a record is too short")
    version = _SHORT.unpack_from(value)[0]
    if version not in (0, 1):
        raise MalformedMessage(f"a transaction's record of version {version}")
    found, _ = TransactionLogValue.decode(value, _SHORT.size, version)
    try:
        state = State(found.transaction_status)
    except ValueError:
        raise MalformedMessage(f"an unknown state {found.transaction_status}") from None
    partitions: set[TopicPartition] = set()
    for topic in found.transaction_partitions or ():
        partitions.update((topic.topic, index) for index in topic.partition_ids)
    return Transaction(
        transactional_id,
        found.producer_id,
        found.producer_epoch,
        found.transaction_timeout_ms,
        state,
        frozenset(partitions),
        started=found.transaction_start_timestamp_ms,
        updated=found.transaction_last_update_timestamp_ms,
        version=found.client_transaction_version,
        previous_producer_id=found.previous_producer_id,
        next_producer_id=found.next_producer_id,
        next_epoch=found.next_producer_epoch if found.next_producer_id >= 0 else NO_EPOCH,
    )
