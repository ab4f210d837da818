"""One request must not stop the others: very long requests are worked on in slices.

A clock that counts stands in for the time, so that a slice is a number of steps: between two turns of
the loop no more than that are done, whatever the machine does meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import create_topic, fresh_name
from server_kit.long_requests import (
    LONG,
    LONG_QUESTIONS,
    LONGEST,
    MANY,
    T,
    Turns,
    count_steps,
    entries_of,
    errors_of,
    make_ready,
    metadata_request,
)
from server_kit.wire import Wire

from ottla import turns
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import ZERO_UUID
from ottla.protocol.messages import (
    create_topics,
    delete_records,
    delete_topics,
    describe_configs,
    fetch,
    find_coordinator,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
)
from ottla.server import api


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    count_steps(monkeypatch)


@pytest.fixture(scope="module")
def ready(inside: BrokerThread) -> BrokerThread:
    """With a topic of two partitions, and the coordinators at work."""
    make_ready(inside, LONG.values())
    return inside


# Each way of working in slices is in `make test`, and every request in `make test-long`.
SHORTLY = {
    "Metadata", "Fetch", "OffsetCommit", "DeleteRecordsAt", "CreateTopics", "DescribeGroups",
    "ListGroups",
}  # fmt: skip


def one_of(names: Iterable[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "name",
        [pytest.param(each, marks=() if each in SHORTLY else pytest.mark.long) for each in names],
    )


@one_of(LONG)
@pytest.mark.usefixtures("counted")
def test_the_loop_has_its_turn_after_every_slice(ready: BrokerThread, name: str) -> None:
    make, kind, version = LONG[name]
    with ready.wire() as wire, Turns(ready) as seen:
        response = wire.call(make(MANY), kind, version)
    # DescribeLogDirs answers what there is, of very much that is asked for.
    if name != "DescribeLogDirs":
        assert entries_of(response) >= MANY
    # However long the request, a turn is never longer than this.
    assert seen.longest < LONGEST
    # And it is answered as a short one.
    with ready.wire() as wire:
        short = wire.call(make(7), kind, version)
    assert errors_of(response) == errors_of(short)


@one_of(LONG_QUESTIONS)
@pytest.mark.usefixtures("counted")
def test_the_loop_has_its_turn_in_a_long_question(ready: BrokerThread, name: str) -> None:
    make, kind, version = LONG_QUESTIONS[name]
    with ready.wire() as wire:
        wire.call(make(2), kind, version)  # what is imported on first use is imported now
        with Turns(ready) as seen:
            response = wire.call(make(MANY), kind, version)
        assert seen.longest < LONGEST
        assert errors_of(response) == errors_of(wire.call(make(7), kind, version))


def test_others_are_answered_meanwhile(
    ready: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slice that is over after each step: the long request takes as many turns as it has steps."""
    ticks = itertools.count()
    monkeypatch.setattr(turns, "clock", lambda: float(next(ticks)))
    make, kind, version = LONG["ListOffsets"]
    with ready.wire() as busy, ready.wire() as other:
        busy.send(make(20_000), version)
        for _ in range(20):
            other.call(metadata_request(1), metadata.MetadataResponse, 9)
        assert not ready.run(
            lambda broker: all(each.idle for each in broker.reactor.connections)
        ), "the long request was over first"
        busy.receive(kind, version)


