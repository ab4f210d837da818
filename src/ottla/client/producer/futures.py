"""Futures for single records in programs that block: one condition for a whole batch.

A concurrent.futures.Future makes a lock, a condition and two lists of its own, and so much work for the
garbage collector, that it costs more than all the rest of sending a record. The records of a batch are
acknowledged together, so their futures share the batch's condition, and make the lists only if somebody
adds a callback or waits for several futures.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED, PENDING
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.client.producer.batches import Delivery

    RecordFutureBase = Future[Delivery]
else:
    RecordFutureBase = Future


class RecordFuture(RecordFutureBase):
    """A future as the standard library has it, with less in it.

    The names with underscores are those that the base class works with. A record that is not in a batch
    yet has no condition; nobody has seen its future then.
    """

    __slots__ = ("_callbacks", "_condition", "_exception", "_result", "_state", "_waiting")

    def __init__(self) -> None:  # without the base class's own
        self._state = PENDING
        self._result = None
        self._exception = None
        self._waiting: list[Any] | None = None
        self._callbacks: list[Any] | None = None

    def join(self, condition: threading.Condition) -> None:
        """Has the future settled under this condition, which those who wait for it share."""
        self._condition = condition

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        if self._waiting is None:
            self._waiting = []
        return self._waiting

    @property
    def _done_callbacks(self) -> list[Any]:
        if self._callbacks is None:
            self._callbacks = []
        return self._callbacks


def settle(
    condition: threading.Condition,
    outcomes: Iterable[tuple[RecordFuture, Delivery | Exception]],
) -> None:
    """Give all futures of a batch their outcomes, and wake whoever waits for any of them."""
    watched = []
    with condition:
        for future, outcome in outcomes:
            if future._state in (CANCELLED, CANCELLED_AND_NOTIFIED):
                continue  # the record is written nevertheless
            failed = isinstance(outcome, Exception)
            if isinstance(outcome, Exception):
                future._exception = outcome
            else:
                future._result = outcome
            future._state = FINISHED
            for waiter in future._waiting or ():
                (waiter.add_exception if failed else waiter.add_result)(future)
            if future._callbacks:
                watched.append(future)
        condition.notify_all()
    for future in watched:
        future._invoke_callbacks()  # type: ignore[attr-defined]
