"""TxnOffsetCommit: offsets that count once their transaction commits.

- The group's partition of `__consumer_offsets` has to be part of the transaction, as with a batch of
  records: the transaction's coordinator is asked before the first offsets are written.
- The group decides about member and generation, if the producer tells them.

Versions:
  v2  leader epochs; a coordinator that is loading says so (before that COORDINATOR_NOT_AVAILABLE)
  v3  flexible; member, instance and generation
  v4  TRANSACTION_ABORTABLE
  v5  the second transaction protocol: the partition is added to the transaction by this request
"""

from __future__ import annotations

import asyncio

from ottla.cluster.names import CONSUMER_OFFSETS
from ottla.coordinator.transactions.transaction import Identity
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from ottla.server.api import Outcome, Request, handles
from ottla.server.coordination.verification import Client, Verdict, is_open, verify
from ottla.storage.errors import StorageError

_FIRST_WITH_LOADING = 2


@handles(TxnOffsetCommitRequest, versions=(0, 5))
def txn_offset_commit(request: Request[TxnOffsetCommitRequest]) -> Outcome:
    message, broker = request.message, request.broker
    index = broker.groups.partition_for(message.group_id)
    target = None if index is None else broker.partitions.get(CONSUMER_OFFSETS, index)
    if target is None:
        return _refusal(request, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if target.leader != broker.id:
        return _refusal(request, ErrorCode.NOT_COORDINATOR)
    producer = Identity(message.producer_id, message.producer_epoch)
    try:
        if is_open(target, producer):
            return _commit(request)
    except StorageError:
        return _refusal(request, ErrorCode.NOT_COORDINATOR)
    return _verified(request, (CONSUMER_OFFSETS, target.index), producer)


def _verified(
    request: Request[TxnOffsetCommitRequest], partition: tuple[str, int], producer: Identity
) -> Outcome:
    """Asks the transaction's coordinator before the offsets are committed."""
    later: asyncio.Future[Message] = request.broker.loop.create_future()

    def then(verdict: Verdict) -> None:
        code = verdict[partition]
        if code is ErrorCode.NOT_ENOUGH_REPLICAS:
            # What the coordinator of a group says when it cannot write.
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        answer = _refusal(request, code) if code else _commit(request)
        if isinstance(answer, Message):
            later.set_result(answer)
        else:
            answer.add_done_callback(lambda done: later.set_result(done.result()))

    client = Client.of_offset_commit(request.version)
    verify(request.broker, request.message.transactional_id, producer, [partition], client, then)
    return later.result() if later.done() else later


def _commit(request: Request[TxnOffsetCommitRequest]) -> Message | asyncio.Future[Message]:
    message = request.message
    return request.broker.groups.submit(
        message.group_id,
        lambda shard, ticket, now: shard.txn_offset_commit(ticket, message, now),
        lambda code: _refusal(request, code),
    )


def _refusal(request: Request[TxnOffsetCommitRequest], code: ErrorCode) -> Message:
    if request.version < _FIRST_WITH_LOADING and code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
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
            for topic in request.message.topics
        ]
    )