def test_one_topic_is_described_once(ready: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    from ottla.server.handlers.configuration import describe_configs as handler

    described: list[object] = []
    original = handler.describe_topic

    def describe(*arguments: Any) -> Any:
        described.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(handler, "describe_topic", describe)
    resource = describe_configs.DescribeConfigsResource(
        resource_type=2, resource_name=T, configuration_keys=["retention.ms"]
    )
    request = describe_configs.DescribeConfigsRequest(resources=[resource] * 1000)
    with ready.wire() as wire:
        response = wire.call(request, describe_configs.DescribeConfigsResponse, 4)
    assert len(response.results) == 1000
    assert {each.configs[0].name for each in response.results} == {"retention.ms"}
    assert len(described) == 1


def test_a_response_has_a_largest_size(
    ready: BrokerThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(api, "LARGEST_RESPONSE", 1 << 20)
    resource = describe_configs.DescribeConfigsResource(
        resource_type=2, resource_name=T, configuration_keys=None
    )
    request = describe_configs.DescribeConfigsRequest(resources=[resource] * 2000)
    with ready.wire() as wire:
        wire.send(request, 4)
        assert wire.is_closed()
    assert "response given up: api=DESCRIBE_CONFIGS" in caplog.text
    with ready.wire() as wire:
        wire.call(metadata_request(1), metadata.MetadataResponse, 9)


def test_a_request_has_a_largest_number_ofentries_of(
    ready: BrokerThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(api, "MOST_ENTRIES", 2000)
    make, _, version = LONG["Metadata"]
    with ready.wire() as wire:
        wire.send(make(3000), version)
        assert wire.is_closed()
    assert "too many entries" in caplog.text


def test_a_malformed_long_request(ready: BrokerThread, caplog: pytest.LogCaptureFixture) -> None:
    make, _, version = LONG["Metadata"]
    with ready.wire() as wire:
        frame = bytearray(wire.encode(make(3000), version))
        # A name that claims to be longer than the frame.
        frame[25] = 0xFF
        frame[26] = 0xFF
        wire.send_raw(bytes(frame))
        assert wire.is_closed()
    assert "malformed request" in caplog.text


def test_whoever_hangs_up_is_not_worked_for(
    ready: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(turns, "clock", lambda: float(next(ticks)))
    make, _, version = LONG["ListOffsets"]
    with ready.wire() as wire:
        wire.send(make(20_000), version)
    ready.until(lambda broker: not broker.reactor.connections)
    ready.until(lambda broker: broker.reactor.partial_bytes == 0)


# Duplicates -------------------------------------------------------------------------------------
# Each of these was asked of Apache Kafka 4.3.1, which gave the same answer.


def test_fetch_reads_what_is_named_last(wire: Wire) -> None:
    topic = create_topic(wire, 2)
    request = fetch.FetchRequest(
        max_wait_ms=0,
        session_epoch=-1,
        topics=[
            fetch.FetchTopic(
                topic=topic.name,
                partitions=[
                    fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000),
                    fetch.FetchPartition(partition=0, fetch_offset=77, partition_max_bytes=1000),
                    fetch.FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=1000),
                ],
            )
        ],
    )
    response = wire.call(request, fetch.FetchResponse, 11)
    (answer,) = response.responses
    assert [(each.partition_index, each.error_code) for each in answer.partitions] == [
        (0, ErrorCode.OFFSET_OUT_OF_RANGE),
        (1, ErrorCode.NONE),
    ]


def test_list_offsets_answers_duplicates_once(wire: Wire) -> None:
    topic = create_topic(wire, 2)
    partition = list_offsets.ListOffsetsPartition
    request = list_offsets.ListOffsetsRequest(
        topics=[
            list_offsets.ListOffsetsTopic(
                name=topic.name,
                partitions=[
                    partition(partition_index=0, timestamp=-1),
                    partition(partition_index=0, timestamp=-1),
                    partition(partition_index=1, timestamp=-1),
                ],
            ),
            list_offsets.ListOffsetsTopic(
                name=topic.name, partitions=[partition(partition_index=1, timestamp=-2)]
            ),
        ]
    )
    response = wire.call(request, list_offsets.ListOffsetsResponse, 5)
    (answer,) = response.topics
    assert sorted((each.partition_index, each.error_code) for each in answer.partitions) == [
        (0, ErrorCode.INVALID_REQUEST),
        (1, ErrorCode.INVALID_REQUEST),
    ]


def test_metadata_answers_duplicates_once(wire: Wire) -> None:
    topic = create_topic(wire)
    named = [
        metadata.MetadataRequestTopic(name=name)
        for name in (topic.name, topic.name, "nobody", "nobody", "bad name", "bad name")
    ]
    request = metadata.MetadataRequest(topics=named, allow_auto_topic_creation=False)
    response = wire.call(request, metadata.MetadataResponse, 9)
    assert {each.name: each.error_code for each in response.topics} == {
        topic.name: ErrorCode.NONE,
        "nobody": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    assert len(response.topics) == 3
    identified = [metadata.MetadataRequestTopic(name=None, topic_id=b"1" * 16)] * 2
    request = metadata.MetadataRequest(topics=identified, allow_auto_topic_creation=False)
    response = wire.call(request, metadata.MetadataResponse, 12)
    assert [each.error_code for each in response.topics] == [ErrorCode.UNKNOWN_TOPIC_ID]


def test_delete_records_takes_the_last_and_answers_once(wire: Wire) -> None:
    topic = create_topic(wire, 2)
    partition = delete_records.DeleteRecordsPartition
    request = delete_records.DeleteRecordsRequest(
        topics=[
            delete_records.DeleteRecordsTopic(
                name=topic.name,
                partitions=[
                    partition(partition_index=0, offset=0),
                    partition(partition_index=0, offset=99),
                ],
            ),
            delete_records.DeleteRecordsTopic(
                name=topic.name, partitions=[partition(partition_index=1, offset=0)]
            ),
        ],
        timeout_ms=1000,
    )
    response = wire.call(request, delete_records.DeleteRecordsResponse, 1)
    (answer,) = response.topics
    assert sorted((each.partition_index, each.error_code) for each in answer.partitions) == [
        (0, ErrorCode.OFFSET_OUT_OF_RANGE),
        (1, ErrorCode.NONE),
    ]


@pytest.mark.parametrize("copies", [2, 3000])
def test_commits_and_their_answers(wire: Wire, copies: int) -> None:
    """A short request and one that is reduced first are answered alike."""
    topic = create_topic(wire, 2)
    group = fresh_name("group")
    found = wire.call(
        find_coordinator.FindCoordinatorRequest(coordinator_keys=[group]),
        find_coordinator.FindCoordinatorResponse,
        4,
    )
    assert found.coordinators[0].error_code == 0
    partition = offset_commit.OffsetCommitRequestPartition
    request = offset_commit.OffsetCommitRequest(
        group_id=group,
        topics=[
            offset_commit.OffsetCommitRequestTopic(
                name=topic.name,
                partitions=[
                    *(
                        partition(partition_index=0, committed_offset=each + 1)
                        for each in range(copies)
                    ),
                    partition(partition_index=1, committed_offset=7),
                    partition(partition_index=9, committed_offset=7),
                    partition(partition_index=10, committed_offset=7),
                ],
            ),
            offset_commit.OffsetCommitRequestTopic(
                name="nobody", partitions=[partition(partition_index=0, committed_offset=1)]
            ),
        ],
    )
    response = wire.call(request, offset_commit.OffsetCommitResponse, 7)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    answers = {
        (told.name, each.partition_index): each.error_code
        for told in response.topics
        for each in told.partitions
    }
    assert answers == {
        (topic.name, 0): 0,
        (topic.name, 1): 0,
        (topic.name, 9): unknown,
        (topic.name, 10): unknown,
        ("nobody", 0): unknown,
    }
    assert sum(len(told.partitions) for told in response.topics) == copies + 4
    fetched = wire.call(
        offset_fetch.OffsetFetchRequest(
            group_id=group,
            topics=[
                offset_fetch.OffsetFetchRequestTopic(name=topic.name, partition_indexes=[0, 1])
            ],
        ),
        offset_fetch.OffsetFetchResponse,
        5,
    )
    assert [each.committed_offset for each in fetched.topics[0].partitions] == [copies, 7]


def test_topics_created_and_deleted_in_portions(wire: Wire) -> None:
    stem = fresh_name()
    names = [f"{stem}-{each}" for each in range(1200)]
    twice = names[5]
    request = create_topics.CreateTopicsRequest(
        topics=[
            create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
            for name in [*names, twice]
        ],
        timeout_ms=60_000,
    )
    response = wire.call(request, create_topics.CreateTopicsResponse, 4)
    codes = {each.name: each.error_code for each in response.topics}
    assert len(codes) == len(response.topics) == 1200
    assert codes.pop(twice) == ErrorCode.INVALID_REQUEST
    assert set(codes.values()) == {ErrorCode.NONE}
    deleted = wire.call(
        delete_topics.DeleteTopicsRequest(topic_names=[*names, names[7]], timeout_ms=60_000),
        delete_topics.DeleteTopicsResponse,
        4,
    )
    gone = {each.name: each.error_code for each in deleted.responses}
    assert gone.pop(twice) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert gone.pop(names[7]) == ErrorCode.INVALID_REQUEST
    assert set(gone.values()) == {ErrorCode.NONE}
    wire.call(
        delete_topics.DeleteTopicsRequest(topic_names=[names[7]], timeout_ms=60_000),
        delete_topics.DeleteTopicsResponse,
        4,
    )


def test_too_many_partitions_in_one_request(wire: Wire) -> None:
    stem = fresh_name()
    request = create_topics.CreateTopicsRequest(
        topics=[
            create_topics.CreatableTopic(
                name=f"{stem}-{each}", num_partitions=11, replication_factor=1
            )
            for each in range(1000)
        ],
        timeout_ms=60_000,
    )
    response = wire.call(request, create_topics.CreateTopicsResponse, 4)
    assert {each.error_code for each in response.topics} == {ErrorCode.POLICY_VIOLATION}
    assert len(response.topics) == 1000


def test_a_topic_by_name_and_by_id_in_a_long_request(wire: Wire) -> None:
    topic = create_topic(wire)
    state = delete_topics.DeleteTopicState
    request = delete_topics.DeleteTopicsRequest(
        topics=[
            state(name=topic.name, topic_id=ZERO_UUID),
            *(state(name=f"nobody-{each}", topic_id=ZERO_UUID) for each in range(2000)),
            state(name=None, topic_id=topic.id),
        ],
        timeout_ms=60_000,
    )
    response = wire.call(request, delete_topics.DeleteTopicsResponse, 6)
    codes = {each.name: each.error_code for each in response.responses}
    assert codes[topic.name] == ErrorCode.INVALID_REQUEST
    assert create_topic_exists(wire, topic.name)


def create_topic_exists(wire: Wire, name: str) -> bool:
    request = metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
    )
    return not wire.call(request, metadata.MetadataResponse, 9).topics[0].error_code


@pytest.fixture(autouse=True)
def real_time_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield
    monkeypatch.undo()
