"""Fetch requests that repeat the one before them: read as if they were decoded."""

from __future__ import annotations

import random

import pytest
from server_kit.calls import batch_of, create_topic, fetch_request, fill, values_of
from server_kit.wire import Wire

from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from ottla.server.api import decode_request
from ottla.server.handlers.records.fetch.repeated import repeatable

VERSIONS = [15, 18]
AT = 5  # where requests begin in the buffers below


def request_of(version: int, partitions: int = 1, **changes: object) -> FetchRequest:
    """A follower's request, or a consumer's where its version cannot be a follower's."""
    places = [
        FetchPartition(
            partition=index,
            current_leader_epoch=3,
            fetch_offset=1000,
            last_fetched_epoch=3,
            log_start_offset=7,
            partition_max_bytes=1 << 20,
        )
        for index in range(partitions)
    ]
    topic = FetchTopic(topic_id=bytes(range(16)), partitions=places)
    if version < 13:
        topic = FetchTopic(topic="topic", partitions=places)
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=10 << 20,
        session_id=77,
        session_epoch=9,
        topics=[topic],
        forgotten_topics_data=[],
        rack_id="here",
    )
    if version >= 15:
        request.replica_state = ReplicaState(replica_id=2, replica_epoch=12)
    for name, value in changes.items():
        setattr(request, name, value)
    return request


def encoded(request: FetchRequest, version: int) -> memoryview:
    body = b"".join(bytes(part) for part in request.encode_parts(version))
    return memoryview(b"x" * AT + body + b"rest")


def decoded(view: memoryview, version: int) -> FetchRequest:
    return decode_request(FetchRequest, view, AT, len(view) - 4, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_place_is_read_anew(version: int) -> None:
    view = encoded(request_of(version), version)
    known = repeatable(view, AT, len(view) - 4, version, decoded(view, version))
    assert known is not None
    for epoch, offset in ((10, 1001), (0x7FFFFFFF, (1 << 63) - 1), (0, -1), (-1, 0)):
        again = request_of(version, session_epoch=epoch)
        again.topics[0].partitions[0].fetch_offset = offset
        view = encoded(again, version)
        assert known.read(view, AT, len(view) - 4, version) == decoded(view, version)
    assert known.read(view, AT, len(view) - 4, version - 1) is None
    assert known.read(view, AT, len(view) - 5, version) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_any_other_difference_has_to_be_decoded(version: int) -> None:
    """Every byte of a request is changed in turn: it is read as the decoder reads it, or not at all."""
    view = encoded(request_of(version), version)
    stop = len(view) - 4
    random_ = random.Random(version)
    read = 0
    for at in range(AT, stop):
        known = repeatable(view, AT, stop, version, decoded(view, version))
        assert known is not None
        changed = bytearray(view)
        changed[at] ^= random_.randrange(1, 256)
        found = known.read(memoryview(changed), AT, stop, version)
        if found is not None:
            read += 1
            assert found == decoded(memoryview(changed), version)
    assert read == 12  # the bytes of the epoch and of the offset


@pytest.mark.parametrize(
    ("version", "changes"),
    [
        (12, {}),
        (14, {}),  # the replica stands elsewhere
        (18, {"partitions": 2}),
        (18, {"topics": []}),
        (18, {"session_epoch": 0}),
        (18, {"session_epoch": -1}),
    ],
)
def test_requests_of_other_kinds_are_not_kept(version: int, changes: dict[str, int]) -> None:
    view = encoded(request_of(version, **changes), version)
    assert repeatable(view, AT, len(view) - 4, version, decoded(view, version)) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_consumer_of_one_partition_reads_on(wire: Wire, version: int) -> None:
    topic = create_topic(wire, partitions=2)
    opened = wire.call(fetch_request(topic, (0, 0), (1, 0), session=(0, 0)), FetchResponse, version)
    seen: list[bytes | None] = []
    for number in range(20):
        fill(wire, topic, batch_of(b"%d" % number), index=0)
        request = fetch_request(topic, (0, number), session=(opened.session_id, number + 1))
        response = wire.call(request, FetchResponse, version)
        ((answer,),) = (each.partitions for each in response.responses)
        assert answer.partition_index == 0
        seen += values_of(answer.records)
    assert seen == [b"%d" % number for number in range(20)]
    # What is not like it comes in between, and then the same again.
    request = fetch_request(topic, (0, 18), session=(opened.session_id, 21))
    request.forgotten_topics_data = [
        ForgottenTopic(topic=topic.name, topic_id=topic.id, partitions=[1])
    ]
    assert wire.call(request, FetchResponse, version).responses
    request = fetch_request(topic, (0, 19), session=(opened.session_id, 22))
    response = wire.call(request, FetchResponse, version)
    assert values_of(response.responses[0].partitions[0].records) == [b"19"]
    # An epoch that is out of turn is refused, and the next one in turn is not.
    request = fetch_request(topic, (0, 20), session=(opened.session_id, 22))
    assert wire.call(request, FetchResponse, version).error_code == 71
    request = fetch_request(topic, (0, 19), session=(opened.session_id, 23))
    response = wire.call(request, FetchResponse, version)
    assert values_of(response.responses[0].partitions[0].records) == [b"19"]
