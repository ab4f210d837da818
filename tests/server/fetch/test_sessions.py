"""Fetch sessions: created, followed, forgotten, refused, given up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import Topic, batch_of, create_topic, fetch_request, fill, values_of
from server_kit.wire import Wire

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchResponse, ForgottenTopic
from ottla.server import sessions as sessions_module

VERSIONS = [7, 11, 12, 13, 18]


def told(response: FetchResponse) -> dict[int, list[bytes | None]]:
    """Partition -> the values it came with."""
    assert response.error_code == 0
    return {
        each.partition_index: values_of(each.records)
        for topic in response.responses
        for each in topic.partitions
    }


def open_session(wire: Wire, topic: Topic, version: int, partitions: int) -> int:
    positions = [(index, 0) for index in range(partitions)]
    response = wire.call(fetch_request(topic, *positions, session=(0, 0)), FetchResponse, version)
    assert response.session_id > 0
    assert told(response) == {index: [] for index in range(partitions)}
    return response.session_id


@pytest.mark.parametrize("version", VERSIONS)
def test_only_news_is_told(wire: Wire, version: int) -> None:
    topic = create_topic(wire, partitions=3)
    session = open_session(wire, topic, version, 3)

    def follow(epoch: int, *changed: tuple[int, int]) -> dict[int, list[bytes | None]]:
        request = fetch_request(topic, *changed, session=(session, epoch))
        response = wire.call(request, FetchResponse, version)
        assert response.session_id == session
        return told(response)

    assert follow(1) == {}
    fill(wire, topic, batch_of(b"a"), index=1)
    assert follow(2) == {1: [b"a"]}
    # Its position was not moved, so it comes again.
    assert follow(3) == {1: [b"a"]}
    assert follow(4, (1, 1)) == {}
    fill(wire, topic, batch_of(b"b"), index=2)
    fill(wire, topic, batch_of(b"c"), index=0)
    assert follow(5, (1, 1)) == {0: [b"c"], 2: [b"b"]}


@pytest.mark.parametrize("version", VERSIONS)
def test_partitions_are_added_and_forgotten(wire: Wire, version: int) -> None:
    topic = create_topic(wire, partitions=3)
    session = open_session(wire, topic, version, 1)
    for index in range(3):
        fill(wire, topic, batch_of(b"%d" % index), index=index)
    response = wire.call(fetch_request(topic, (2, 0), session=(session, 1)), FetchResponse, version)
    assert told(response) == {0: [b"0"], 2: [b"2"]}
    request = fetch_request(topic, session=(session, 2))
    request.forgotten_topics_data = [
        ForgottenTopic(topic=topic.name, topic_id=topic.id, partitions=[0])
    ]
    assert told(wire.call(request, FetchResponse, version)) == {2: [b"2"]}
    # Forgotten and named anew.
    request = fetch_request(topic, (0, 0), session=(session, 3))
    assert told(wire.call(request, FetchResponse, version)) == {0: [b"0"], 2: [b"2"]}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_high_watermark_that_moved_is_news(wire: Wire, version: int) -> None:
    """The reader stands at the old end; only max_bytes keeps the data from it."""
    topic = create_topic(wire, partitions=2)
    session = open_session(wire, topic, version, 2)
    fill(wire, topic, batch_of(b"x" * 500), index=0)
    fill(wire, topic, batch_of(b"y" * 500), index=1)
    request = fetch_request(topic, session=(session, 1), max_bytes=10)
    response = wire.call(request, FetchResponse, version)
    by_index = {each.partition_index: each for each in response.responses[0].partitions}
    assert by_index[0].high_watermark == 1
    assert by_index[1].high_watermark == 1
    assert sorted(len(values_of(each.records)) for each in by_index.values()) == [0, 1]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_busy_partition_does_not_starve_the_others(wire: Wire, version: int) -> None:
    topic = create_topic(wire, partitions=3)
    session = open_session(wire, topic, version, 3)
    for index in range(3):
        fill(wire, topic, batch_of(b"x" * 500), batch_of(b"y" * 500), index=index)
    served = []
    for epoch in range(1, 4):
        request = fetch_request(topic, session=(session, epoch), max_bytes=10)
        with_data = [
            index
            for index, values in told(wire.call(request, FetchResponse, version)).items()
            if values
        ]
        served += with_data
    assert sorted(served) == [0, 1, 2]


@pytest.mark.parametrize("version", VERSIONS)
def test_news_behind_a_response_that_is_full(wire: Wire, version: int) -> None:
    """Of partitions that there is no room for, all is told but their records; and nothing twice."""
    topic = create_topic(wire, partitions=4)
    session = open_session(wire, topic, version, 4)
    for index in range(4):
        fill(wire, topic, batch_of(b"x" * 500), batch_of(b"y" * 500), index=index)

    def follow(epoch: int, *changed: tuple[int, int]) -> dict[int, tuple[int, int, int]]:
        request = fetch_request(topic, *changed, session=(session, epoch), max_bytes=10)
        response = wire.call(request, FetchResponse, version)
        return {
            each.partition_index: (each.error_code, each.high_watermark, len(each.records or b""))
            for topic in response.responses
            for each in topic.partitions
        }

    size = len(batch_of(b"x" * 500))
    assert follow(1) == {0: (0, 2, size), 1: (0, 2, 0), 2: (0, 2, 0), 3: (0, 2, 0)}
    assert follow(2) == {1: (0, 2, size)}
    # One position is out of range, one at the end; one log grew.
    fill(wire, topic, batch_of(b"z"), index=0)
    out_of_range = (int(ErrorCode.OFFSET_OUT_OF_RANGE), -1, 0)
    assert follow(3, (1, 99), (3, 2)) == {2: (0, 2, size), 0: (0, 3, 0), 1: out_of_range}


@pytest.mark.parametrize("version", VERSIONS)
def test_errors_are_told_each_time(wire: Wire, version: int) -> None:
    topic = create_topic(wire, partitions=1)
    session = open_session(wire, topic, version, 1)
    request = fetch_request(topic, (0, 99), session=(session, 1))
    response = wire.call(request, FetchResponse, version)
    assert response.responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    response = wire.call(fetch_request(topic, session=(session, 2)), FetchResponse, version)
    assert response.responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    response = wire.call(fetch_request(topic, (0, 0), session=(session, 3)), FetchResponse, version)
    assert response.responses[0].partitions[0].error_code == 0
    response = wire.call(fetch_request(topic, session=(session, 4)), FetchResponse, version)
    assert response.responses == []


@pytest.mark.parametrize("version", VERSIONS)
def test_unknown_session(wire: Wire, topic: Topic, version: int) -> None:
    response = wire.call(fetch_request(topic, session=(123456, 1)), FetchResponse, version)
    assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (response.session_id, response.responses) == (0, [])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("epoch", [2, 5, 2**31 - 1, -7])
def test_wrong_epoch(wire: Wire, topic: Topic, version: int, epoch: int) -> None:
    session = open_session(wire, topic, version, 1)
    response = wire.call(fetch_request(topic, session=(session, epoch)), FetchResponse, version)
    assert response.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert response.responses == []
    # The session is as it was.
    response = wire.call(fetch_request(topic, session=(session, 1)), FetchResponse, version)
    assert response.error_code == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_closing(wire: Wire, topic: Topic, version: int) -> None:
    session = open_session(wire, topic, version, 1)
    fill(wire, topic, batch_of(b"a"))
    response = wire.call(
        fetch_request(topic, (0, 0), session=(session, -1)), FetchResponse, version
    )
    assert response.session_id == 0
    assert told(response) == {0: [b"a"]}
    response = wire.call(fetch_request(topic, session=(session, 1)), FetchResponse, version)
    assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("version", VERSIONS)
def test_a_new_session_replaces_the_old_one(wire: Wire, topic: Topic, version: int) -> None:
    first = open_session(wire, topic, version, 1)
    response = wire.call(fetch_request(topic, (0, 0), session=(first, 0)), FetchResponse, version)
    assert response.error_code == 0
    assert response.session_id not in (0, first)
    gone = wire.call(fetch_request(topic, session=(first, 1)), FetchResponse, version)
    assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_names_and_ids_do_not_mix(wire: Wire, topic: Topic) -> None:
    session = open_session(wire, topic, 12, 1)
    response = wire.call(fetch_request(topic, session=(session, 1)), FetchResponse, 13)
    assert response.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    session = open_session(wire, topic, 13, 1)
    response = wire.call(fetch_request(topic, session=(session, 1)), FetchResponse, 12)
    assert response.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


@pytest.mark.differs("Kafka answers UNSUPPORTED_VERSION")
def test_versions_do_mix(wire: Wire, topic: Topic) -> None:
    """What a later version told of a partition must not break an answer in an earlier one."""
    fill(wire, topic, batch_of(b"a"))
    request = fetch_request(topic, (0, 0), session=(0, 0), last_fetched_epoch=0)
    session = wire.call(request, FetchResponse, 12).session_id
    request = fetch_request(topic, (0, 9), session=(session, 1), last_fetched_epoch=0)
    diverged = wire.call(request, FetchResponse, 12).responses[0].partitions[0]
    assert diverged.diverging_epoch is not None
    response = wire.call(fetch_request(topic, session=(session, 2)), FetchResponse, 11)
    assert response.error_code == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_waits_for_all_its_partitions(
    wire: Wire, connect: Callable[[], Wire], version: int
) -> None:
    topic = create_topic(wire, partitions=3)
    waiting = connect()
    session = open_session(waiting, topic, version, 3)
    waiting.send(fetch_request(topic, session=(session, 1), max_wait_ms=600_000), version)
    fill(wire, topic, batch_of(b"woken"), index=2)
    assert told(waiting.receive(FetchResponse, version)) == {2: [b"woken"]}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_that_waits_for_more_than_the_first_news(
    inside: BrokerThread, wire: Wire, connect: Callable[[], Wire], version: int
) -> None:
    topic = create_topic(wire, partitions=4)
    waiting = connect()
    session = open_session(waiting, topic, version, 4)
    batch = batch_of(b"x" * 100)
    request = fetch_request(
        topic, session=(session, 1), max_wait_ms=600_000, min_bytes=3 * len(batch)
    )
    waiting.send(request, version)
    inside.until(lambda broker: len(broker.waiting_fetches) == 1)
    # Three of them are not enough.
    fill(wire, topic, batch, index=2)
    fill(wire, topic, batch_of(b"y" * 90), index=0)
    fill(wire, topic, batch_of(b"z" * 50), index=2)
    assert inside.run(lambda broker: len(broker.waiting_fetches)) == 1
    fill(wire, topic, batch_of(b"z" * 90), index=3)
    assert told(waiting.receive(FetchResponse, version)) == {
        0: [b"y" * 90],
        2: [b"x" * 100, b"z" * 50],
        3: [b"z" * 90],
    }
    # And it goes on with all of them.
    moved = [(0, 1), (2, 2), (3, 1)]
    request = fetch_request(topic, *moved, session=(session, 2), max_wait_ms=600_000)
    waiting.send(request, version)
    inside.until(lambda broker: len(broker.waiting_fetches) == 1)
    fill(wire, topic, batch_of(b"woken"), index=1)
    assert told(waiting.receive(FetchResponse, version)) == {1: [b"woken"]}


def test_a_topic_that_is_deleted_and_made_again(
    inside: BrokerThread, wire: Wire, topic: Topic
) -> None:
    from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse

    fill(wire, topic, batch_of(b"old"))
    by_name = wire.call(fetch_request(topic, (0, 1), session=(0, 0)), FetchResponse, 12).session_id
    by_id = wire.call(fetch_request(topic, (0, 1), session=(0, 0)), FetchResponse, 13).session_id
    wire.call(DeleteTopicsRequest(topic_names=[topic.name]), DeleteTopicsResponse, 1)
    response = wire.call(fetch_request(topic, session=(by_name, 1)), FetchResponse, 12)
    assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    create_topic(wire, name=topic.name)
    response = wire.call(fetch_request(topic, session=(by_name, 2)), FetchResponse, 12)
    assert response.responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    response = wire.call(fetch_request(topic, session=(by_id, 1)), FetchResponse, 13)
    assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


# How many there may be --------------------------------------------------------------------------


def test_when_all_slots_are_taken(start_broker: Callable[..., BrokerThread]) -> None:
    """Newcomers are served without a session; one that was idle for long gives way."""
    broker = start_broker(settings={"max.incremental.fetch.session.cache.slots": "2"})
    with broker.wire() as wire:
        topic = create_topic(wire)
        first, second = (open_session(wire, topic, 12, 1) for _ in "12")
        response = wire.call(fetch_request(topic, (0, 0), session=(0, 0)), FetchResponse, 12)
        assert (response.error_code, response.session_id) == (0, 0)
        assert told(response) == {0: []}

        def age(_: object) -> None:
            session = broker.broker.sessions._sessions[first]
            session.used_at -= sessions_module.EVICTION_SECONDS + 1

        broker.run(age)
        third = open_session(wire, topic, 12, 1)
        gone = wire.call(fetch_request(topic, session=(first, 1)), FetchResponse, 12)
        assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        for session in (second, third):
            response = wire.call(fetch_request(topic, session=(session, 1)), FetchResponse, 12)
            assert response.error_code == 0


def test_no_slots_at_all(start_broker: Callable[..., BrokerThread]) -> None:
    broker = start_broker(settings={"max.incremental.fetch.session.cache.slots": "0"})
    with broker.wire() as wire:
        topic = create_topic(wire)
        response = wire.call(fetch_request(topic, (0, 0), session=(0, 0)), FetchResponse, 12)
        assert (response.error_code, response.session_id) == (0, 0)


def test_epochs_wrap(inside: BrokerThread, wire: Wire, topic: Topic) -> None:
    session = open_session(wire, topic, 12, 1)

    def jump(_: object) -> None:
        inside.broker.sessions._sessions[session].epoch = 2**31 - 1

    inside.run(jump)
    for epoch in (2**31 - 1, 1, 2):
        response = wire.call(fetch_request(topic, session=(session, epoch)), FetchResponse, 12)
        assert response.error_code == 0


def test_positions_that_did_not_move_are_noted_now_and_then() -> None:
    session = sessions_module.FetchSession(1, 0.0, by_id=True)
    every = sessions_module.NOTE_ALL_MS
    assert session.is_time_to_note_all(0)  # the first request names all
    assert not session.is_time_to_note_all(every - 1)
    assert session.is_time_to_note_all(every)
    assert not session.is_time_to_note_all(every + 1)
