"""The short cut of Produce answers what the general way answers, whatever comes after it was learned."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

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
    read_all,
    versions_of,
)
from server_kit.crafted import ask
from server_kit.wire import Wire

from ottla.cluster.membership.membership import Membership
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from ottla.record.batch import LEADER_EPOCH_AT, check_produced
from ottla.record.compression.codecs import Codec
from ottla.record.validation.findings import Rules
from ottla.record.validation.frames import FrameCheck
from ottla.record.validation.readiness import readiness
from ottla.replication.partition import Partition
from ottla.server.broker import Broker
from ottla.server.handlers.records.produce import appending, request
from ottla.server.handlers.records.produce import handler as produce_handler

KAFKA = kafkas_answers()
VERSIONS = versions_of(ProduceRequest, first=5)
# Sizes of values with which a batch and its size take one byte more, and ordinary ones.
RECORDS = [0, 1, *range(40, 64), 900, *range(940, 970), 16_300, 16_310, 16_320, 70_000, 1_000_000]
# Batches that are stored although something is odd about them: the general way says what.
ODD = (
    "attribute_sign",
    "attributes_unused",
    "max_timestamp_above",
    "max_timestamp_below",
    "max_timestamp_far_above",
    "max_timestamp_none",
    "negative_times",
)
TOPIC = Topic("a-topic", bytes(range(16)))


@pytest.fixture(autouse=True)
def always(inside: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request that is answered is learned from; a busy machine has no slow disk."""
    monkeypatch.setattr(produce_handler, "LEARNED_ONE_IN", 1)
    for module in (produce_handler, appending):
        monkeypatch.setattr(module, "SLOW_WRITE_SECONDS", float("inf"))
    inside.run(lambda broker: broker.lanes.slow.clear())


class Spy:
    """Counts the requests that take the short cut."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken = 0
        serve = produce_handler.Produce._serve_repeated

        def counted(*arguments: Any) -> bool:
            is_served = serve(*arguments)
            self.taken += is_served
            return is_served

        monkeypatch.setattr(produce_handler.Produce, "_serve_repeated", counted)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    assert readiness.load() is not None
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
        # The short cut takes what is right and plain, and nothing else.
        is_taken = spy.taken > before
        if "compression_type" in TOPICS[kind] or wanted["error"] != "NONE":
            assert not is_taken, place
        elif codec == Codec.NONE and kind != "append_time":
            assert is_taken == (name not in ODD), place
        elif name == "good":
            assert is_taken, place


def asked(topic: Topic = TOPIC, version: int = 9, **changes: object) -> bytes:
    """The body of a request for one partition."""
    values = {"index": 0, "acks": 1, "timeout_ms": 10_000, **changes}
    message = produce_request(topic, (values["index"], values["records"]), acks=values["acks"])  # type: ignore[arg-type]
    message.timeout_ms = values["timeout_ms"]  # type: ignore[assignment]
    message.transactional_id = values.get("transactional_id")  # type: ignore[assignment]
    return message.encode(version)


def bodies(version: int, batch: bytes) -> Iterator[bytes]:
    """Requests that are like the one that was learned, or nearly so."""
    for index in (0, 1, 99, -1, 1 << 30, -(1 << 31)):
        yield asked(version=version, index=index, records=batch)
    for size in RECORDS:
        yield asked(version=version, records=batch_of(b"r" * size))
    for records in (b"", None, batch + batch, batch[:-1], batch + b"\0", b"r" * 200):
        yield asked(version=version, records=records)
    for change in ({"acks": -1}, {"acks": 0}, {"timeout_ms": 1}, {"transactional_id": "t"}):
        yield asked(version=version, records=batch, **change)
    for name in ("b-topic", "a-topi", "a-topics"):
        yield asked(Topic(name, bytes(16)), version, records=batch)
    whole = asked(version=version, records=batch)
    yield whole + b"\0"
    for end in range(len(whole)):
        yield whole[:end]
    # A bit of each byte is flipped, but for those of the index: that is another partition then.
    index_at = whole.index(batch) - (4 if version < 9 else 1 + (len(batch) + 1 > 127)) - 4
    for at, bit in itertools.product(range(len(whole)), (1, 0x80)):
        if not index_at <= at < index_at + 4 and not _is_unchecked(at - whole.index(batch)):
            yield whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :]


def _is_unchecked(at: int) -> bool:
    """Whether the byte at this place of a batch is the broker's: that of the leader epoch."""
    return LEADER_EPOCH_AT <= at < LEADER_EPOCH_AT + 4


