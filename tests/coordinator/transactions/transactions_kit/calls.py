"""Transactional requests over a socket, in one line each, and a reader of committed records."""

from __future__ import annotations

import itertools
import os
import time
from typing import TYPE_CHECKING, Any

from server_kit.broker_thread import BrokerThread
from server_kit.calls import Topic, batch_of, fetch, produce, whole_batches

from ottla.coordinator.transactions.transaction import Identity
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from ottla.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from ottla.protocol.messages.produce import PartitionProduceResponse
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from ottla.record.batch import headers, records

if TYPE_CHECKING:
    from server_kit.broker_thread import BrokerElsewhere
    from server_kit.wire import Wire

PATIENCE = 20.0
TRANSACTIONS = "__transaction_state"
_numbers = itertools.count()

_LATER = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


def fresh_id() -> str:
    return f"id-{os.getpid()}-{next(_numbers)}-{os.urandom(3).hex()}"


def make_ready(broker: BrokerThread | BrokerElsewhere) -> None:
    """Have the coordinator's topic made."""
    if isinstance(broker, BrokerThread):
        broker.run_async(broker.broker.internal_topic(TRANSACTIONS))
        broker.run_async(broker.broker.internal_topic("__consumer_offsets"))
        return
    with broker.wire() as wire:
        for kind in (0, 1):
            deadline = time.monotonic() + PATIENCE
            while True:
                answer = wire.call(
                    FindCoordinatorRequest(key_type=kind, coordinator_keys=["x"]),
                    FindCoordinatorResponse,
                    4,
                )
                if not answer.coordinators[0].error_code:
                    break
                assert time.monotonic() < deadline, "no coordinator"
                time.sleep(0.05)


def init(
    wire: Wire,
    transactional_id: str | None,
    *,
    version: int = 5,
    timeout_ms: int = 60_000,
    expected: Identity | None = None,
    patient: bool = True,
    **fields: bool,
) -> InitProducerIdResponse:
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=timeout_ms, **fields
    )
    if expected is not None:
        request.producer_id, request.producer_epoch = expected
    deadline = time.monotonic() + PATIENCE
    while True:
        answer = wire.call(request, InitProducerIdResponse, version)
        if not patient or answer.error_code not in _LATER or time.monotonic() > deadline:
            return answer
        time.sleep(0.005)


def begin(wire: Wire, transactional_id: str, **settings: Any) -> Identity:
    """An identity that has to be given."""
    answer = init(wire, transactional_id, **settings)
    assert answer.error_code == 0, ErrorCode(answer.error_code)
    return Identity(answer.producer_id, answer.producer_epoch)


def add(
    wire: Wire,
    transactional_id: str,
    producer: Identity,
    *partitions: tuple[Topic, int],
    version: int = 3,
) -> list[ErrorCode]:
    """The errors of partitions, in their order."""
    topics = [
        AddPartitionsToTxnTopic(name=topic.name, partitions=[index]) for topic, index in partitions
    ]
    if version < 4:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=topics,
        )
    else:
        request = AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=transactional_id,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.epoch,
                    topics=topics,
                )
            ]
        )
    deadline = time.monotonic() + PATIENCE
    while True:
        answer = wire.call(request, AddPartitionsToTxnResponse, version)
        results = (
            answer.results_by_topic_v3_and_below
            if version < 4
            else answer.results_by_transaction[0].topic_results
        )
        found = {
            (topic.name, each.partition_index): ErrorCode(each.partition_error_code)
            for topic in results
            for each in topic.results_by_partition
        }
        if not set(found.values()) & set(_LATER) or time.monotonic() > deadline:
            return [found[topic.name, index] for topic, index in partitions]
        time.sleep(0.005)


def add_offsets(
    wire: Wire, transactional_id: str, producer: Identity, group: str, version: int = 3
) -> ErrorCode:
    return ErrorCode(
        wire.call(
            AddOffsetsToTxnRequest(
                transactional_id=transactional_id,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                group_id=group,
            ),
            AddOffsetsToTxnResponse,
            version,
        ).error_code
    )


