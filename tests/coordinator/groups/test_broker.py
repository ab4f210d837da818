"""Groups on a running broker, over real sockets: every API in every version."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from groups_kit.scenarios import Run, Scenario, play, read
from groups_kit.sockets import Sockets
from server_kit.wire import Wire

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from ottla.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
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
from ottla.testing import BrokerProcess

FOLDER = Path(__file__).parent / "scenarios"
_numbers = itertools.count()


def scenarios(*names: str) -> list[object]:
    return [
        pytest.param(scenario, id=f"{name}: {scenario.title}")
        for name in names
        for scenario in read(FOLDER / f"{name}.txt")[1]
    ]


def run(scenario: Scenario, broker: BrokerProcess) -> None:
    target, number = Sockets(broker.host, broker.port), next(_numbers)
    try:
        played = Run(scenario, target, lambda group: f"{group}-{number}").text()
    finally:
        target.close()
    assert played == scenario.text


@pytest.mark.parametrize("scenario", scenarios("membership", "static_members", "offsets"))
def test_answers_are_those_of_kafka(scenario: Scenario, broker: BrokerProcess) -> None:
    run(scenario, broker)


# The others take their time; the state machine goes through all of them in a moment.
TIMED = (
    "The first rebalance waits for more members",
    "A member that is silent is gone, and the others rebalance",
    "A group with all the members it may have",
)


@pytest.fixture(scope="module")
def patient_broker(start_broker) -> BrokerProcess:  # type: ignore[no-untyped-def]
    return start_broker({"group.initial.rebalance.delay.ms": "600", "group.max.size": "2"})


@pytest.mark.parametrize("title", TIMED)
def test_time_passes_as_with_kafka(title: str, patient_broker: BrokerProcess) -> None:
    found = [each for each in read(FOLDER / "timeouts.txt")[1] if each.title == title]
    run(found[0], patient_broker)


@pytest.fixture
def wire(broker: BrokerProcess) -> Wire:
    return Wire(broker.host, broker.port)


@pytest.mark.parametrize("version", range(7))
def test_find_coordinator(version: int, broker: BrokerProcess, wire: Wire) -> None:
    for kind in (0, 1) if version else (0,):
        if version < 4:
            found = wire.call(
                FindCoordinatorRequest(key="g", key_type=kind), FindCoordinatorResponse, version
            )
            answers = [(found.error_code, found.node_id, found.host, found.port)]
        else:
            request = FindCoordinatorRequest(coordinator_keys=["g", "h", ""], key_type=kind)
            found = wire.call(request, FindCoordinatorResponse, version)
            assert [each.key for each in found.coordinators] == ["g", "h", ""]
            answers = [
                (each.error_code, each.node_id, each.host, each.port) for each in found.coordinators
            ]
        assert set(answers) == {(0, 1, broker.host, broker.port)}


@pytest.mark.parametrize("kind", [2, 3, -1])
def test_coordinators_that_there_are_not(kind: int, wire: Wire) -> None:
    request = FindCoordinatorRequest(coordinator_keys=["g"], key_type=kind)
    (found,) = wire.call(request, FindCoordinatorResponse, 6).coordinators
    assert (found.error_code, found.node_id, found.port) == (ErrorCode.INVALID_REQUEST, -1, -1)
    assert found.error_message
    old = wire.call(FindCoordinatorRequest(key="g", key_type=kind), FindCoordinatorResponse, 3)
    assert old.error_code == ErrorCode.INVALID_REQUEST


def test_the_oldest_versions_of_commit_and_fetch(wire: Wire) -> None:
    """Kafka does not speak these any more; its clients of 2013 do."""
    partitions = [OffsetCommitRequestPartition(partition_index=0, committed_offset=5)]
    request = OffsetCommitRequest(
        group_id="ancient", topics=[OffsetCommitRequestTopic(name="t", partitions=partitions)]
    )
    for version in (0, 1):
        answer = wire.call(request, OffsetCommitResponse, version)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
    wanted = [OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
    fetch = OffsetFetchRequest(group_id="ancient", topics=wanted)
    for version, nothing in ((0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (1, ErrorCode.NONE)):
        (topic,) = wire.call(fetch, OffsetFetchResponse, version).topics
        offsets = [(each.committed_offset, each.error_code) for each in topic.partitions]
        assert offsets == [(5, ErrorCode.NONE), (-1, nothing)]


def test_offsets_of_a_deleted_topic_are_gone(broker: BrokerProcess, wire: Wire) -> None:
    def create() -> None:
        topic = CreatableTopic(name="brief", num_partitions=1, replication_factor=1)
        created = wire.call(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse, 5)
        assert created.topics[0].error_code == ErrorCode.NONE

    create()
    target = Sockets(broker.host, broker.port)
    play(target, "a: commit group=brief topics=brief:0=5;t:0=6 -> brief:0:NONE t:0:NONE")
    deleted = wire.call(
        DeleteTopicsRequest(topic_names=["brief"]), DeleteTopicsResponse, 5
    ).responses
    assert deleted[0].error_code == ErrorCode.NONE
    create()
    play(
        target,
        """
        a: fetch group=brief topics=brief:0;t:0 -> brief:NONE brief:0=-1/ t:0=6/
        a: fetch group=brief topics=all -> brief:NONE t:0=6/
        """,
    )
    target.close()


STABLE = """
    a: join v=3 group=lasting session=60000 -> NONE generation=1 ...
    a: sync group=lasting id=A assign=A:x -> NONE ...
    a: commit group=lasting id=A generation=1 topics=t:0=5/note|2=7 -> t:0:NONE t:2:NONE
"""
STILL_THERE = """
    a: describe groups=lasting -> lasting:NONE Stable type=consumer data=range A//a/127.0.0.1:m:x
    a: heartbeat group=lasting id=A -> NONE
    a: sync group=lasting id=A -> NONE type=consumer protocol=range assignment=x
    a: fetch group=lasting topics=all -> lasting:NONE t:0=5/note t:2=7/
    a: join group=lasting id=A -> NONE generation=2 ...
    a: sync group=lasting id=A generation=2 assign=A:x -> NONE ...
"""


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_groups_and_offsets_survive_the_broker(end: str, start_broker) -> None:  # type: ignore[no-untyped-def]
    broker: BrokerProcess = start_broker()
    before = Sockets(broker.host, broker.port)
    play(before, STABLE)
    before.close()
    getattr(broker, end)()
    broker.start()
    after = Sockets(broker.host, broker.port, loading=True)
    play(after, STILL_THERE)
    after.close()
    broker.stop()