@pytest.mark.parametrize("version", VERSIONS)
def test_it_reads_what_the_general_way_reads(version: int) -> None:
    compiled = readiness.load()
    assert compiled is not None
    now = now_ms()
    batch = bytes(batch_of(b"value"))
    body = asked(version=version, records=batch)
    # Count and size, with the index between them.
    sizes = 8 if version < 9 else 2 + (len(batch) + 1 > 127)
    before = body[: body.index(batch) - sizes - 4]
    check = FrameCheck(compiled.frames_address, before, version >= 9, 1 << 22, Rules())
    taken = 0
    for each in bodies(version, batch):
        # What is left of an earlier request in the buffer is no part of this one.
        for behind in (b"", body):
            buffer = memoryview(bytearray(b"front" + each + behind))
            stop = 5 + len(each)
            found = check.accept(buffer, 5, stop, now)
            if found is None:
                continue
            ((index, start, end, fields),) = found
            request_read = request.read(buffer[5:stop], version)
            assert request_read == (
                None,
                1,
                10_000,
                [(request_read[3][0][0], [(index, start - 5, end - 5)])],
            )
            assert request_read[3][0][0] in (TOPIC.name.encode(), TOPIC.id)
            assert fields == check_produced(buffer[start:end])
            taken += 1
    assert taken == 2 * (6 + len(RECORDS))


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
    assert spy.taken == len(answers) - 1
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


def many(topic: Topic, *parts: tuple[int, bytes], acks: int = 1) -> ProduceRequest:
    return produce_request(topic, *parts, acks=acks)


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("version", VERSIONS)
def test_several_partitions_in_a_request(
    wire: Wire, spy: Spy, monkeypatch: pytest.MonkeyPatch, version: int, acks: int
) -> None:
    """The answers, and what is stored, are those of the general way, for any number of partitions."""
    shorter, longer = (
        create_topic(wire, partitions=64, name=f"{version}-{acks}-{way}") for way in "sl"
    )
    rounds = [[0], [0, 1], [5, 3, 4], list(range(64)), [7, 7, 7], [63], [1, 64], [-1, 2], [2, 1]]
    answers: dict[Topic, list[ProduceResponse]] = {shorter: [], longer: []}
    for topic in (longer, shorter):
        learned_one_in = 1 if topic is shorter else 1 << 40
        monkeypatch.setattr(produce_handler, "LEARNED_ONE_IN", learned_one_in)
        for number, indexes in enumerate(rounds):
            parts = [(index, batch_of(f"{number} {index}".encode())) for index in indexes]
            before = spy.taken
            answers[topic].append(
                wire.call(many(topic, *parts, acks=acks), ProduceResponse, version)
            )
            if topic is shorter:
                is_known = all(0 <= index < 64 for index in indexes)
                assert (spy.taken > before) == (is_known and number > 0), indexes
        assert topic is shorter or not spy.taken
    for one, other in zip(answers[shorter], answers[longer], strict=True):
        assert one.responses[0].partition_responses == other.responses[0].partition_responses
    for index in range(64):
        assert read_all(wire, shorter, index) == read_all(wire, longer, index)


@pytest.mark.parametrize("kind", ["plain", "compacted", "append_time"])
@pytest.mark.parametrize("codec", Codec)
def test_several_partitions_of_every_codec(
    inside: BrokerThread,
    wire: Wire,
    spy: Spy,
    monkeypatch: pytest.MonkeyPatch,
    codec: Codec,
    kind: str,
) -> None:
    """Both ways answer and store the same, whatever the batches are packed with."""
    now = now_ms()
    answers, stored = [], []
    for learned_one_in in (1, 1 << 40):
        monkeypatch.setattr(produce_handler, "LEARNED_ONE_IN", learned_one_in)
        topic = create_topic(wire, partitions=3, **TOPICS[kind])
        before = spy.taken
        with inside.wire() as other:
            for count in (1, 3, 5):
                batch = crafted_batch(good(count), now, codec)
                sent = many(topic, *((index, batch) for index in range(3)))
                response = other.call(sent, ProduceResponse, 9)
                (about,) = response.responses
                for partition in about.partition_responses:
                    assert (partition.log_append_time_ms >= now) == (kind == "append_time")
                    partition.log_append_time_ms = 0
                answers.append(about.partition_responses)
        assert spy.taken - before == (2 if learned_one_in == 1 else 0)
        stored.append([read_all(wire, topic, index) for index in range(3)])
    assert answers[:3] == answers[3:]
    assert stored[0] == stored[1]
    assert stored[0][0] == [b"value"] * 9


