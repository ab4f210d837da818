"""Transactions as a walk over the log meets them: what was aborted goes, and a marker goes once nothing
is left of what it marked."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.record.batch import (
    ATTRIBUTES,
    BASE_OFFSET,
    LAST_OFFSET_DELTA,
    PRODUCER_ID,
    TRANSACTIONAL_BIT,
    HeaderFields,
    records,
)
from ottla.record.control import ABORT, COMMIT, control_type
from ottla.storage.index.transaction_index import AbortedTransaction


class WalkedTransactions:
    """Fed with every batch of a log, in order.

    A transaction's marker may go when no batch of it was met on the way, that is when an earlier
    pass has removed them all. `take_kept` gives the aborted transactions that still had batches: they
    make up the new transaction index.
    """

    __slots__ = ("_aborted", "_committed", "_kept", "_next", "_open")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """All aborted transactions of the range that will be walked."""
        self._aborted = sorted(aborted, key=lambda each: each.first_offset)
        self._next = 0
        # Producer id → its transaction that has begun and will be aborted, and whether a batch of it
        # was met.
        self._open: dict[int, tuple[AbortedTransaction, bool]] = {}
        # Producers with batches of a transaction that was not aborted, met since their last marker.
        self._committed: set[int] = set()
        self._kept: list[AbortedTransaction] = []

    def data(self, fields: HeaderFields) -> bool:
        """Takes note of a data batch; whether its transaction was aborted."""
        self._begin_up_to(fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA])
        if not fields[ATTRIBUTES] & TRANSACTIONAL_BIT:
            return False
        producer_id = fields[PRODUCER_ID]
        found = self._open.get(producer_id)
        if found is None:
            self._committed.add(producer_id)
            return False
        self._open[producer_id] = found[0], True
        return True

    def control(self, fields: HeaderFields, batch: memoryview) -> bool:
        """A control batch; whether it has nothing left to tell."""
        self._begin_up_to(fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA])
        for record in records(batch):
            kind = control_type(record)
            if kind == ABORT:
                transaction, seen = self._open.pop(fields[PRODUCER_ID], (None, False))
                if transaction is not None and seen:
                    self._kept.append(transaction)
                    return False
                return True
            if kind == COMMIT:
                seen = fields[PRODUCER_ID] in self._committed
                self._committed.discard(fields[PRODUCER_ID])
                return not seen
            return False  # of a kind that is not about transactions
        return True  # emptied before

    def take_kept(self) -> list[AbortedTransaction]:
        """Those whose markers were met since the last call, in the order of their markers."""
        kept, self._kept = self._kept, []
        return kept

    def _begin_up_to(self, offset: int) -> None:
        aborted = self._aborted
        while self._next < len(aborted) and aborted[self._next].first_offset <= offset:
            transaction = aborted[self._next]
            self._open.setdefault(transaction.producer_id, (transaction, False))
            self._next += 1
