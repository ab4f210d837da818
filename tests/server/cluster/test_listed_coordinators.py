"""ListGroups and ListTransactions tell of nothing that may still be lost with this leader."""

from __future__ import annotations

import select
from collections.abc import Callable
from dataclasses import replace

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import create_topic
from server_kit.wire import Wire

from ottla.cluster.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.replication.partition import Partition
from ottla.server.broker import Broker

OTHER = 77  # the broker with the other replica
NAME = "mine"


class Groups:
    """A group that comes to be by a commit of its offsets."""

    topic = CONSUMER_OFFSETS
    listing = (ListGroupsRequest(), ListGroupsResponse, 4)
    change_answer: tuple[type[Message], int] = (OffsetCommitResponse, 7)

    @staticmethod
    def change(wire: Wire, name: str) -> OffsetCommitRequest:
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=3)
        topics = [OffsetCommitRequestTopic(name=create_topic(wire).name, partitions=[partition])]
        return OffsetCommitRequest(
            group_id=name, generation_id_or_member_epoch=-1, member_id="", topics=topics
        )

    @staticmethod
    def listed(answer: ListGroupsResponse) -> tuple[int, list[str]]:
        return answer.error_code, [each.group_id for each in answer.groups]


class Transactions:
    """A transactional id that comes to be by its first producer."""

    topic = TRANSACTION_STATE
    listing = (ListTransactionsRequest(), ListTransactionsResponse, 0)
    change_answer: tuple[type[Message], int] = (InitProducerIdResponse, 4)

    @staticmethod
    def change(_: Wire, name: str) -> InitProducerIdRequest:
        return InitProducerIdRequest(
            transactional_id=name, transaction_timeout_ms=10_000, producer_id=-1, producer_epoch=-1
        )

    @staticmethod
    def listed(answer: ListTransactionsResponse) -> tuple[int, list[str]]:
        return answer.error_code, [each.transactional_id for each in answer.transaction_states]


KINDS = pytest.mark.parametrize("kind", [Groups, Transactions])
Kind = type[Groups] | type[Transactions]


@pytest.fixture
def running(start_broker: Callable[..., BrokerThread], kind: Kind) -> BrokerThread:
    """A broker whose coordinators' logs have another replica in sync."""
    broker = start_broker()
    broker.run_async(broker.broker.internal_topic(kind.topic))
    with broker.wire() as wire:
        request, response, version = kind.listing
        while wire.call(request, response, version).error_code:  # type: ignore[attr-defined]
            pass

    def add_replicas(inside: Broker) -> None:
        for partition in inside.partitions.by_name[kind.topic]:
            state = inside.image.topics[kind.topic].partitions[partition.index]
            members = (inside.id, OTHER)
            partition.update(replace(state, replicas=members, isr=members, partition_epoch=1), 0)

    broker.run(add_replicas)
    return broker


def grown(broker: Broker, kind: Kind) -> list[Partition]:
    """The partitions with something that is not committed."""
    return [
        each
        for each in broker.partitions.by_name[kind.topic]
        if each.opened is not None and each.opened.log_end_offset > each.opened.high_watermark
    ]


def begin(running: BrokerThread, kind: Kind, producer: Wire, reader: Wire) -> None:
    """Somebody changes something that is not committed, and somebody else asks for the list."""
    producer.send(kind.change(producer, NAME), kind.change_answer[1])
    running.until(lambda broker: bool(grown(broker, kind)))
    request, _, version = kind.listing
    reader.send(request, version)
    running.until(
        lambda broker: sum(len(each._awaiting_commit.waiting) for each in grown(broker, kind)) == 2
    )
    assert not select.select([reader.sock, producer.sock], [], [], 0)[0]


@KINDS
def test_what_is_not_committed_is_not_listed(running: BrokerThread, kind: Kind) -> None:
    with running.wire() as producer, running.wire() as reader:
        begin(running, kind, producer, reader)

        def fetch(broker: Broker) -> None:
            for partition in grown(broker, kind):
                partition.fetched(OTHER, partition.log.log_end_offset, 1, 0)

        running.run(fetch)
        _, response, version = kind.listing
        assert kind.listed(reader.receive(response, version)) == (0, [NAME])  # type: ignore[arg-type]
        producer.receive(*kind.change_answer)
        # And at once, now that all is committed.
        request, response, version = kind.listing
        answer = reader.call(request, response, version)
        assert kind.listed(answer) == (0, [NAME])  # type: ignore[arg-type]


@KINDS
def test_what_is_lost_with_this_leader_was_never_listed(running: BrokerThread, kind: Kind) -> None:
    with running.wire() as producer, running.wire() as reader:
        begin(running, kind, producer, reader)

        def depose(broker: Broker) -> None:
            for partition in grown(broker, kind):
                state = broker.image.topics[kind.topic].partitions[partition.index]
                newer = replace(state, replicas=partition.replicas, leader=OTHER, leader_epoch=99)
                partition.update(newer, 0)

        running.run(depose)
        _, response, version = kind.listing
        assert kind.listed(reader.receive(response, version)) == (0, [])  # type: ignore[arg-type]


@KINDS
def test_a_list_that_takes_too_long_is_refused(running: BrokerThread, kind: Kind) -> None:
    with running.wire() as producer, running.wire() as reader:
        config = running.broker.config
        producer.send(kind.change(producer, NAME), kind.change_answer[1])
        running.until(lambda broker: bool(grown(broker, kind)))
        usual = config.offsets_commit_timeout_ms
        object.__setattr__(config, "offsets_commit_timeout_ms", 1)
        answer = reader.call(*kind.listing)
        object.__setattr__(config, "offsets_commit_timeout_ms", usual)
        assert kind.listed(answer) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, [])  # type: ignore[arg-type]