def test_a_batch_of_a_transaction_among_several_is_for_the_general_way(
    wire: Wire, spy: Spy
) -> None:
    topic = create_topic(wire, partitions=2)
    for _ in range(2):
        both = [(index, batch_of(b"a")) for index in range(2)]
        assert not error_codes(wire.call(many(topic, *both), ProduceResponse, 9))
    assert spy.taken == 1
    of_transaction = batch_of(
        b"b", producer_id=4_001, producer_epoch=0, base_sequence=0, transactional=True
    )
    sent = many(topic, (0, batch_of(b"b")), (1, of_transaction))
    assert list(error_codes(wire.call(sent, ProduceResponse, 9))) == [1]
    assert spy.taken == 1
    assert [end_offset(wire, topic, index) for index in range(2)] == [3, 2]


def test_one_refused_batch_of_several_leaves_the_others(wire: Wire, spy: Spy) -> None:
    topic = create_topic(wire, partitions=3)
    good_batches = [(index, batch_of(b"a")) for index in range(3)]
    for _ in range(2):
        wire.call(many(topic, *good_batches), ProduceResponse, 9)
    assert spy.taken == 1
    damaged = bytearray(batch_of(b"b"))
    damaged[-3] ^= 1
    answer = wire.call(
        many(topic, (0, batch_of(b"b")), (1, bytes(damaged)), (2, batch_of(b"b"))),
        ProduceResponse,
        9,
    )
    codes = [each.error_code for each in answer.responses[0].partition_responses]
    assert codes == [ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE, ErrorCode.NONE]
    assert [end_offset(wire, topic, index) for index in range(3)] == [3, 2, 3]
    assert spy.taken == 1


def test_one_out_of_sequence_of_several_leaves_the_others(wire: Wire, spy: Spy) -> None:
    """What only the log knows is found after others of the request were appended."""
    topic = create_topic(wire, partitions=3)

    def batches(*sequences: int) -> list[tuple[int, bytes]]:
        return [
            (index, batch_of(b"a", producer_id=4_000, producer_epoch=0, base_sequence=sequence))
            for index, sequence in enumerate(sequences)
        ]

    for sequence in range(2):
        wire.call(many(topic, *batches(sequence, sequence, sequence)), ProduceResponse, 9)
    taken = spy.taken
    assert taken == 1
    answer = wire.call(many(topic, *batches(2, 9, 1)), ProduceResponse, 9)
    assert spy.taken == taken + 1
    found = [
        (each.error_code, each.base_offset) for each in answer.responses[0].partition_responses
    ]
    # The next one, a gap, and one that was there before.
    assert found == [(0, 2), (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1), (0, 1)]
    assert [end_offset(wire, topic, index) for index in range(3)] == [3, 2, 2]


def test_what_the_short_cut_gives_up_is_as_it_came(
    wire: Wire, spy: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The general way gets the bytes of the producer, whichever batch was given up for."""
    topic = create_topic(wire, partitions=2)
    now = now_ms()
    for _ in range(2):
        right = crafted_batch(good(), now, Codec.LZ4)
        assert not error_codes(wire.call(many(topic, (0, right), (1, right)), ProduceResponse, 9))
    assert spy.taken == 1
    came: list[bytes] = []

    def reading(body: memoryview, version: int) -> request.Parts:
        came.append(bytes(body))
        return request.read(body, version)

    monkeypatch.setattr(produce_handler, "read", reading)
    # The first would be corrected; the second cannot be read.
    to_correct = build("max_timestamp_above", Codec.LZ4, now)
    unreadable = build("offset_deltas_with_gap", Codec.LZ4, now)
    sent = many(topic, (0, to_correct), (1, unreadable))
    assert error_codes(wire.call(sent, ProduceResponse, 9)) == {1: ErrorCode.INVALID_RECORD}
    assert came == [sent.encode(9)]
    assert spy.taken == 1


def error_codes(answer: ProduceResponse) -> dict[int, int]:
    """By partition, without those that were stored."""
    (topic,) = answer.responses
    return {each.index: each.error_code for each in topic.partition_responses if each.error_code}


# With followers ----------------------------------------------------------------------------------------

FOLLOWER = 77  # the broker with the other replica


def partition_of(broker: Broker, topic: Topic) -> Partition:
    return broker.partitions.by_name[topic.name][0]


def set_isr(inside: BrokerThread, topic: Topic, *, is_whole: bool) -> None:
    """The partition has a replica on another broker, in sync or not, and asks for two of them."""

    def change(broker: Broker) -> None:
        partition = partition_of(broker, topic)
        members = (broker.id, FOLLOWER)
        newer = replace(
            broker.image.topics[topic.name].partitions[0],
            replicas=members,
            isr=members if is_whole else (broker.id,),
            partition_epoch=partition.partition_epoch + 1,
        )
        partition.update(newer, 0)

    inside.run(change)


@pytest.fixture
def replicated(
    inside: BrokerThread, wire: Wire, spy: Spy, monkeypatch: pytest.MonkeyPatch
) -> Topic:
    """A topic with a follower; requests with acks=1 are known on the first connection."""
    topic = create_topic(wire, min_insync_replicas="2")
    inside.run(lambda broker: monkeypatch.setattr(broker.partitions, "is_alive", lambda _: True))
    set_isr(inside, topic, is_whole=True)
    assert produce(wire, topic, batch_of(b"0")).error_code == 0
    assert spy.taken == 0
    return topic


def follow(inside: BrokerThread, topic: Topic, offset: int) -> None:
    inside.until(lambda broker: partition_of(broker, topic).log.log_end_offset == offset)
    inside.run(lambda broker: partition_of(broker, topic).fetched(FOLLOWER, offset, 1, 0))


def test_one_replica_answers_for_itself_and_all_wait(
    inside: BrokerThread, wire: Wire, connect: Callable[[], Wire], replicated: Topic, spy: Spy
) -> None:
    answer = produce(wire, replicated, batch_of(b"1"))
    assert (answer.error_code, answer.base_offset, spy.taken) == (0, 1, 1)
    patient = connect()
    for number in (2, 3):  # of which the second is like the first
        patient.send(produce_request(replicated, (0, batch_of(b"%d" % number)), acks=-1), 9)
        # Nothing is answered before the follower has it, or there would be nothing to receive later.
        inside.until(
            lambda broker, end=number + 1: (
                partition_of(broker, replicated).log.log_end_offset == end
            )
        )
        assert inside.run(
            lambda broker: len(partition_of(broker, replicated)._awaiting_commit.waiting)
        )
        follow(inside, replicated, number + 1)
        (answer,) = patient.receive(ProduceResponse, 9).responses[0].partition_responses
        assert (answer.error_code, answer.base_offset) == (0, number)
    assert spy.taken == 2


def test_too_few_in_sync_are_seen(
    inside: BrokerThread, wire: Wire, connect: Callable[[], Wire], replicated: Topic, spy: Spy
) -> None:
    follow(inside, replicated, 1)
    patient = connect()
    for number in (1, 2):
        patient.send(produce_request(replicated, (0, batch_of(b"a")), acks=-1), 9)
        follow(inside, replicated, number + 1)
        (answer,) = patient.receive(ProduceResponse, 9).responses[0].partition_responses
        assert answer.error_code == 0
    assert spy.taken == 1
    set_isr(inside, replicated, is_whole=False)
    refused = produce(patient, replicated, batch_of(b"a"), acks=-1)
    assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert produce(wire, replicated, batch_of(b"b")).error_code == 0
    assert spy.taken == 1
    assert inside.run(lambda broker: partition_of(broker, replicated).log.log_end_offset) == 4


def test_a_broker_out_of_touch_acknowledges_nothing_alone(
    inside: BrokerThread, wire: Wire, replicated: Topic, spy: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert produce(wire, replicated, batch_of(b"1")).error_code == 0
    assert spy.taken == 1
    monkeypatch.setattr(Membership, "can_be_fenced", True)
    refused = produce(wire, replicated, batch_of(b"2"))
    assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert inside.run(lambda broker: partition_of(broker, replicated).log.log_end_offset) == 2
    monkeypatch.setattr(Membership, "can_be_fenced", False)
    assert produce(wire, replicated, batch_of(b"2")).base_offset == 2


def test_nor_does_one_that_lost_touch_during_the_append(
    inside: BrokerThread, wire: Wire, replicated: Topic, spy: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = Partition.append

    def held_up(*what: Any) -> Any:
        appended = append(*what)
        monkeypatch.setattr(Membership, "can_be_fenced", True)
        return appended

    monkeypatch.setattr(Partition, "append", held_up)
    refused = produce(wire, replicated, batch_of(b"late"))
    assert (refused.error_code, spy.taken) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 1)
    assert inside.run(lambda broker: partition_of(broker, replicated).log.log_end_offset) == 2
