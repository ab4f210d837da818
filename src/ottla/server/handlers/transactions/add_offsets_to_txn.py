"""AddOffsetsToTxn: make a group's offsets part of a transaction.

- The offsets of a group live in one partition of `__consumer_offsets`; that partition is added.
- With the second transaction protocol (TxnOffsetCommit v5) nobody needs it any more.

Versions:
  v2  a fenced producer is told PRODUCER_FENCED, before that INVALID_PRODUCER_EPOCH
  v3  flexible
  v4  TRANSACTION_ABORTABLE
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.names import CONSUMER_OFFSETS
from ottla.coordinator.shard import Effects, Instant, Ticket
from ottla.coordinator.transactions.transaction import Identity
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.message import Message
from ottla.protocol.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from ottla.server.api import Outcome, Request, handles

if TYPE_CHECKING:
    from ottla.coordinator.transactions.shard import TransactionShard

_FIRST_WITH_FENCED = 2


@handles(AddOffsetsToTxnRequest, versions=(0, 4))
def add_offsets_to_txn(request: Request[AddOffsetsToTxnRequest]) -> Outcome:
    if not request.message.transactional_id:
        return AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
    index = request.broker.groups.partition_for(request.message.group_id)
    return _first_of_all(request) if index is None else _submit(request, index)


async def _first_of_all(request: Request[AddOffsetsToTxnRequest]) -> Message:
    """Creates the offsets topic first, where there was never a group."""
    try:
        await request.broker.internal_topic(CONSUMER_OFFSETS)
    except ProtocolError as error:
        return AddOffsetsToTxnResponse(error_code=error.code)
    index = request.broker.groups.partition_for(request.message.group_id)
    if index is None:
        return AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    answer = _submit(request, index)
    return answer if isinstance(answer, Message) else await answer


def _submit(request: Request[AddOffsetsToTxnRequest], index: int) -> Outcome:
    message = request.message
    version = request.version

    def answer(code: ErrorCode) -> Message:
        if code is ErrorCode.PRODUCER_FENCED and version < _FIRST_WITH_FENCED:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return AddOffsetsToTxnResponse(error_code=code)

    def call(shard: TransactionShard, ticket: Ticket, now: Instant) -> Effects:
        return shard.add_partitions(
            ticket,
            message.transactional_id,
            Identity(message.producer_id, message.producer_epoch),
            [(CONSUMER_OFFSETS, index)],
            0,
            answer,
            now,
        )

    return request.broker.transactions.submit(message.transactional_id, call, answer)
