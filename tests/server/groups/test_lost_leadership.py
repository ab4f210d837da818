"""Requests that take several appends are answered whatever becomes of the first: the coordinator may be
deposed before it is committed, or wait for its replicas for too long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import create_topic
from server_kit.wire import Wire

from ottla.cluster.names import CONSUMER_OFFSETS
from ottla.coordinator.groups import shard
from ottla.coordinator.groups.classic.group import ClassicGroup
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from ottla.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.replication.partition import Partition
from ottla.server.broker import Broker

OTHER = 77  # the broker with the other replica
GROUP = "mine"
JOIN_VERSION = 3  # of clients that are let in with their first request
DELETE_VERSION = 1
PARTITIONS = 5


@pytest.fixture
def running(start_broker: Callable[..., BrokerThread]) -> BrokerThread:
    broker = start_broker(settings={"offsets.topic.num.partitions": "1"})
    broker.run_async(broker.broker.internal_topic(CONSUMER_OFFSETS))
    with broker.wire() as wire:
        while wire.call(ListGroupsRequest(), ListGroupsResponse, 4).error_code:
            pass
    return broker


def offsets(broker: Broker) -> Partition:
    return broker.partitions.by_name[CONSUMER_OFFSETS][0]


def add_replica(broker: Broker) -> None:
    """From now on another broker has to have what is to be committed."""
    state = broker.image.topics[CONSUMER_OFFSETS].partitions[0]
    members = (broker.id, OTHER)
    offsets(broker).update(replace(state, replicas=members, isr=members, partition_epoch=1), 0)


def depose(broker: Broker) -> None:
    partition = offsets(broker)
    state = broker.image.topics[CONSUMER_OFFSETS].partitions[0]
    partition.update(replace(state, replicas=partition.replicas, leader=OTHER, leader_epoch=99), 0)


def fetch(broker: Broker) -> None:
    """The other replica has all there is."""
    offsets(broker).fetched(OTHER, offsets(broker).log.log_end_offset, 1, 0)


def waits(broker: Broker) -> bool:
    return bool(offsets(broker)._awaiting_commit.waiting)


def join() -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def commit(wire: Wire) -> None:
    """A group with several offsets."""
    topic = create_topic(wire, partitions=PARTITIONS)
    parts = [
        OffsetCommitRequestPartition(partition_index=each, committed_offset=3)
        for each in range(PARTITIONS)
    ]
    topics = [OffsetCommitRequestTopic(name=topic.name, partitions=parts)]
    wire.call(OffsetCommitRequest(group_id=GROUP, topics=topics), OffsetCommitResponse, 7)


def test_the_first_member_of_a_group_that_is_lost(running: BrokerThread) -> None:
    running.run(add_replica)
    with running.wire() as wire:
        wire.send(join(), JOIN_VERSION)
        running.until(waits)
        running.run(depose)
        answer = wire.receive(JoinGroupResponse, JOIN_VERSION)
        assert answer.error_code == ErrorCode.NOT_COORDINATOR
        assert not running.broker.groups._waiting


def test_the_first_member_of_a_group_that_is_committed_too_late(
    running: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told to try again: it is no member that others would wait for."""
    running.run(add_replica)
    object.__setattr__(running.broker.config, "offsets_commit_timeout_ms", 1)
    with running.wire() as wire:
        answer = wire.call(join(), JoinGroupResponse, JOIN_VERSION)
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE

        def members(broker: Broker) -> int:
            fetch(broker)
            (groups,) = broker.groups.serving_shards()
            group = groups.groups[GROUP]
            assert isinstance(group, ClassicGroup)
            return len(group.members)

        assert running.run(members) == 0


def test_the_deletion_of_a_group_with_many_offsets(
    running: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard, "TOMBSTONES_AT_ONCE", 2)
    with running.wire() as wire:
        commit(wire)
        running.run(add_replica)
        wire.send(DeleteGroupsRequest(groups_names=[GROUP]), DELETE_VERSION)
        running.until(waits)
        running.run(fetch)  # the first batch, which the second follows
        running.until(waits)
        running.run(depose)
        (result,) = wire.receive(DeleteGroupsResponse, DELETE_VERSION).results
        assert (result.group_id, result.error_code) == (GROUP, ErrorCode.NOT_COORDINATOR)
        assert not running.broker.groups._waiting
