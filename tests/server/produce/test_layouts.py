"""Requests are read and answers written by hand: they must be what the message classes say."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import Topic, batch_of, create_topic, end_offset, produce_request, versions_of
from server_kit.wire import Wire

from ottla.protocol.errors import ErrorCode
from ottla.protocol.frame import frame_response
from ottla.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.server.handlers.records.produce import appending
from ottla.server.handlers.records.produce import handler as produce_handler

FORMAT_2 = versions_of(ProduceRequest, first=3)
# Around the longest name whose length is one byte of a varint (126), and the longest there is.
LENGTHS = [1, 125, 126, 127, 128, 249]


@pytest.fixture(autouse=True)
def quick_disk(inside: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not make the broker take its disk for a slow one."""
    for module in (produce_handler, appending):
        monkeypatch.setattr(module, "SLOW_WRITE_SECONDS", float("inf"))
    inside.run(lambda broker: broker.lanes.slow.clear())


def expected(topic: Topic, index: int, offset: int, append_time: int, version: int) -> bytes:
    response = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.id,
                partition_responses=[
                    PartitionProduceResponse(
                        index=index,
                        base_offset=offset,
                        log_append_time_ms=append_time,
                        log_start_offset=0,
                    )
                ],
            )
        ]
    )
    return frame_response(response, version, 77)[4:]


def ask(wire: Wire, topic: Topic, index: int, version: int) -> bytes:
    wire._correlation_id = 76
    wire.send(produce_request(topic, (index, batch_of(b"a", b"b"))), version)
    return wire.frame()


@pytest.mark.parametrize("version", FORMAT_2)
@pytest.mark.parametrize("length", LENGTHS)
def test_every_name_and_version(
    inside: BrokerThread, wire: Wire, version: int, length: int
) -> None:
    topic = create_topic(wire, partitions=3, name=chr(97 + version) * length)
    for index, offset in ((0, 0), (2, 0), (2, 2)):
        assert ask(wire, topic, index, version) == expected(topic, index, offset, -1, version)


@pytest.mark.parametrize("version", FORMAT_2)
def test_log_append_time(inside: BrokerThread, wire: Wire, version: int) -> None:
    topic = create_topic(wire, message_timestamp_type="LogAppendTime")
    frame = ask(wire, topic, 0, version)
    decoded, _ = ProduceResponse.decode(frame, 5 if version >= 9 else 4, version)
    stamped = decoded.responses[0].partition_responses[0].log_append_time_ms
    assert stamped > 0
    assert frame == expected(topic, 0, 0, stamped, version)


@pytest.mark.parametrize("version", FORMAT_2)
def test_topics_that_need_a_closer_look_answer_alike(
    inside: BrokerThread, wire: Wire, version: int
) -> None:
    topic = create_topic(wire)
    assert ask(wire, topic, 0, version) == expected(topic, 0, 0, -1, version)

    def force(broker: object) -> None:
        inside.broker.partitions.by_name[topic.name][0].open_to_clients = False

    inside.run(force)
    assert ask(wire, topic, 0, version) == expected(topic, 0, 2, -1, version)


@pytest.mark.parametrize("version", [9, 12, 13])
def test_tagged_fields_are_skipped(inside: BrokerThread, wire: Wire, version: int) -> None:
    """A client may add tagged fields that nobody knows, at any level."""
    topic = create_topic(wire)
    frame = wire.encode(produce_request(topic, (0, batch_of(b"a"))), version)
    unknown = b"\x01\x63\x02hi"
    with_tags = frame[:-3] + unknown * 3
    wire.send_raw((len(with_tags) - 4).to_bytes(4, "big") + with_tags[4:])
    answer = wire.receive(ProduceResponse, version).responses[0].partition_responses[0]
    assert (answer.error_code, answer.base_offset) == (0, 0)


@pytest.mark.parametrize("version", FORMAT_2)
def test_bytes_behind_the_request_are_ignored(
    inside: BrokerThread, wire: Wire, version: int
) -> None:
    topic = create_topic(wire)
    frame = wire.encode(produce_request(topic, (0, batch_of(b"a"))), version) + b"\0"
    wire.send_raw((len(frame) - 4).to_bytes(4, "big") + frame[4:])
    answer = wire.receive(ProduceResponse, version).responses[0].partition_responses[0]
    assert (answer.error_code, answer.base_offset) == (0, 0)
    assert end_offset(wire, topic) == 1


