"""ListTransactions: the transactional ids that this broker coordinates.

- Filters by state, producer id, age and a pattern of the id; each that is given has to fit.
- States that nobody knows are named in the answer and fit nothing.
- Patterns are RE2's (one that backtracks could hang the broker), and match the whole id.

Versions:
  v1  a least age in milliseconds
  v2  a pattern
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.coordinator.shard import Instant
from ottla.coordinator.transactions.states import BY_NAME
from ottla.coordinator.transactions.transaction import Transaction
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from ottla.server.api import Outcome, Request, handles
from ottla.server.turns import Steps, distinct

if TYPE_CHECKING:
    from ottla.coordinator.transactions.shard import TransactionShard


@handles(ListTransactionsRequest, versions=(0, 2))
def list_transactions(request: Request[ListTransactionsRequest]) -> Steps[Outcome]:
    message = request.message
    names = yield from distinct(message.state_filters)
    states = {BY_NAME[name] for name in names if name in BY_NAME}
    producers = yield from distinct(message.producer_id_filters)
    duration = message.duration_filter
    try:
        matches = _matcher(message.transactional_id_pattern)
    except ProtocolError as error:
        return ListTransactionsResponse(error_code=error.code)

    def fits(transaction: Transaction, now: Instant) -> bool:
        return (
            (not producers or transaction.producer_id in producers)
            and (not message.state_filters or transaction.state in states)
            and (duration < 0 or now.wall - transaction.started > duration)
            and matches(transaction.transactional_id)
        )

    def question(shard: TransactionShard, now: Instant) -> list[TransactionState]:
        return [
            TransactionState(
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                transaction_state=each.state.shown,
            )
            for each in shard.transactions.values()
            if fits(each, now) and shard.describe(each.transactional_id) is not None
        ]

    def respond(found: list[list[TransactionState]]) -> ListTransactionsResponse:
        return ListTransactionsResponse(
            unknown_state_filters=[name for name in names if name not in BY_NAME],
            transaction_states=[state for of_shard in found for state in of_shard],
        )

    return (
        yield from request.broker.transactions.ask_all(
            question, respond, lambda code: ListTransactionsResponse(error_code=code)
        )
    )


def _matcher(pattern: str | None) -> Callable[[str], bool]:
    if not pattern:
        return lambda _: True
    # Imported on first use: few brokers are ever asked with a pattern.
    import re2

    try:
        compiled = re2.compile(pattern)
    except re2.error:
        raise ProtocolError(ErrorCode.INVALID_REGULAR_EXPRESSION) from None
    return lambda transactional_id: compiled.fullmatch(transactional_id) is not None
