"""Who may act for a transactional id: the claims of producers, judged by their identity alone."""

from __future__ import annotations

from ottla.coordinator.transactions.states import State
from ottla.coordinator.transactions.transaction import LAST_EPOCH, Identity, Transaction
from ottla.protocol.errors import ErrorCode


def fault_of_member(transaction: Transaction | None, producer: Identity) -> ErrorCode | None:
    """Why a producer may not take part in the transaction of an id."""
    if transaction is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if transaction.changed_hands and producer == transaction.holder:
        # It has to end the transaction that it took over before it begins one of its own.
        return ErrorCode.INVALID_TXN_STATE
    if transaction.is_ending and producer == transaction.holder:
        # It knows its next identity, perhaps of another producer id, since the decision was stored.
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if producer.producer_id != transaction.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if producer.epoch != transaction.epoch:
        return ErrorCode.PRODUCER_FENCED
    return None


def may_be(expected: Identity, transaction: Transaction) -> bool:
    """Whether a producer that believes to have an identity may be the holder of the id: it has the
    current producer id, or its last epoch was used up, and it missed the new producer id."""
    return expected.producer_id == transaction.holder.producer_id or (
        expected.producer_id == transaction.former_id and expected.is_exhausted
    )


def ended_before(transaction: Transaction, producer: Identity) -> bool:
    """Whether a producer repeats the end of the transaction that led to the current epoch. (To the last
    epoch no end led, but an abort by somebody else, and nobody may go on with it.)"""
    holder = transaction.holder
    if producer.producer_id == holder.producer_id:
        return producer.epoch + 1 == holder.epoch < LAST_EPOCH
    return (
        producer.producer_id == transaction.former_id
        and producer.epoch == LAST_EPOCH - 1
        and holder.epoch == 0
    )


def fault_of_end(transaction: Transaction, producer: Identity, bumps: bool) -> ErrorCode | None:
    """Why a producer may not end a transaction, by its identity alone.

    While markers are being written, the producer may already have the epoch that follows, and end what
    it began with it (Kafka takes it for a zombie then, unless the markers are quicker).
    """
    holder = transaction.holder
    if not bumps:
        if producer.producer_id != holder.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return None if producer.epoch == holder.epoch else ErrorCode.PRODUCER_FENCED
    again = ended_before(transaction, producer)
    if producer.producer_id != holder.producer_id and not again:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    has_ended = transaction.state not in (State.ONGOING, State.EMPTY)
    valid = producer == holder or (again and has_ended)
    return None if valid else ErrorCode.PRODUCER_FENCED
