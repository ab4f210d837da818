"""Produce requests are read and responses written by hand; the message classes are the measure."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from ottla import turns
from ottla.protocol.errors import ErrorCode
from ottla.protocol.frame import frame_response
from ottla.protocol.message import MalformedMessage
from ottla.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from ottla.server.handlers.records.produce.answer import (
    frame,
    refusal_piece,
    success_piece,
    topic_piece,
)
from ottla.server.handlers.records.produce.request import (
    FIRST_TOPIC_IDS,
    LongRequest,
    Parts,
    read,
    read_on,
)
from ottla.server.network.connection import MalformedRequest

VERSIONS = range(14)


def a_request(chance: random.Random, version: int) -> ProduceRequest:
    by_id = version >= FIRST_TOPIC_IDS
    topics, partitions = chance.choice(((0, 1), (1, 0), (1, 1), (1, 1), (3, 2), (1, 130), (130, 1)))
    return ProduceRequest(
        transactional_id=chance.choice((None, None, "", "pay", "ü" * 100))
        if version >= 3
        else None,
        acks=chance.choice((-1, 0, 1, 7)),
        timeout_ms=chance.choice((0, 1000, -5, 2**31 - 1)),
        topic_data=[
            TopicProduceData(
                name="" if by_id else "n" * chance.choice((0, 1, 20, 126, 127, 128, 249)),
                topic_id=chance.randbytes(16) if by_id else bytes(16),
                partition_data=[
                    PartitionProduceData(
                        index=chance.choice((0, 3, -1, 2**31 - 1)),
                        records=chance.choice(
                            (
                                None,
                                b"",
                                chance.randbytes(chance.choice((1, 60, 126, 127, 300, 20_000))),
                            )
                        ),
                    )
                    for _ in range(partitions)
                ],
            )
            for _ in range(topics)
        ],
    )


def encoded(request: ProduceRequest, version: int) -> bytes:
    return b"".join(bytes(part) for part in request.encode_parts(version))


def as_read(request: ProduceRequest, version: int) -> tuple[object, ...]:
    return (
        request.transactional_id,
        request.acks,
        request.timeout_ms,
        [
            (
                topic.topic_id if version >= FIRST_TOPIC_IDS else topic.name.encode(),
                [(part.index, bytes(part.records or b"")) for part in topic.partition_data],
            )
            for topic in request.topic_data
        ],
    )


def read_in_steps(view: memoryview, at: int, stop: int, version: int, step: int = 1) -> Parts:
    """With a pause after each entry."""
    unread = None
    while True:
        try:
            request = read(view[at:stop], version, step, unread)
        except LongRequest as long:
            unread = long.unread
        else:
            return shifted(request, at)


def read_at_once(view: memoryview, at: int, stop: int, version: int) -> Parts:
    """As the broker does: what names very many things is read in steps."""
    body = view[at:stop]
    try:
        return shifted(read(body, version), at)
    except LongRequest as long:
        return shifted(turns.at_once(read_on(body, version, long.unread)), at)


def shifted(request: Parts, at: int) -> Parts:
    """With positions in the buffer in which the request begins there."""
    transactional_id, acks, timeout_ms, topics = request
    moved = [
        (key, [(index, start + at, end + at) for index, start, end in parts])
        for key, parts in topics
    ]
    return transactional_id, acks, timeout_ms, moved


Read = Callable[[memoryview, int, int, int], Parts]
BOTH = [read_at_once, read_in_steps]


def found(
    view: memoryview, at: int, stop: int, version: int, read: Read = read_at_once
) -> tuple[object, ...]:
    transactional_id, acks, timeout_ms, topics = read(view, at, stop, version)
    return (
        transactional_id,
        acks,
        timeout_ms,
        [
            (key, [(index, bytes(view[start:end])) for index, start, end in parts])
            for key, parts in topics
        ],
    )


@pytest.mark.parametrize("read", BOTH)
@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_read_is_what_was_written(version: int, read: Read) -> None:
    chance = random.Random(version)
    for _ in range(60):
        request = a_request(chance, version)
        body = encoded(request, version)
        # In the middle of a buffer, with something of others before and after it.
        view = memoryview(b"\x7f" * 5 + body + b"\xff" * 9)
        assert found(view, 5, 5 + len(body), version, read) == as_read(request, version)
        # Bytes after the request are ignored.
        assert found(view, 5, 5 + len(body) + 3, version, read) == as_read(request, version)


@pytest.mark.parametrize("read", BOTH)
@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_damaged_is_refused_or_read_as_the_message_is(version: int, read: Read) -> None:
    chance = random.Random(100 + version)
    small = ProduceRequest(
        transactional_id="id" if version >= 3 else None,
        acks=1,
        timeout_ms=100,
        topic_data=[
            TopicProduceData(
                name="" if version >= FIRST_TOPIC_IDS else name,
                topic_id=name.encode() * 4 if version >= FIRST_TOPIC_IDS else bytes(16),
                partition_data=[
                    PartitionProduceData(index=index, records=b"r" * 150) for index in range(2)
                ],
            )
            for name in ("some", "more")
        ],
    )
    body = encoded(small, version)
    refused = 0
    for _ in range(1500):
        data = bytearray(body)
        if chance.random() < 0.5:
            del data[chance.randrange(len(data)) :]
        for _ in range(chance.randint(0, 2)):
            if data:
                data[chance.randrange(len(data))] = chance.choice((0, 1, 2, 127, 128, 255))
        stop = len(data)
        # What follows belongs to the next request and must not be taken for this one's.
        view = memoryview(bytes(data) + b"\1" * 400)
        try:
            expected = as_read(ProduceRequest.decode(view[:stop], 0, version)[0], version)
        except MalformedMessage:
            refused += 1
            with pytest.raises(MalformedRequest):
                read(view, 0, stop, version)
        else:
            assert found(view, 0, stop, version, read) == expected
    assert refused > 300


@pytest.mark.parametrize("version", VERSIONS)
def test_responses(version: int) -> None:
    by_id = version >= FIRST_TOPIC_IDS
    keys = [b"a" * (16 if by_id else 126), b"b" * (16 if by_id else 127)]
    responses = []
    pieces = []
    for key in keys:
        pieces.append(topic_piece(version, key, 3, 0 if pieces else len(keys)))
        pieces += (
            success_piece(version, 5, 1 << 40, 17, 3),
            refusal_piece(version, 6, ErrorCode.INVALID_RECORD, "wörds", [(2, "bad"), (3, None)]),
            refusal_piece(version, 7, ErrorCode.NOT_LEADER_OR_FOLLOWER, leader=(4, 9)),
        )
        responses.append(
            TopicProduceResponse(
                name="" if by_id else key.decode(),
                topic_id=key if by_id else bytes(16),
                partition_responses=[
                    PartitionProduceResponse(
                        index=5, base_offset=1 << 40, log_append_time_ms=17, log_start_offset=3
                    ),
                    PartitionProduceResponse(
                        index=6,
                        error_code=ErrorCode.INVALID_RECORD,
                        base_offset=-1,
                        error_message="wörds",
                        record_errors=[
                            BatchIndexAndErrorMessage(
                                batch_index=2, batch_index_error_message="bad"
                            ),
                            BatchIndexAndErrorMessage(batch_index=3),
                        ],
                    ),
                    PartitionProduceResponse(
                        index=7,
                        error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
                        base_offset=-1,
                        current_leader=LeaderIdAndEpoch(leader_id=4, leader_epoch=9)
                        if version >= 10
                        else None,
                    ),
                ],
            )
        )
    nodes = [(4, "host", 9092, None), (5, "other", 9093, "rack")]
    expected = ProduceResponse(
        responses=responses,
        node_endpoints=[
            NodeEndpoint(node_id=node, host=host, port=port, rack=rack)
            for node, host, port, rack in nodes
        ]
        if version >= 10
        else [],
    )
    assert frame(version, 77, pieces, nodes) == frame_response(expected, version, 77)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_without_topics(version: int) -> None:
    expected = frame_response(ProduceResponse(responses=[]), version, 77)
    assert frame(version, 77, []) == expected
