"""A coordinator that cannot replay its partition says so, and does not stay "loading" for ever."""

from __future__ import annotations

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import create_topic, fresh_name

from ottla.coordinator.groups.shard import GroupShard
from ottla.protocol.errors import ErrorCode
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
