"""Commits that arrive at the same moment are written as one batch; nobody can tell but by the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import Topic, create_topic
from server_kit.wire import Wire

from ottla.protocol.errors import ErrorCode
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
from ottla.server.coordination.coordinators import partition_for
from ottla.server.network import connection
from ottla.storage.log.log import Log

OFFSETS = "__consumer_offsets"
VERSION = 7
GROUP = "readers"


@pytest.fixture
def running(start_broker: Callable[..., BrokerThread]) -> BrokerThread:
    broker = start_broker(settings={"offsets.topic.num.partitions": "1"})
    broker.run_async(broker.broker.internal_topic(OFFSETS))
    return broker


@pytest.fixture
def wires(running: BrokerThread) -> Iterator[list[Wire]]:
    opened = [running.wire() for _ in range(3)]
    yield opened
    for wire in opened:
        wire.close()


@pytest.fixture
def topic(running: BrokerThread, wires: list[Wire]) -> Topic:
    """With a group that has committed for it before: a group comes to be by its first commit."""
    made = create_topic(wires[0], partitions=8)
    assert codes(wires[0].call(commit(made, 0, 1), OffsetCommitResponse, VERSION)) == [0]
    return made


def commit(topic: Topic, index: int, offset: int, metadata: str = "") -> OffsetCommitRequest:
    part = OffsetCommitRequestPartition(
        partition_index=index, committed_offset=offset, committed_metadata=metadata
    )
    return OffsetCommitRequest(
        group_id=GROUP, topics=[OffsetCommitRequestTopic(name=topic.name, partitions=[part])]
    )


def fetch(topic: Topic, *indexes: int) -> OffsetFetchRequest:
    return OffsetFetchRequest(
        group_id=GROUP,
        topics=[OffsetFetchRequestTopic(name=topic.name, partition_indexes=list(indexes))],
    )


def codes(answer: OffsetCommitResponse) -> list[int]:
    return [part.error_code for each in answer.topics for part in each.partitions]


def offsets(answer: OffsetFetchResponse) -> list[int]:
    return [part.committed_offset for each in answer.topics for part in each.partitions]


def committed(wire: Wire, topic: Topic, *indexes: int) -> list[int]:
    return offsets(wire.call(fetch(topic, *indexes), OffsetFetchResponse, VERSION))


def offsets_log(broker: Broker) -> Log:
    return broker.partitions.by_name[OFFSETS][0].log


def batches(running: BrokerThread) -> int:
    """In the log of the offsets."""

    def count(broker: Broker) -> int:
        return sum(1 for segment in offsets_log(broker).segments for _ in segment.walk(0))

    return running.run(count)


def at_once(running: BrokerThread, *frames: tuple[Wire, bytes]) -> None:
    """Send them while the broker's loop is held: it finds all of them when it looks again."""
    running.run(lambda _: [wire.send_raw(frame) for wire, frame in frames])


def test_commits_of_several_connections_are_one_batch(
    running: BrokerThread, wires: list[Wire], topic: Topic
) -> None:
    before = batches(running)
    at_once(
        running,
        *(
            (each, each.encode(commit(topic, at, 10 + at), VERSION))
            for at, each in enumerate(wires)
        ),
    )
    for each in wires:
        assert codes(each.receive(OffsetCommitResponse, VERSION)) == [0]
    assert batches(running) == before + 1
    assert committed(wires[0], topic, 0, 1, 2) == [10, 11, 12]
    running.restart()
    with running.wire() as wire:
        running.until(lambda broker: bool(broker.groups.serving_shards()))
        assert committed(wire, topic, 0, 1, 2) == [10, 11, 12]


