"""Whether a partition may take a transaction's first batch: its coordinator is asked.

A batch that comes late, when its transaction has ended, would open a transaction in its partition that
nobody ever ends, and hold back every reader of committed records. So the first batch of a transaction in
a partition is written only if the coordinator knows the partition to be part of that transaction. With
the second transaction protocol (Produce v12, TxnOffsetCommit v5) the producer does not announce its
partitions: the same question makes them part of the transaction.

A coordinator on another broker is asked by AddPartitionsToTxn. Its answer may come after the marker
that ends the transaction. So it counts only if no marker of the producer was written to the partition
since the question was put, and nobody else led it meanwhile; otherwise the question has to be put again.
Whoever appends later than in the turn of the loop in which it was answered, or through a lane, looks for
a marker once more right before the append (`last_marker`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from ottla.cluster.names import TRANSACTION_STATE
from ottla.coordinator.transactions.transaction import Identity
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from ottla.server.coordination.markers import PURPOSE
from ottla.wire.errors import WireError

if TYPE_CHECKING:
    from ottla.coordinator.shard import Effects, Instant, Ticket
    from ottla.coordinator.transactions.shard import TransactionShard
    from ottla.coordinator.transactions.transaction import TopicPartition
    from ottla.protocol.message import Message
    from ottla.replication.partition import Partition
    from ottla.server.broker import Broker
    from ottla.server.turns import Steps

log = logging.getLogger("ottla.transactions")

# While the markers of the producer's last transaction are still being written, the new one waits this
# long on the broker before its producer is told to try again.
PATIENCE_SECONDS = 0.1
BACKOFF_SECONDS = 0.02

# The transaction protocol of those who let partitions be added by their first batch.
_SECOND_PROTOCOL = 2

Verdict = Mapping["TopicPartition", ErrorCode]

# The leader epoch in which was looked, and the offset of a producer's last marker.
LastMarker: TypeAlias = tuple[int, int]


class ProducerProtocol(Enum):
    """What a producer understands, by the version of its request."""

    OLD = "old"
    KNOWS_ABORTABLE = "knows TRANSACTION_ABORTABLE"
    SECOND_PROTOCOL = "its batches add their partitions"

    @classmethod
    def of_produce(cls, version: int) -> ProducerProtocol:
        if version >= 12:
            return cls.SECOND_PROTOCOL
        return cls.KNOWS_ABORTABLE if version == 11 else cls.OLD

    @classmethod
    def of_offset_commit(cls, version: int) -> ProducerProtocol:
        if version >= 5:
            return cls.SECOND_PROTOCOL
        return cls.KNOWS_ABORTABLE if version == 4 else cls.OLD


_BY_NUMBER = {int(code): code for code in ErrorCode}

# What clients can make something of: they repeat the request, and need no new metadata for it.
_AGAIN = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NETWORK_EXCEPTION,
    # Of several partitions one was not known to the coordinator yet.
    ErrorCode.OPERATION_NOT_ATTEMPTED,
)


def is_open(target: Partition, producer: Identity) -> bool:
    """Whether the partition holds batches of the producer's transaction already, and a further one
    would come to stand among them."""
    if target.lane is not None:
        # The marker that ends the transaction may be in the queue.
        return False
    state = target.log.producers.producers.get(producer.producer_id)
    return (
        state is not None and state.transaction_first_offset >= 0 and state.epoch == producer.epoch
    )


def verify(
    broker: Broker,
    transactional_id: str,
    producer: Identity,
    partitions: Sequence[TopicPartition],
    client: ProducerProtocol,
    then: Callable[[Verdict], None],
) -> None:
    """Ask the coordinator of a transactional id; `then` is called with the error for each partition,
    at once or later."""
    if client is not ProducerProtocol.SECOND_PROTOCOL and not (
        broker.config.transaction_partition_verification_enable
    ):
        then(dict.fromkeys(partitions, ErrorCode.NONE))
        return
    if broker.transactions.partition_for(transactional_id) is None:
        # It may have been made for this very producer, and this broker not have heard of it.
        code = answer_code(ErrorCode.COORDINATOR_NOT_AVAILABLE, client)
        then(dict.fromkeys(partitions, code))
        return
    deadline = broker.loop.time() + PATIENCE_SECONDS

    def ask() -> None:
        before = _last_markers(broker, producer, partitions)
        coordinator = _coordinator(broker, transactional_id)
        if coordinator == broker.id:
            asked = _ask(broker, transactional_id, producer, partitions, client)
        else:
            work = _ask_elsewhere(
                broker, coordinator, transactional_id, producer, partitions, client
            )
            asked = broker.spawn(work, f"question to the coordinator of {transactional_id!r}")
        if isinstance(asked, asyncio.Future):
            asked.add_done_callback(lambda done: answered(done.result(), before))
        else:
            answered(asked, before)

    def answered(response: Message, before: Mapping[TopicPartition, LastMarker]) -> None:
        assert isinstance(response, AddPartitionsToTxnResponse)
        codes = {
            (topic.name, each.partition_index): _BY_NUMBER[each.partition_error_code]
            for topic in response.results_by_transaction[0].topic_results
            for each in topic.results_by_partition
        }
        if (
            client is ProducerProtocol.SECOND_PROTOCOL
            and ErrorCode.CONCURRENT_TRANSACTIONS in codes.values()
            and broker.loop.time() < deadline
        ):
            broker.loop.call_later(BACKOFF_SECONDS, ask)
            return
        now = _last_markers(broker, producer, partitions)
        for each, code in codes.items():
            if code is ErrorCode.NONE and now.get(each) != before.get(each):
                codes[each] = ErrorCode.CONCURRENT_TRANSACTIONS
        then({each: answer_code(code, client) for each, code in codes.items()})

    ask()


def _last_markers(
    broker: Broker, producer: Identity, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, LastMarker]:
    """Where the producer's last marker is in each partition that this broker leads."""
    found: dict[TopicPartition, LastMarker] = {}
    for topic, index in partitions:
        target = broker.partitions.get(topic, index)
        if target is not None:
            found[topic, index] = last_marker(target, producer.producer_id)
    return found


