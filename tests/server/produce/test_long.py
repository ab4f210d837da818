"""Produce requests that name very many partitions are worked on in steps, and otherwise as all others.

Where every request is taken for such a long one, nothing else may change.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from server_kit.access import guarded_settings
from server_kit.broker_thread import BrokerThread
from server_kit.calls import (
    Topic,
    batch_of,
    create_topic,
    end_offset,
    fresh_name,
    produce_request,
    versions_of,
)
from server_kit.long_requests import LONGEST, Turns, count_steps
from server_kit.security import authenticate
from server_kit.wire import Wire

from ottla import Consumer, Producer
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.server.handlers.records.produce import request as layout
from ottla.server.handlers.records.produce.answer import topic_piece
from ottla.server.handlers.records.produce.long import LongProduce
from ottla.server.network.connection import MalformedRequest
from ottla.server.observability import limited_log
from ottla.wire.sasl import Plain

VERSIONS = versions_of(ProduceRequest, first=3)


@pytest.fixture
def all_are_long(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[LongProduce]]:
    """Those that were worked on in steps."""
    seen: list[LongProduce] = []
    begin = LongProduce.begin

    def noted(self: LongProduce) -> None:
        seen.append(self)
        begin(self)

    monkeypatch.setattr(layout, "MANY", 0)
    monkeypatch.setattr(LongProduce, "begin", noted)
    yield seen
    assert seen


def of_many(topics: Any, acks: int = 1) -> ProduceRequest:
    return ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        topic_data=[
            TopicProduceData(
                name=topic.name,
                topic_id=topic.id,
                partition_data=[
                    PartitionProduceData(index=index, records=records) for index, records in parts
                ],
            )
            for topic, parts in topics
        ],
    )


# Reading ----------------------------------------------------------------------------------------


def read_in_steps(view: memoryview, version: int, step: int = 1) -> Any:
    """The request, read so many entries at a time; each time it goes on where it stopped. It does not
    stop before a topic."""
    unread = None
    while True:
        before = unread
        try:
            return layout.read(view, version, step, before)
        except layout.LongRequest as long:
            unread = long.unread
        assert 0 < unread.entries - (before.entries if before else 0) <= step + 1


def result_of(read: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return read(*arguments)
    except MalformedRequest:
        return MalformedRequest


@pytest.mark.parametrize("version", range(14))
def test_it_is_read_as_the_others_are(version: int) -> None:
    long = Topic("x" * 200, b"i" * 16)
    odd = Topic("t\N{LATIN SMALL LETTER O WITH DIAERESIS}pic", b"j" * 16)
    for transactional_id, topics in itertools.product(
        (None, "an id") if version >= 3 else (None,),
        (
            [],
            [(long, [])],
            [(odd, [(0, b"r" * 300), (1, b""), (-1, None), (70_000, b"s")]), (long, [(5, b"t")])],
        ),
    ):
        request = of_many(topics, acks=-1)
        request.transactional_id = transactional_id
        whole = memoryview(request.encode(version))
        found = layout.read(whole, version)
        for step in range(1, 8):
            assert read_in_steps(whole, version, step) == found
        assert [len(parts) for _, parts in found[3]] == [len(parts) for _, parts in topics]
        for end in range(len(whole)):
            cut = whole[:end]
            expected = result_of(layout.read, cut, version)
            assert result_of(read_in_steps, cut, version) == expected


def test_what_is_read_at_once_is_bounded() -> None:
    topic = Topic("t", bytes(16))
    for topics in (
        [(topic, [])] * 3_000,
        [(topic, [(0, None)] * 3_000)],
        [(topic, [(0, None)] * 50)] * 60,
    ):
        for version in (8, 12):
            body = memoryview(of_many(topics).encode(version))
            with pytest.raises(layout.LongRequest):
                layout.read(body, version)


def test_there_is_an_end_of_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "MOST_ENTRIES", 100)
    topic = Topic("t", bytes(16))
    body = memoryview(of_many([(topic, [(0, None)] * 101)]).encode(9))
    with pytest.raises(MalformedRequest, match="too many entries"):
        read_in_steps(body, 9)
    body = memoryview(of_many([(topic, [])] * 101).encode(9))
    with pytest.raises(MalformedRequest, match="too many entries"):
        read_in_steps(body, 9)


# Serving ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_it_is_answered_as_the_others_are(
    version: int, inside: BrokerThread, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = create_topic(wire, 3), create_topic(wire, 1)
    nobody = Topic(fresh_name(), b"\1" * 16)
    batch = batch_of(b"a", b"b")
    request = of_many(
        [
            (first, [(2, batch), (0, batch), (7, batch), (-1, batch), (1, batch[:-1])]),
            (nobody, [(0, batch)]),
            (second, []),
            (second, [(0, batch), (0, None)]),
        ]
    )
    short = wire.call(request, ProduceResponse, version)
    monkeypatch.setattr(layout, "MANY", 0)
    # In portions of one partition, so that each topic has several.
    monkeypatch.setattr("ottla.server.handlers.records.produce.long._PARTITIONS_IN_A_STEP", 1)
    long = wire.call(request, ProduceResponse, version)
    assert [each.name for each in long.responses] == [each.name for each in short.responses]
    for one, other in zip(short.responses, long.responses, strict=True):
        assert one.topic_id == other.topic_id
        assert len(one.partition_responses) == len(other.partition_responses)
        for before, after in zip(one.partition_responses, other.partition_responses, strict=True):
            assert (after.index, after.error_code) == (before.index, before.error_code)
            assert after.base_offset == (before.base_offset + 2 if not before.error_code else -1)
    codes = {each.error_code for one in short.responses for each in one.partition_responses}
    assert len(codes) >= 3


def test_no_topics_at_all(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not long, however few the many are."""
    monkeypatch.setattr(layout, "MANY", 0)
    for version in VERSIONS:
        assert wire.call(of_many([]), ProduceResponse, version).responses == []


