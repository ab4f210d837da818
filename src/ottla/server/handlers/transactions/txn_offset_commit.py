"""TxnOffsetCommit: offsets that count once their transaction commits.

- The group's partition of `__consumer_offsets` has to be part of the transaction, as with a batch of
  records: the transaction's coordinator is asked before the first offsets are written. They are appended
  in the turn of the loop in which it was answered, or in which the transaction was found open, and never
  through a lane; so no marker can come in between, and offsets need not look for one once more.
- The group decides about member and generation, if the producer tells them.

Versions:
  v2  leader epochs; a coordinator that is loading says so (before that COORDINATOR_NOT_AVAILABLE)
  v3  flexible; member, instance and generation
  v4  TRANSACTION_ABORTABLE
  v5  the second transaction protocol: the partition is added to the transaction by this request
"""

from __future__ import annotations

import asyncio
from functools import partial

from ottla.cluster.names import CONSUMER_OFFSETS
from ottla.coordinator.transactions.transaction import Identity
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from ottla.server.api import Answer, Outcome, Request, handles
from ottla.server.coordination.reduced_topics import ReducedTopics, completed, is_long
from ottla.server.coordination.verification import ProducerProtocol, Verdict, is_open, verify
from ottla.server.turns import Steps
from ottla.storage.errors import StorageError

_FIRST_WITH_LOADING = 2


@handles(TxnOffsetCommitRequest, versions=(0, 5))
def txn_offset_commit(request: Request[TxnOffsetCommitRequest]) -> Answer:
    message = request.message
    return _commit_many(request) if is_long(message.topics) else _commit(request, message)


def _commit_many(request: Request[TxnOffsetCommitRequest]) -> Steps[Outcome]:
    by_name = request.broker.partitions.by_name
    whole = request.message
    reduced = ReducedTopics(
        whole.topics, lambda topic: (topic.name, len(by_name.get(topic.name, ())))
    )
    yield from reduced.reduce()
    message = TxnOffsetCommitRequest(
        transactional_id=whole.transactional_id,
        group_id=whole.group_id,
        producer_id=whole.producer_id,
        producer_epoch=whole.producer_epoch,
        generation_id=whole.generation_id,
        member_id=whole.member_id,
        group_instance_id=whole.group_instance_id,
        topics=reduced.topics(
            lambda topic, partitions: TxnOffsetCommitRequestTopic(
                name=topic.name, partitions=partitions
            )
        ),
    )
    return (yield from completed(_commit(request, message), partial(_whole, reduced)))


def _whole(reduced: ReducedTopics[TxnOffsetCommitRequestTopic], answer: Message) -> Steps[Message]:
    assert isinstance(answer, TxnOffsetCommitResponse)
    topics = yield from reduced.whole(
        answer.topics,
        lambda asked: TxnOffsetCommitResponseTopic(name=asked.name),
        TxnOffsetCommitResponsePartition,
    )
    return TxnOffsetCommitResponse(topics=topics)


def _commit(
    request: Request[TxnOffsetCommitRequest], message: TxnOffsetCommitRequest
) -> Message | asyncio.Future[Message]:
    broker, version = request.broker, request.version
    index = broker.groups.partition_for(message.group_id)
    target = None if index is None else broker.partitions.get(CONSUMER_OFFSETS, index)
    if target is None:
        return _refusal(message, version, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if target.leader != broker.id:
        return _refusal(message, version, ErrorCode.NOT_COORDINATOR)
    producer = Identity(message.producer_id, message.producer_epoch)
    try:
        if is_open(target, producer):
            return _submit(request, message)
    except StorageError:
        return _refusal(message, version, ErrorCode.NOT_COORDINATOR)
    return _verified(request, message, (CONSUMER_OFFSETS, target.index), producer)


def _verified(
    request: Request[TxnOffsetCommitRequest],
    message: TxnOffsetCommitRequest,
    partition: tuple[str, int],
    producer: Identity,
) -> Message | asyncio.Future[Message]:
    """Asks the transaction's coordinator before the offsets are committed."""
    later: asyncio.Future[Message] = request.broker.loop.create_future()

    def then(verdict: Verdict) -> None:
        code = verdict[partition]
        if code is ErrorCode.NOT_ENOUGH_REPLICAS:
            # What the coordinator of a group says when it cannot write.
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        answer = _refusal(message, request.version, code) if code else _submit(request, message)
        if isinstance(answer, Message):
            later.set_result(answer)
        else:
            answer.add_done_callback(lambda done: later.set_result(done.result()))

    client = ProducerProtocol.of_offset_commit(request.version)
    verify(request.broker, message.transactional_id, producer, [partition], client, then)
    return later.result() if later.done() else later


def _submit(
    request: Request[TxnOffsetCommitRequest], message: TxnOffsetCommitRequest
) -> Message | asyncio.Future[Message]:
    return request.broker.groups.submit(
        message.group_id,
        lambda shard, ticket, now: shard.txn_offset_commit(ticket, message, now),
        lambda code: _refusal(message, request.version, code),
    )


def _refusal(message: TxnOffsetCommitRequest, version: int, code: ErrorCode) -> Message:
    if version < _FIRST_WITH_LOADING and code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=each.partition_index, error_code=code
                    )
                    for each in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )
