"""InitProducerId: an identity for an idempotent or transactional producer.

- Ids come from blocks that the metadata store hands out, so none is ever given twice.
- Without a transactional id a producer simply gets a new identity, also when it had a gap and asks
  again with the old one.
- With a transactional id it gets the next epoch, which fences every earlier producer of that id. A
  transaction that an earlier one left open is aborted first; meanwhile the answer is
  CONCURRENT_TRANSACTIONS, which clients repeat.
- A producer that names its current id and epoch keeps its claim: it is refused if another one came
  in between, and a repeated request gets the same answer again.
- Two-phase commit (`transaction.two.phase.commit.enable`): the transactions of such a producer have
  no timeout. One that is prepared can be kept over a restart of its producer: the answer names the
  open transaction, and the new identity may end it.

Versions:
  v2  flexible
  v3  the producer's current id and epoch
  v4  a fenced producer is told PRODUCER_FENCED, before that INVALID_PRODUCER_EPOCH
  v5  TRANSACTION_ABORTABLE
  v6  two-phase commit
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.coordinator.shard import Effects, Instant, Ticket
from ottla.coordinator.transactions.takeover import PRODUCER_ID_WANTED, Takeover
from ottla.coordinator.transactions.transaction import NO_PRODUCER, NOBODY, Identity
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.message import Message
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.server.api import Outcome, Request, handles

if TYPE_CHECKING:
    from ottla.coordinator.transactions.shard import TransactionShard

_FIRST_WITH_FENCED = 4


@handles(InitProducerIdRequest, versions=(0, 6))
def init_producer_id(request: Request[InitProducerIdRequest]) -> Outcome:
    message = request.message
    if message.transactional_id == "" or (message.producer_id < 0) != (message.producer_epoch < 0):
        return _refused(ErrorCode.INVALID_REQUEST)
    request.connection.activity.transactional_id = message.transactional_id
    if message.transactional_id is None:
        return _idempotent(request)
    answer = _submit(request, message.transactional_id, NO_PRODUCER)
    if answer is PRODUCER_ID_WANTED:
        return _with_new_id(request, message.transactional_id)
    return answer


async def _idempotent(request: Request[InitProducerIdRequest]) -> Message:
    try:
        producer_id = await request.broker.producer_ids.next()
    except ProtocolError as error:
        return _refused(error.code)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


async def _with_new_id(request: Request[InitProducerIdRequest], transactional_id: str) -> Message:
    try:
        new_id = await request.broker.producer_ids.next()
    except ProtocolError as error:
        return _refused(error.code)
    answer = _submit(request, transactional_id, new_id)
    return answer if isinstance(answer, Message) else await answer


def _submit(request: Request[InitProducerIdRequest], transactional_id: str, new_id: int) -> Outcome:
    message = request.message
    takeover = Takeover(
        transactional_id,
        message.transaction_timeout_ms,
        Identity(message.producer_id, message.producer_epoch)
        if message.producer_id >= 0
        else NOBODY,
        message.enable2_pc,
        message.keep_prepared_txn,
    )
    version = request.version

    def answer(
        code: ErrorCode, holder: Identity = NOBODY, ongoing: Identity = NOBODY, /
    ) -> Message:
        if code is ErrorCode.PRODUCER_FENCED and version < _FIRST_WITH_FENCED:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return InitProducerIdResponse(
            error_code=code,
            producer_id=holder.producer_id,
            producer_epoch=holder.epoch,
            ongoing_txn_producer_id=ongoing.producer_id,
            ongoing_txn_producer_epoch=ongoing.epoch,
        )

    def call(shard: TransactionShard, ticket: Ticket, now: Instant) -> Effects:
        return shard.init_producer(ticket, takeover, answer, now, new_id)

    return request.broker.transactions.submit(transactional_id, call, answer)


def _refused(code: ErrorCode) -> Message:
    return InitProducerIdResponse(error_code=code, producer_epoch=-1)