@pytest.mark.usefixtures("all_are_long")
@pytest.mark.parametrize("acks", [1, -1])
def test_requests_keep_their_order(wire: Wire, acks: int) -> None:
    topic = create_topic(wire, 2)
    for _ in range(20):
        wire.send(produce_request(topic, (0, batch_of(b"x")), (1, batch_of(b"y")), acks=acks), 9)
    for number in range(20):
        (answer,) = wire.receive(ProduceResponse, 9).responses
        assert [each.base_offset for each in answer.partition_responses] == [number, number]


@pytest.mark.usefixtures("all_are_long")
def test_what_nobody_waits_for_is_stored_all_the_same(inside: BrokerThread, wire: Wire) -> None:
    topic = create_topic(wire, 50)
    parts = [(index, batch_of(b"x")) for index in range(50)]
    with inside.wire() as leaving:
        leaving.send(produce_request(topic, *parts, acks=0), 9)
    inside.until(
        lambda broker: all(
            each.log.log_end_offset == 1 for each in broker.partitions.by_name[topic.name]
        )
    )
    # A refusal ends the connection, as it does with others.
    with inside.wire() as refused:
        refused.send(produce_request(topic, (99, batch_of(b"x")), acks=0), 9)
        assert refused.is_closed()


@pytest.mark.usefixtures("all_are_long")
def test_a_malformed_one_closes_its_connection(inside: BrokerThread, wire: Wire) -> None:
    topic = create_topic(wire)
    frame = inside.wire().encode(produce_request(topic, (0, batch_of(b"x"))), 9)[4:-20]
    before = inside.run(lambda broker: broker.reactor.partial_bytes)
    with inside.wire() as bad:
        bad.send_raw(len(frame).to_bytes(4, "big") + frame)
        assert bad.is_closed()
    assert inside.run(lambda broker: broker.reactor.partial_bytes) == before
    assert end_offset(wire, topic) == 0


@pytest.mark.usefixtures("all_are_long")
def test_transactions_and_sequences(inside: BrokerThread) -> None:
    address = f"127.0.0.1:{inside.port}"
    name = fresh_name()
    with inside.wire() as wire:
        create_topic(wire, 3, name)
    with Producer(address, transactional_id=name) as producer:
        producer.init_transactions()
        for outcome in ("kept", "dropped", "kept"):
            producer.begin_transaction()
            for index in range(3):
                producer.send(name, value=outcome, partition=index)
            if outcome == "kept":
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    with Consumer(address, isolation_level="read_committed") as consumer:
        assert consumer.read(name, columns=["value"])["value"].to_pylist() == [b"kept"] * 6


def test_names_that_somebody_made_up_are_not_remembered(wire: Wire) -> None:
    known = create_topic(wire)
    wire.call(produce_request(known, (0, batch_of(b"x"))), ProduceResponse, 9)
    before = topic_piece.cache_info().currsize
    assert before
    made_up = [(Topic(f"{each}" + "x" * 30_000, bytes(16)), [(0, None)]) for each in range(50)]
    wire.call(of_many(made_up), ProduceResponse, 9)
    assert topic_piece.cache_info().currsize == before


# Its turns --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    settings = guarded_settings(
        {"may": "x", "must-not": "x"}, super_users="User:ANONYMOUS;User:may"
    )
    with BrokerThread(tmp_path_factory.mktemp("guarded"), settings=settings) as running:
        yield running


@pytest.mark.parametrize(("kind", "user"), [("topics", "must-not"), ("partitions", "may")])
def test_the_loop_has_its_turn(
    guarded: BrokerThread, kind: str, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with guarded.wire() as wire:
        topic = create_topic(wire, 1)
    count = 6_000  # with a dozen calls for each
    parts = {
        "topics": [(Topic(f"nobody-{each}", bytes(16)), [(0, None)]) for each in range(count)],
        "partitions": [(topic, [(each + 1, None) for each in range(count)])],
    }[kind]
    expected = (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if user == "may"
        else ErrorCode.TOPIC_AUTHORIZATION_FAILED
    )
    with Wire("127.0.0.1", guarded.broker.bound[1].port) as wire:
        authenticate(wire, Plain(user, "x"))
        wire.call(of_many(parts[:1]), ProduceResponse, 9)
        count_steps(monkeypatch)
        monkeypatch.setattr(limited_log, "LINES", 3)
        with Turns(guarded) as seen:
            answer = wire.call(of_many(parts), ProduceResponse, 9)
    assert seen.longest < LONGEST
    codes = [each.error_code for one in answer.responses for each in one.partition_responses]
    assert codes == [expected] * count