def many(topics: list[Topic], partitions: list[list[int]], offset: int, version: int) -> bytes:
    response = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.id,
                partition_responses=[
                    PartitionProduceResponse(
                        index=index, base_offset=offset, log_append_time_ms=-1, log_start_offset=0
                    )
                    for index in indexes
                ],
            )
            for topic, indexes in zip(topics, partitions, strict=True)
        ]
    )
    return frame_response(response, version, 77)[4:]


def ask_many(
    wire: Wire, topics: list[Topic], partitions: list[list[int]], version: int, *, spoilt: int = -1
) -> bytes:
    """A batch of two records for each; the batch of the partition `spoilt` has a wrong checksum."""
    request = produce_request(topics[0])
    request.topic_data.clear()
    for topic, indexes in zip(topics, partitions, strict=True):
        parts = []
        for index in indexes:
            batch = bytearray(batch_of(b"a", b"b"))
            if index == spoilt:
                batch[-1] ^= 1
            parts.append((index, bytes(batch)))
        request.topic_data += produce_request(topic, *parts).topic_data
    wire._correlation_id = 76
    wire.send(request, version)
    return wire.frame()


@pytest.mark.parametrize("version", FORMAT_2)
def test_several_partitions_of_several_topics(
    inside: BrokerThread, wire: Wire, version: int
) -> None:
    topics = [create_topic(wire, partitions=150), create_topic(wire, partitions=3)]
    partitions = [list(range(149, -1, -1)), [2, 0]]
    assert ask_many(wire, topics, partitions, version) == many(topics, partitions, 0, version)
    assert ask_many(wire, topics, partitions, version) == many(topics, partitions, 2, version)
    assert end_offset(wire, topics[1], 1) == 0


@pytest.mark.parametrize("version", FORMAT_2)
def test_a_refused_part_leaves_the_others_alone(
    inside: BrokerThread, wire: Wire, version: int
) -> None:
    """The parts before a refused one are in the log once, those after it are appended too."""
    topic = create_topic(wire, partitions=5)
    frame = ask_many(wire, [topic], [[0, 1, 2, 3, 9]], version, spoilt=2)
    decoded, _ = ProduceResponse.decode(frame, 5 if version >= 9 else 4, version)
    answers = decoded.responses[0].partition_responses
    assert [(a.index, a.error_code, a.base_offset) for a in answers] == [
        (0, 0, 0),
        (1, 0, 0),
        (2, ErrorCode.CORRUPT_MESSAGE, -1),
        (3, 0, 0),
        (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
    ]
    assert [end_offset(wire, topic, index) for index in range(5)] == [2, 2, 0, 2, 0]


@pytest.mark.parametrize("version", [3, 8, 9, 13])
def test_a_request_cut_short_anywhere(
    inside: BrokerThread, wire: Wire, connect: Callable[[], Wire], version: int
) -> None:
    """Whatever is missing, it is no batch of another partition, and the broker lives on."""
    topic = create_topic(wire, partitions=3)
    request = produce_request(topic, *((index, batch_of(b"a")) for index in range(3)))
    frame = wire.encode(request, version)
    for length in range(20, len(frame) - 1, 7):
        other = connect()
        other.send_raw((length - 4).to_bytes(4, "big") + frame[4:length])
        with pytest.raises((ConnectionError, EOFError)):
            other.frame()
    assert [end_offset(wire, topic, index) for index in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("version", FORMAT_2)
def test_records_that_are_shorter_than_a_batch(wire: Wire, topic: Topic, version: int) -> None:
    """A batch that ends too early is refused, at whatever byte; the connection goes on."""
    wire.call(produce_request(topic, (0, batch_of(b"a"))), ProduceResponse, version)
    whole = batch_of(b"b")
    for length in range(1, len(whole)):
        request = produce_request(topic, (0, whole[:length]))
        answer = wire.call(request, ProduceResponse, version)
        (refusal,) = answer.responses[0].partition_responses
        assert refusal.error_code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD), length
    assert end_offset(wire, topic) == 1
