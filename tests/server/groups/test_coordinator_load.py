"""A coordinator that cannot replay its partition says so, and does not stay "loading" for ever."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import create_topic, fresh_name

from ottla.cluster.names import CONSUMER_OFFSETS
from ottla.coordinator.groups.shard import GroupShard
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from ottla.server.broker import Broker
from ottla.server.coordination import coordinators
from ottla.server.coordination.coordinators import HeldShard, partition_for
from ottla.storage.errors import OutOfResources


@pytest.mark.complains
def test_a_replay_that_raises(start_broker, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    broker: BrokerThread = start_broker()
    group = fresh_name("group")
    with broker.wire() as wire:
        topic = create_topic(wire)
        wire.call(FindCoordinatorRequest(coordinator_keys=[group]), FindCoordinatorResponse, 4)
        commit = OffsetCommitRequest(
            group_id=group,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic.name,
                    partitions=[
                        OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
                    ],
                )
            ],
        )
        answer = wire.call(commit, OffsetCommitResponse, 7)
        assert answer.topics[0].partitions[0].error_code == 0

    def fail(*_: object) -> None:
        raise KeyError("a record that nobody expected")

    broker.stop()
    monkeypatch.setattr(GroupShard, "replay", fail)
    broker.start()
    fetch = OffsetFetchRequest(
        group_id=group, topics=[OffsetFetchRequestTopic(name=topic.name, partition_indexes=[0])]
    )

    def told() -> int:
        with broker.wire() as wire:
            return wire.call(fetch, OffsetFetchResponse, 5).error_code

    while (code := told()) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        pass
    assert code == ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("key_type", [0, 1])
def test_a_coordinator_whose_topic_cannot_be_made_yet(
    start_broker: Callable[..., BrokerThread], monkeypatch: pytest.MonkeyPatch, key_type: int
) -> None:
    """Every client looks for it again."""
    broker = start_broker()
    controller = broker.broker.changes.controller
    assert controller is not None

    async def resigned(_: object) -> list[object]:
        raise ProtocolError(ErrorCode.NOT_CONTROLLER, "The controller resigned.")

    monkeypatch.setattr(controller, "create_topics", resigned)
    find = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["mine"])
    with broker.wire() as wire:
        (found,) = wire.call(find, FindCoordinatorResponse, 4).coordinators
        assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.complains
def test_a_load_of_a_former_term_that_fails(start_broker: Callable[..., BrokerThread]) -> None:
    """What was loaded in the term after it goes on."""
    running = start_broker()
    running.run_async(running.broker.internal_topic(CONSUMER_OFFSETS))
    running.until(lambda broker: bool(broker.groups.serving_shards()))

    def fail_late(broker: Broker) -> bool:
        now = broker.groups.serving("mine")
        assert now is not None
        former = HeldShard(broker.groups._make(now.partition.index), now.partition)
        broker.groups._fail(former, OutOfResources("offsets", "no memory"))
        return broker.groups.serving("mine") is now

    assert running.run(fail_late)


def test_only_names_of_usual_length_are_remembered() -> None:
    """A client may ask for the coordinators of many groups whose names have 32 kB each."""
    before = coordinators._remembered.cache_info().currsize
    long = [f"{number}" + "x" * 30_000 for number in range(20)]
    assert {partition_for(name, 50) for name in long} <= set(range(50))
    assert coordinators._remembered.cache_info().currsize == before
    # As Java has it: "polygenelubricants" is the number without a positive twin.
    assert [partition_for(name, 50) for name in ("", "a", "polygenelubricants")] == [0, 47, 0]
