"""DescribeTransactions: the state of transactional ids, from their coordinator.

- State, producer, timeout, beginning, and the partitions that are part of the transaction.
- An id that is not known is TRANSACTIONAL_ID_NOT_FOUND, an empty one INVALID_REQUEST.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.coordinator.shard import Effects, Instant, Ticket
from ottla.coordinator.transactions.transaction import Transaction
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from ottla.server.api import Request, handles
from ottla.server.turns import Turns

if TYPE_CHECKING:
    from ottla.coordinator.transactions.shard import TransactionShard


@handles(DescribeTransactionsRequest, versions=(0, 0))
async def describe_transactions(request: Request[DescribeTransactionsRequest]) -> Message:
    states: list[TransactionState] = []
    known: dict[str, TransactionState] = {}
    turns = Turns()
    for transactional_id in request.message.transactional_ids:
        await turns.pause()
        state = known.get(transactional_id)
        if state is None:
            (state,) = (await _describe(request, transactional_id)).transaction_states
            known[transactional_id] = state
        states.append(state)
    return DescribeTransactionsResponse(transaction_states=states)


async def _describe(
    request: Request[DescribeTransactionsRequest], transactional_id: str
) -> DescribeTransactionsResponse:
    def refusal(code: ErrorCode) -> Message:
        return _response(TransactionState(error_code=code, transactional_id=transactional_id))

    def call(shard: TransactionShard, ticket: Ticket, _: Instant) -> Effects:
        found = shard.describe(transactional_id)
        if found is None:
            return Effects((ticket, refusal(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)))
        return Effects((ticket, _response(_state(found))))

    if not transactional_id:
        answer = refusal(ErrorCode.INVALID_REQUEST)
    else:
        submitted = request.broker.transactions.submit(transactional_id, call, refusal)
        answer = submitted if isinstance(submitted, Message) else await submitted
    assert isinstance(answer, DescribeTransactionsResponse)
    return answer


def _response(state: TransactionState) -> Message:
    return DescribeTransactionsResponse(transaction_states=[state])


def _state(transaction: Transaction) -> TransactionState:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(transaction.partitions):
        topics.setdefault(topic, []).append(index)
    return TransactionState(
        transactional_id=transaction.transactional_id,
        transaction_state=transaction.state.shown,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.started,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        topics=[TopicData(topic=topic, partitions=indexes) for topic, indexes in topics.items()],
    )
