"""AddPartitionsToTxn: make partitions part of a transaction, or ask if they are.

- The first partitions begin the transaction; its timeout counts from then.
- All partitions of a transaction are added or none: one that does not exist is
  UNKNOWN_TOPIC_OR_PARTITION, the others are then OPERATION_NOT_ATTEMPTED.
- From v4 on the request is for brokers: several transactions at once, each to be added to or only
  verified (`verify_only`). A partition that is not part of the transaction is then
  TRANSACTION_ABORTABLE.

Versions:
  v2  a fenced producer is told PRODUCER_FENCED, before that INVALID_PRODUCER_EPOCH
  v3  flexible
  v4  several transactions, verification
  v5  TRANSACTION_ABORTABLE
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.coordinator.shard import Effects, Instant, Ticket
from ottla.coordinator.transactions.transaction import Identity, TopicPartition
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTransaction,
)
from ottla.server.api import Outcome, Request, handles
from ottla.server.coordination.verification import Verdict, result_in_steps, result_of
from ottla.server.turns import Steps, Turns, in_turns

if TYPE_CHECKING:
    from ottla.coordinator.transactions.shard import TransactionShard

_FIRST_WITH_FENCED = 2
_FIRST_OF_BROKERS = 4
_SECOND_PROTOCOL = 2


@handles(AddPartitionsToTxnRequest, versions=(0, 5))
def add_partitions_to_txn(request: Request[AddPartitionsToTxnRequest]) -> Steps[Outcome]:
    message = request.message
    if request.version >= _FIRST_OF_BROKERS:
        if len(message.transactions) == 1:
            return (yield from _submit(request, message.transactions[0]))
        return _several(request)
    return (
        yield from _submit(
            request,
            AddPartitionsToTxnTransaction(
                transactional_id=message.v3_and_below_transactional_id,
                producer_id=message.v3_and_below_producer_id,
                producer_epoch=message.v3_and_below_producer_epoch,
                topics=message.v3_and_below_topics,
            ),
        )
    )


async def _several(request: Request[AddPartitionsToTxnRequest]) -> Message:
    results: list[AddPartitionsToTxnResult] = []
    turns = Turns()
    for transaction in request.message.transactions:
        await turns.pause()
        answer = await in_turns(_submit(request, transaction))
        response = answer if isinstance(answer, Message) else await answer
        assert isinstance(response, AddPartitionsToTxnResponse)
        results += response.results_by_transaction
    return AddPartitionsToTxnResponse(results_by_transaction=results)


def _submit(
    request: Request[AddPartitionsToTxnRequest], transaction: AddPartitionsToTxnTransaction
) -> Steps[Outcome]:
    """One transaction, answered by a response of its own."""
    broker = request.broker
    version = request.version
    transactional_id = transaction.transactional_id
    wanted: dict[TopicPartition, None] = {}
    has_unknown = False
    for topic in transaction.topics:
        for index in topic.partitions:
            wanted[topic.name, index] = None
            has_unknown = has_unknown or broker.partitions.get(topic.name, index) is None
            yield
        yield

    def answer(codes: Verdict) -> Message:
        return respond(result_of(transactional_id, codes))

    def respond(result: AddPartitionsToTxnResult) -> Message:
        if version >= _FIRST_OF_BROKERS:
            return AddPartitionsToTxnResponse(results_by_transaction=[result])
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=result.topic_results)

    def refusal(code: ErrorCode) -> Message:
        if code is ErrorCode.PRODUCER_FENCED and version < _FIRST_WITH_FENCED:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return answer(dict.fromkeys(partitions, code))

    if not transactional_id or has_unknown:
        # None of them is added, and there may be any number of them.
        codes: dict[TopicPartition, ErrorCode] = {}
        for each in wanted:
            if not transactional_id:
                codes[each] = ErrorCode.INVALID_REQUEST
            elif broker.partitions.get(*each) is None:
                codes[each] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                codes[each] = ErrorCode.OPERATION_NOT_ATTEMPTED
            yield
        return respond((yield from result_in_steps(transactional_id, codes)))
    partitions = list(wanted)
    producer = Identity(transaction.producer_id, transaction.producer_epoch)

    def call(shard: TransactionShard, ticket: Ticket, now: Instant) -> Effects:
        if transaction.verify_only:
            return shard.verify_partitions(ticket, transactional_id, producer, partitions, answer)
        protocol = _SECOND_PROTOCOL if version >= _FIRST_OF_BROKERS else 0
        return shard.add_partitions(
            ticket, transactional_id, producer, partitions, protocol, refusal, now
        )

    return broker.transactions.submit(transactional_id, call, refusal)