def test_requests_of_one_connection_are_answered_in_order(
    running: BrokerThread, wires: list[Wire], topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow the machine: the connection's turn does not end between these requests.
    monkeypatch.setattr(connection, "clock", lambda: 1.0)
    before = batches(running)
    wire = wires[0]
    frames = [wire.encode(commit(topic, 1, offset), VERSION) for offset in range(20)]
    # Whoever asks sees what was committed before, and not what is committed after it.
    frames.append(wire.encode(fetch(topic, 1), VERSION))
    frames += [wire.encode(commit(topic, 1, offset), VERSION) for offset in range(20, 40)]
    at_once(running, (wire, b"".join(frames)))
    answered = []
    for at in range(41):
        if at == 20:
            assert offsets(wire.receive(OffsetFetchResponse, VERSION)) == [19]
        else:
            assert codes(wire.receive(OffsetCommitResponse, VERSION)) == [0]
        answered.append(wire.answered)
    assert answered == sorted(answered)
    assert batches(running) == before + 2
    assert committed(wire, topic, 1) == [39]


def test_each_commit_has_an_answer_of_its_own(
    running: BrokerThread, wires: list[Wire], topic: Topic
) -> None:
    requests = [
        commit(topic, 1, 5),
        commit(topic, 99, 5),
        commit(topic, 2, 5, "x" * 10_000),
        commit(topic, 3, 5),
    ]
    wire = wires[0]
    at_once(running, (wire, b"".join(wire.encode(each, VERSION) for each in requests)))
    answers = [codes(wire.receive(OffsetCommitResponse, VERSION)) for _ in requests]
    assert answers == [
        [ErrorCode.NONE],
        [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.OFFSET_METADATA_TOO_LARGE],
        [ErrorCode.NONE],
    ]
    assert committed(wire, topic, 1, 2, 3) == [5, -1, 5]


def test_commits_that_are_too_large_together_are_written_apart(
    running: BrokerThread, wires: list[Wire], topic: Topic
) -> None:
    before = batches(running)

    def shrink(broker: Broker) -> None:
        log = offsets_log(broker)
        log.reconfigure(replace(log.config, max_message_bytes=500))

    running.run(shrink)
    at_once(
        running,
        *(
            (each, each.encode(commit(topic, at, 7, "x" * 200), VERSION))
            for at, each in enumerate(wires)
        ),
    )
    for each in wires:
        assert codes(each.receive(OffsetCommitResponse, VERSION)) == [0]
    assert batches(running) == before + 3
    assert committed(wires[0], topic, 0, 1, 2) == [7, 7, 7]


@pytest.mark.complains
def test_a_failed_append_is_told_to_all(
    running: BrokerThread, wires: list[Wire], topic: Topic
) -> None:
    running.run(lambda broker: offsets_log(broker).go_offline("the test says so"))
    at_once(
        running,
        *((each, each.encode(commit(topic, at, 20), VERSION)) for at, each in enumerate(wires)),
    )
    for each in wires:
        answer = each.receive(OffsetCommitResponse, VERSION)
        assert codes(answer) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert committed(wires[0], topic, 0, 1, 2) == [1, -1, -1]


def test_a_client_that_is_gone_does_not_hold_up_the_others(
    running: BrokerThread, wires: list[Wire], topic: Topic
) -> None:
    gone, stays, _ = wires

    def send_and_go(_: Broker) -> None:
        for at, wire in enumerate((gone, stays)):
            wire.send_raw(wire.encode(commit(topic, at, 30), VERSION))
        gone.close()

    running.run(send_and_go)
    assert codes(stays.receive(OffsetCommitResponse, VERSION)) == [0]
    assert committed(stays, topic, 0, 1) == [30, 30]


@pytest.mark.complains
def test_a_mistake_with_one_shard_is_not_paid_for_by_others(
    start_broker: Callable[..., BrokerThread],
) -> None:
    running = start_broker(settings={"offsets.topic.num.partitions": "2"})
    running.run_async(running.broker.internal_topic(OFFSETS))
    groups = {partition_for(f"group-{number}", 2): f"group-{number}" for number in range(9)}
    with running.wire() as broken, running.wire() as other:
        made = create_topic(other)

        def of(index: int) -> OffsetCommitRequest:
            request = commit(made, 0, 5)
            request.group_id = groups[index]
            return request

        for index in (0, 1):
            assert codes(other.call(of(index), OffsetCommitResponse, VERSION)) == [0]

        def break_one(broker: Broker) -> None:
            held = broker.groups.serving(groups[0])
            assert held is not None
            held.shard.replay = lambda _: 1 / 0  # type: ignore[method-assign, assignment, misc]

        running.run(break_one)
        at_once(
            running,
            *((wire, wire.encode(of(at), VERSION)) for at, wire in enumerate((broken, other))),
        )
        assert codes(other.receive(OffsetCommitResponse, VERSION)) == [0]
