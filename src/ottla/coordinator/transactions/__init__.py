"""Transactions: the state machine behind a partition of `__transaction_state`."""

from ottla.coordinator.transactions.ending import Ending, WriteMarkers
from ottla.coordinator.transactions.settings import TransactionSettings
from ottla.coordinator.transactions.shard import TransactionShard
from ottla.coordinator.transactions.transaction import Identity, Transaction

__all__ = [
    "Ending",
    "Identity",
    "Transaction",
    "TransactionSettings",
    "TransactionShard",
    "WriteMarkers",
]
