"""The short cut of Produce answers what the general way answers, whatever comes after it was learned."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from record_kit.crafted_batches import CASES, TOPICS, build, crafted, good
from record_kit.crafted_batches import batch as crafted_batch
from record_kit.kafkas_answers import expected, kafkas_answers
from server_kit.broker_thread import BrokerThread
from server_kit.calls import (
    Topic,
    batch_of,
    create_topic,
    end_offset,
    now_ms,
    produce,
    produce_request,
    versions_of,
)
from server_kit.crafted import ask
from server_kit.wire import Wire

from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from ottla.server.handlers.produce import handler as produce_handler
from ottla.server.handlers.produce import request
from ottla.server.handlers.produce.repeated import Repeated, repeatable
from ottla.server.network.connection import MalformedRequest

KAFKA = kafkas_answers()
VERSIONS = versions_of(ProduceRequest, first=5)
# Of the records: the sizes around which a flexible size takes one byte more, and ordinary ones.
SIZES = [61, 126, 127, 128, 200, 16_382, 16_383, 16_384, 70_000, 2_097_150, 2_097_151, 2_097_152]
TOPIC = Topic("a-topic", bytes(range(16)))


@pytest.fixture(autouse=True)
def always(inside: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request that is answered is learned from; a busy machine has no slow disk."""
    monkeypatch.setattr(produce_handler, "LEARNED_ONE_IN", 1)
    monkeypatch.setattr(produce_handler, "SLOW_WRITE_SECONDS", float("inf"))
    inside.run(lambda broker: broker.lanes.slow.clear())


class Spy:
    """Counts the requests that take the short cut."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken = 0
        read = Repeated.read

        def counted(
            repeated: Repeated, view: memoryview, at: int, stop: int, version: int
        ) -> request.Parts | None:
            found = read(repeated, view, at, stop, version)
            self.taken += found is not None
            return found

        monkeypatch.setattr(Repeated, "read", counted)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    return Spy(monkeypatch)


@pytest.fixture(scope="module")
def topics(inside: BrokerThread) -> dict[str, Topic]:
    with inside.wire() as wire:
        return {kind: create_topic(wire, **settings) for kind, settings in TOPICS.items()}


@pytest.mark.parametrize("name", CASES)
def test_crafted_batches_get_kafkas_answer(
    wire: Wire, topics: dict[str, Topic], spy: Spy, name: str
) -> None:
    for place in crafted():
        if place[0] != name:
            continue
        _, codec, kind = place
        now = now_ms()
        assert produce(wire, topics[kind], crafted_batch(good(), now)).error_code == 0
        wanted = expected(place, KAFKA[place])
        before = spy.taken
        answer = ask(wire, topics[kind], build(name, codec, now), now)
        if "stored" not in wanted:
            answer.pop("stored", None)
        assert answer == wanted, place
        # What is packed anew is answered later, and nothing is learned from it.
        assert spy.taken > before or "compression_type" in TOPICS[kind]


def asked(topic: Topic = TOPIC, version: int = 9, **changes: object) -> bytes:
    """The body of a request for one partition."""
    values = {"index": 0, "records": b"r" * 100, "acks": 1, "timeout_ms": 10_000, **changes}
    message = produce_request(topic, (values["index"], values["records"]), acks=values["acks"])  # type: ignore[arg-type]
    message.timeout_ms = values["timeout_ms"]  # type: ignore[assignment]
    message.transactional_id = values.get("transactional_id")  # type: ignore[assignment]
    return message.encode(version)


def bodies(version: int) -> Iterator[bytes]:
    """Requests that are like the one that was learned, or nearly so."""
    for index in (0, 1, 99, -1, 1 << 30, -(1 << 31)):
        yield asked(version=version, index=index)
    for size in SIZES:
        yield asked(version=version, records=b"r" * size)
    for records in (b"", None):
        yield asked(version=version, records=records)
    for change in ({"acks": -1}, {"acks": 0}, {"timeout_ms": 1}, {"transactional_id": "t"}):
        yield asked(version=version, **change)
    for name in ("b-topic", "a-topi", "a-topics"):
        yield asked(Topic(name, bytes(16)), version)
    whole = asked(version=version)
    yield whole + b"\0"
    for end in range(len(whole)):
        yield whole[:end]
    for at, bit in itertools.product(range(min(60, len(whole))), (1, 0x80)):
        yield whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :]
    for at in range(1, 8):
        yield whole[:-at] + bytes([whole[-at] ^ 1]) + whole[len(whole) - at + 1 :]


def read(body: bytes, version: int) -> request.Parts | None:
    try:
        return request.read(memoryview(body), 0, len(body), version)
    except MalformedRequest:
        return None


@pytest.mark.parametrize("version", VERSIONS)
def test_it_reads_what_the_general_way_reads(version: int) -> None:
    body = asked(version=version)
    learned_from = read(body, version)
    assert learned_from is not None
    repeated = repeatable(memoryview(body), 0, len(body), version, learned_from)
    assert repeated is not None
    taken = 0
    for each in bodies(version):
        # What is left of an earlier request in the buffer is no part of this one.
        for behind in (b"", body):
            view = memoryview(each + behind)
            found = repeated.read(view, 0, len(each), version)
            if found is not None:
                assert found == read(each, version)
                taken += 1
    assert taken >= 2 * (6 + len(SIZES) - 2)
    assert repeated.read(memoryview(body), 0, len(body), version + 1) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_the_answer_is_the_general_one(wire: Wire, spy: Spy, version: int) -> None:
    topic = create_topic(wire, partitions=3, name=chr(97 + version) * 130)
    answers = []
    for offset in range(3):
        for index in (0, 2):
            sent = produce_request(topic, (index, batch_of(b"a")))
            answers.append(wire.call(sent, ProduceResponse, version))
            (partition,) = answers[-1].responses[0].partition_responses
            assert (partition.index, partition.base_offset) == (index, offset)
    assert spy.taken == len(answers) - 1 + 1  # and one when the first was learned
    for each in answers[1:]:
        partition = each.responses[0].partition_responses[0]
        partition.base_offset = 0
        partition.index = 0
        assert each == answers[0]


@pytest.mark.parametrize("version", [7, 12, 13])
def test_what_happens_to_the_topic_is_seen(wire: Wire, spy: Spy, version: int) -> None:
    topic = create_topic(wire, partitions=2)
    for _ in range(2):
        assert produce(wire, topic, batch_of(b"a"), version=version).error_code == 0
    assert spy.taken
    assert produce(wire, topic, batch_of(b"a"), version=version, index=2).error_code == 3
    assert produce(wire, topic, batch_of(b"a"), version=version, index=-1).error_code == 3
    refused = produce(wire, topic, batch_of(b"a"), version=version, acks=5)
    assert refused.error_code == 21
    assert end_offset(wire, topic) == 2


def test_nothing_is_answered_where_nothing_is_asked_for(wire: Wire, spy: Spy) -> None:
    topic = create_topic(wire)
    assert produce(wire, topic, batch_of(b"a")).error_code == 0
    wire.send(produce_request(topic, (0, batch_of(b"b")), acks=0), 9)
    assert produce(wire, topic, batch_of(b"c")).base_offset == 2
