"""EndTxn: a producer commits or aborts its transaction.

- The answer comes when the decision is stored; nothing can change the outcome then. Markers follow,
  and until all of them are written a new transaction of the same id is told CONCURRENT_TRANSACTIONS.
- v0–v4: committing again what is committed (or aborting what is aborted) succeeds.
- v5, the second transaction protocol: each end takes the next epoch, which the answer tells, or a new
  producer id when the epochs are used up. A repeated request (with the epoch before) gets the same
  answer again. A producer that is not sure whether it has begun a transaction may abort it.

Versions:
  v2  a fenced producer is told PRODUCER_FENCED, before that INVALID_PRODUCER_EPOCH
  v3  flexible
  v4  TRANSACTION_ABORTABLE
  v5  the second transaction protocol
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.coordinator.shard import Effects, Instant, Ticket
from ottla.coordinator.transactions.takeover import PRODUCER_ID_WANTED
from ottla.coordinator.transactions.transaction import NO_PRODUCER, NOBODY, Identity
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.message import Message
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.server.api import Outcome, Request, handles

if TYPE_CHECKING:
    from ottla.coordinator.transactions.shard import TransactionShard

_FIRST_WITH_FENCED = 2
_FIRST_OF_SECOND_PROTOCOL = 5


@handles(EndTxnRequest, versions=(0, 5))
def end_txn(request: Request[EndTxnRequest]) -> Outcome:
    transactional_id = request.message.transactional_id
    if not transactional_id:
        return EndTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
    request.connection.activity.transactional_id = transactional_id
    answer = _submit(request, NO_PRODUCER)
    return _with_new_id(request) if answer is PRODUCER_ID_WANTED else answer


async def _with_new_id(request: Request[EndTxnRequest]) -> Message:
    try:
        new_id = await request.broker.producer_ids.next()
    except ProtocolError as error:
        return EndTxnResponse(error_code=error.code)
    answer = _submit(request, new_id)
    return answer if isinstance(answer, Message) else await answer


def _submit(request: Request[EndTxnRequest], new_id: int) -> Outcome:
    message = request.message
    version = request.version

    def answer(code: ErrorCode, holder: Identity = NOBODY, _: Identity = NOBODY, /) -> Message:
        if code is ErrorCode.PRODUCER_FENCED and version < _FIRST_WITH_FENCED:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return EndTxnResponse(
            error_code=code, producer_id=holder.producer_id, producer_epoch=holder.epoch
        )

    def call(shard: TransactionShard, ticket: Ticket, now: Instant) -> Effects:
        return shard.end(
            ticket,
            message.transactional_id,
            Identity(message.producer_id, message.producer_epoch),
            message.committed,
            2 if version >= _FIRST_OF_SECOND_PROTOCOL else 0,
            answer,
            now,
            new_id,
        )

    return request.broker.transactions.submit(message.transactional_id, call, answer)