def commit_offset(
    wire: Wire, name: str, producer: Identity, group: str, topic: Topic, offset: int, version: int
) -> ErrorCode:
    request = TxnOffsetCommitRequest(
        transactional_id=name,
        group_id=group,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
                ],
            )
        ],
    )
    answer = wire.call(request, TxnOffsetCommitResponse, version)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def fetch_offset(wire: Wire, group: str, topic: Topic, stable: bool = False) -> tuple[int, int]:
    """Committed offset and error."""
    answer = wire.call(
        OffsetFetchRequest(
            group_id=group,
            topics=[OffsetFetchRequestTopic(name=topic.name, partition_indexes=[0])],
            require_stable=stable,
        ),
        OffsetFetchResponse,
        7,
    )
    (partition,) = answer.topics[0].partitions
    return partition.committed_offset, ErrorCode(partition.error_code)


def end(
    wire: Wire,
    transactional_id: str,
    producer: Identity,
    committed: bool,
    *,
    version: int = 3,
    patient: bool = True,
) -> EndTxnResponse:
    request = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=committed,
    )
    deadline = time.monotonic() + PATIENCE
    while True:
        answer = wire.call(request, EndTxnResponse, version)
        if not patient or answer.error_code not in _LATER or time.monotonic() > deadline:
            return answer
        time.sleep(0.005)


def finish(wire: Wire, transactional_id: str, producer: Identity, committed: bool) -> None:
    """End a transaction of the first protocol and wait until it is complete."""
    answer = end(wire, transactional_id, producer, committed)
    assert answer.error_code == 0, ErrorCode(answer.error_code)
    until_complete(wire, transactional_id)


def until_complete(wire: Wire, transactional_id: str) -> TransactionState:
    deadline = time.monotonic() + PATIENCE
    while True:
        found = describe(wire, transactional_id)
        if found.transaction_state.startswith("Complete") or time.monotonic() > deadline:
            return found
        time.sleep(0.005)


def describe(wire: Wire, transactional_id: str) -> TransactionState:
    answer = wire.call(
        DescribeTransactionsRequest(transactional_ids=[transactional_id]),
        DescribeTransactionsResponse,
        0,
    )
    return answer.transaction_states[0]


def send(
    wire: Wire,
    topic: Topic,
    transactional_id: str | None,
    producer: Identity,
    *values: bytes,
    sequence: int = 0,
    index: int = 0,
    version: int = 9,
    patient: bool = True,
) -> PartitionProduceResponse:
    """A batch of a transaction."""
    batch = batch_of(
        *values,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        transactional=True,
    )
    deadline = time.monotonic() + PATIENCE
    while True:
        answer = produce(
            wire,
            topic,
            batch,
            version=version,
            index=index,
            transactional_id=transactional_id,
            acks=-1,
        )
        if not patient or answer.error_code not in _LATER or time.monotonic() > deadline:
            return answer
        time.sleep(0.005)


def sent(wire: Wire, *arguments: Any, **settings: Any) -> int:
    """The same, which has to succeed; its offset."""
    answer = send(wire, *arguments, **settings)
    assert answer.error_code == 0, (ErrorCode(answer.error_code), answer.error_message)
    return answer.base_offset


def values(wire: Wire, topic: Topic, index: int = 0, isolation: int = 0) -> list[bytes | None]:
    """What a consumer shows its user, read batch by batch as clients do."""
    shown: list[bytes | None] = []
    offset = 0
    while True:
        answer = fetch(wire, topic, offset, index=index, isolation_level=isolation, version=11)
        assert answer.error_code == 0, ErrorCode(answer.error_code)
        batches = whole_batches(answer.records)
        if not batches:
            return shown
        begins = sorted(
            (each.first_offset, each.producer_id) for each in answer.aborted_transactions or ()
        )
        aborted: set[int] = set()
        for batch in batches:
            _, header = next(headers(batch))
            while begins and begins[0][0] <= header.last_offset:
                aborted.add(begins.pop(0)[1])
            offset = header.last_offset + 1
            if header.is_control:
                if header.producer_id in aborted:
                    aborted.discard(header.producer_id)
                continue
            if isolation and header.is_transactional and header.producer_id in aborted:
                continue
            shown += [record.value for record in records(batch)]


def committed_values(wire: Wire, topic: Topic, index: int = 0) -> list[bytes | None]:
    return values(wire, topic, index, isolation=1)


def stable_end(wire: Wire, topic: Topic, index: int = 0) -> int:
    """Where the records end that a reader of committed ones may see."""
    answer = wire.call(
        ListOffsetsRequest(
            replica_id=-1,
            isolation_level=1,
            topics=[
                ListOffsetsTopic(
                    name=topic.name,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=index, timestamp=-1, current_leader_epoch=-1
                        )
                    ],
                )
            ],
        ),
        ListOffsetsResponse,
        6,
    )
    return answer.topics[0].partitions[0].offset