def last_marker(target: Partition, producer_id: int) -> LastMarker:
    """Where the producer's last marker is in a partition; the offset is -1 if none is known.

    A log that is opened or cut anew does not know it any more, and a broker that lost the leadership
    and has it again may have missed one: hence the epoch.
    """
    opened = target.opened
    state = None if opened is None else opened.producers.producers.get(producer_id)
    return target.leader_epoch, -1 if state is None else state.last_marker_offset


def _coordinator(broker: Broker, transactional_id: str) -> int:
    """The broker that coordinates a transactional id, -1 if none does at the moment."""
    index = broker.transactions.partition_for(transactional_id)
    partition = None if index is None else broker.partitions.get(TRANSACTION_STATE, index)
    return -1 if partition is None else partition.leader


async def _ask_elsewhere(
    broker: Broker,
    coordinator: int,
    transactional_id: str,
    producer: Identity,
    partitions: Sequence[TopicPartition],
    client: ProducerProtocol,
) -> Message:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    request = AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=transactional_id,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                verify_only=client is not ProducerProtocol.SECOND_PROTOCOL,
                topics=[
                    AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                    for topic, indexes in topics.items()
                ],
            )
        ]
    )
    try:
        response = await broker.peers.request(
            coordinator, PURPOSE, request, AddPartitionsToTxnResponse
        )
        if not response.error_code and response.results_by_transaction:
            return response
    except WireError as error:
        log.info("no answer of the coordinator: broker=%d %s", coordinator, error)
    codes = dict.fromkeys(partitions, ErrorCode.NETWORK_EXCEPTION)
    return AddPartitionsToTxnResponse(results_by_transaction=[result_of(transactional_id, codes)])


def _ask(
    broker: Broker,
    transactional_id: str,
    producer: Identity,
    partitions: Sequence[TopicPartition],
    client: ProducerProtocol,
) -> Message | asyncio.Future[Message]:
    def call(shard: TransactionShard, ticket: Ticket, now: Instant) -> Effects:
        if client is ProducerProtocol.SECOND_PROTOCOL:
            return shard.add_partitions(
                ticket, transactional_id, producer, partitions, _SECOND_PROTOCOL, refusal, now
            )
        return shard.verify_partitions(ticket, transactional_id, producer, partitions, answer)

    def answer(codes: Verdict) -> Message:
        return AddPartitionsToTxnResponse(
            results_by_transaction=[result_of(transactional_id, codes)]
        )

    def refusal(code: ErrorCode) -> Message:
        return answer(dict.fromkeys(partitions, code))

    return broker.transactions.submit(transactional_id, call, refusal)


def result_of(transactional_id: str, codes: Verdict) -> AddPartitionsToTxnResult:
    """The part of a response for one transaction."""
    steps = result_in_steps(transactional_id, codes)
    try:
        while True:
            next(steps)
    except StopIteration as stop:
        result: AddPartitionsToTxnResult = stop.value
        return result


def result_in_steps(transactional_id: str, codes: Verdict) -> Steps[AddPartitionsToTxnResult]:
    topics: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
    for (topic, index), code in codes.items():
        topics.setdefault(topic, []).append(
            AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
        )
        yield
    return AddPartitionsToTxnResult(
        transactional_id=transactional_id,
        topic_results=[
            AddPartitionsToTxnTopicResult(name=topic, results_by_partition=results)
            for topic, results in topics.items()
        ],
    )


def answer_code(code: ErrorCode, client: ProducerProtocol) -> ErrorCode:
    """What the producer is told of a coordinator's answer."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code in _AGAIN:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if client is not ProducerProtocol.SECOND_PROTOCOL and code is ErrorCode.CONCURRENT_TRANSACTIONS:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if client is ProducerProtocol.OLD and code is ErrorCode.TRANSACTION_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    return code
