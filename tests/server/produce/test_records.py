"""What is inside of produced batches: crafted ones get the answer that Apache Kafka gave to them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from record_kit.crafted_batches import CASES, TOPICS, Codec, batch, build, crafted, good, record
from record_kit.kafkas_answers import expected, kafkas_answers
from server_kit.broker_thread import BrokerThread
from server_kit.calls import (
    Topic,
    batch_of,
    create_topic,
    end_offset,
    fetch,
    fill,
    now_ms,
    produce,
    produce_request,
    read_all,
    values_of,
    whole_batches,
)
from server_kit.crafted import ask
from server_kit.wire import Wire

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.produce import ProduceResponse
from ottla.record.batch import Record, build_batch, check_batch, read_header
from ottla.record.validation import checking
from ottla.record.validation.readiness import readiness

KAFKA = kafkas_answers()


@pytest.fixture(scope="module")
def topics(inside: BrokerThread) -> dict[str, Topic]:
    with inside.wire() as wire:
        return {kind: create_topic(wire, **settings) for kind, settings in TOPICS.items()}


@pytest.fixture(params=["compiled", "plain"])
def walk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both walks; the compiled one may come at any time, so its absence is made."""
    if request.param == "plain":
        monkeypatch.setattr(readiness, "compiled", None)
    else:
        assert readiness.load() is not None
    return str(request.param)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch is checked off the loop."""
    monkeypatch.setattr(
        "ottla.server.handlers.records.produce.record_checks.is_quick", lambda _: False
    )


def wrong_answers(wire: Wire, topics: dict[str, Topic], name: str) -> list[Any]:
    wrong = []
    for place in crafted():
        if place[0] != name:
            continue
        _, codec, kind = place
        wanted = expected(place, KAFKA[place])
        now = now_ms()
        answer = ask(wire, topics[kind], build(name, codec, now), now)
        if "stored" not in wanted:
            answer.pop("stored", None)
        if answer != wanted:
            wrong.append((codec.name, kind, answer, wanted))
    return wrong


@pytest.mark.parametrize("name", CASES)
def test_crafted_batches_get_kafkas_answer(
    wire: Wire, topics: dict[str, Topic], walk: str, name: str
) -> None:
    assert not wrong_answers(wire, topics, name)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("name", CASES)
def test_crafted_batches_get_the_same_answer_off_the_loop(
    wire: Wire, topics: dict[str, Topic], name: str
) -> None:
    assert readiness.load() is not None
    assert not wrong_answers(wire, topics, name)


# Records that are named ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [8, 9, 12, 13])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_records_without_a_key_are_named(wire: Wire, version: int, codec: Codec) -> None:
    topic = create_topic(wire, cleanup_policy="compact")
    keyless = [3, 5, 99]
    mixed = [record(index, key=None if index in keyless else b"key") for index in range(100)]
    answer = produce(wire, topic, batch(mixed, now_ms(), codec), version=version)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [each.batch_index for each in answer.record_errors] == keyless
    assert all("key" in str(each.batch_index_error_message) for each in answer.record_errors)
    assert answer.error_message
    assert end_offset(wire, topic) == 0


@pytest.mark.parametrize("version", [3, 7])
def test_before_version_8_nobody_is_named(wire: Wire, version: int) -> None:
    topic = create_topic(wire, cleanup_policy="compact")
    answer = produce(wire, topic, batch([record(0, key=None)], now_ms()), version=version)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert not answer.record_errors


def test_one_bad_partition_of_a_request(wire: Wire) -> None:
    """The others are stored, and their answers stay in their places."""
    topic = create_topic(wire, partitions=3, cleanup_policy="compact")
    now = now_ms()
    parts = [
        (0, batch(good(), now)),
        (1, batch([record(0, key=None)], now)),
        (2, batch(good(), now, Codec.LZ4)),
    ]
    response = wire.call(produce_request(topic, *parts), ProduceResponse, 9)
    answers = response.responses[0].partition_responses
    assert [each.error_code for each in answers] == [0, ErrorCode.INVALID_RECORD, 0]
    assert [len(each.record_errors) for each in answers] == [0, 1, 0]


# Where and how it is done ----------------------------------------------------------------------------


def test_order_is_kept_between_the_loop_and_threads(wire: Wire) -> None:
    """A large batch is looked at by a thread; the small ones sent after it do not overtake it."""
    assert readiness.load() is not None
    topic = create_topic(wire, max_message_bytes=str(20 << 20))
    now = now_ms()
    large = build_batch(
        [Record(index, now, b"key", os.urandom(1000)) for index in range(3000)], codec=Codec.LZ4
    )
    assert not checking.is_quick(check_batch(large))
    sent = []
    for number in range(5):
        sent += [large, batch_of(b"small %d" % number), batch_of(b"packed", codec=Codec.ZSTD)]
    wire.send_raw(b"".join(wire.encode(produce_request(topic, (0, each)), 9) for each in sent))
    answers = [wire.receive(ProduceResponse, 9).responses[0].partition_responses[0] for _ in sent]
    assert [each.error_code for each in answers] == [0] * len(sent)
    offsets = [number * 3002 + at for number in range(5) for at in (0, 3000, 3001)]
    assert [each.base_offset for each in answers] == offsets


def test_the_loop_goes_on_while_a_thread_looks(
    inside: BrokerThread, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are served while a batch is being checked elsewhere."""
    assert readiness.load() is not None
    topic, other = create_topic(wire), create_topic(wire)
    began, may_go_on = threading.Event(), threading.Event()
    real = checking.check_and_correct

    def check(*arguments: Any, in_thread: bool = False) -> Any:
        if in_thread:
            began.set()
            assert may_go_on.wait(20)
        return real(*arguments, in_thread=in_thread)

    monkeypatch.setattr(
        "ottla.server.handlers.records.produce.record_checks.check_and_correct", check
    )
    with inside.wire() as slow:
        bomb = build_batch([Record(0, now_ms(), b"key", bytes(4 << 20))], codec=Codec.ZSTD)
        slow.send(produce_request(topic, (0, bomb)), 9)
        assert began.wait(20)
        fill(wire, other, batch_of(b"meanwhile"))
        assert end_offset(wire, topic) == 0
        may_go_on.set()
        (answer,) = slow.receive(ProduceResponse, 9).responses[0].partition_responses
        assert (answer.error_code, answer.base_offset) == (0, 0)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_a_bomb_is_refused(
    wire: Wire, topic: Topic, walk: str, monkeypatch: pytest.MonkeyPatch, codec: Codec
) -> None:
    """Beyond the limit, which is less here: MESSAGE_TOO_LARGE, and the broker lives on."""
    monkeypatch.setattr("ottla.server.disk.workers.DECOMPRESSED_LIMIT", 3 << 20)
    bomb = build_batch([Record(0, now_ms(), b"key", bytes(4 << 20))], codec=codec)
    assert produce(wire, topic, bomb).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert end_offset(wire, topic) == 0
    assert fill(wire, topic, batch_of(b"a")) == [0]


def test_a_wrong_largest_time_is_put_right(wire: Wire, topic: Topic) -> None:
    """In the header and its checksum; the search by time relies on it."""
    now = now_ms()
    for index, codec in enumerate(Codec):
        fill(wire, topic, batch(good(), now, codec, max_timestamp=now - 99_999))
        (stored,) = whole_batches(fetch(wire, topic, 3 * index).records)
        check_batch(stored)
        assert read_header(stored).max_timestamp == now


# Trusted producers -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    folder = tmp_path_factory.mktemp("trusting") / "data"
    settings = {"produce.record.validation.enable": "false"}
    with BrokerThread(folder, settings=settings) as running:
        yield running


def test_trusted_producers_are_not_looked_at(trusting: BrokerThread) -> None:
    garbage = batch([*good(2), record(2, length=9)], now_ms())
    with trusting.wire() as wire:
        plain = create_topic(wire)
        assert produce(wire, plain, garbage).error_code == 0
        for needy in (
            {"cleanup_policy": "compact"},
            {"compression_type": "zstd"},
            {"message_timestamp_before_max_ms": "1000000"},
        ):
            topic = create_topic(wire, **needy)
            answer = produce(wire, topic, garbage)
            assert answer.error_code == ErrorCode.INVALID_RECORD, needy
            assert fill(wire, topic, batch_of(b"a")) == [0]
            assert values_of(fetch(wire, topic, 0).records) == read_all(wire, topic) == [b"a"]


# As clients see it -----------------------------------------------------------------------------------


def test_librdkafka_fails_those_records_alone(inside: BrokerThread, wire: Wire) -> None:
    """Ten of a hundred records have no key: these are invalid, and the others were in bad company."""
    from confluent_kafka import KafkaError, Message, Producer

    topic = create_topic(wire, cleanup_policy="compact")
    codes: list[int] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        codes.append(0 if error is None else error.code())

    producer = Producer(
        {
            "bootstrap.servers": f"{inside.host}:{inside.port}",
            "linger.ms": 60_000,
            "batch.num.messages": 100,
        }
    )
    for number in range(100):
        key = None if number % 10 == 0 else b"key"
        producer.produce(topic.name, b"value", key, partition=0, on_delivery=delivered)
    assert producer.flush(30) == 0
    assert codes.count(KafkaError.INVALID_RECORD) == 10
    assert codes.count(KafkaError._INVALID_DIFFERENT_RECORD) == 90
    assert codes[::10] == [KafkaError.INVALID_RECORD] * 10
    assert end_offset(wire, topic) == 0


# Message sets of old formats -------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_garbage_in_message_sets_is_refused(
    wire: Wire, topic: Topic, version: int, codec: Codec
) -> None:
    """With the right checksum around it, and with every byte changed once; no worker dies of it."""
    import zlib

    from ottla.record.legacy import build_message_set

    magic = min(version, 1)
    messages = [Record(index, now_ms(), b"key", b"value" * 3) for index in range(3)]
    whole = bytearray(build_message_set(messages, magic, codec))
    size = int.from_bytes(whole[8:12], "big")
    for at in range(17, 12 + size, 3):
        broken = bytearray(whole)
        broken[at] ^= 0xFF
        broken[12:16] = zlib.crc32(broken[16 : 12 + size]).to_bytes(4, "big")
        answer = produce(wire, topic, bytes(broken), version=version)
        assert answer.error_code in (
            0,  # a changed key or value is as good as another
            ErrorCode.INVALID_RECORD,
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.INVALID_TIMESTAMP,
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ), at
    read_all(wire, topic)
    before = end_offset(wire, topic)
    assert produce(wire, topic, bytes(whole), version=version).base_offset == before


def test_keys_and_times_of_old_messages_count(wire: Wire) -> None:
    from ottla.record.legacy import build_message_set

    now = now_ms()
    keyless = build_message_set([Record(0, now, None, b"value")], 1)
    old = build_message_set([Record(0, now - 10_000_000, b"key", b"value")], 1, Codec.GZIP)
    compacted = create_topic(wire, cleanup_policy="compact")
    narrow = create_topic(wire, message_timestamp_before_max_ms="1000000")
    assert produce(wire, compacted, keyless, version=2).error_code == ErrorCode.INVALID_RECORD
    assert produce(wire, narrow, old, version=2).error_code == ErrorCode.INVALID_TIMESTAMP
    assert produce(wire, narrow, keyless, version=2).error_code == 0


# Transactions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_garbage_in_a_transaction_is_refused(wire: Wire, topic: Topic, codec: Codec) -> None:
    """It takes no sequence number, and the transaction goes on."""
    name = f"garbage-{codec.name}-{os.urandom(4).hex()}"
    find = FindCoordinatorRequest(key_type=1, coordinator_keys=[name])
    (found,) = wire.call(find, FindCoordinatorResponse, 4).coordinators
    assert found.error_code == 0
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    producer = wire.call(request, InitProducerIdResponse, 5)
    while producer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        producer = wire.call(request, InitProducerIdResponse, 5)
    assert producer.error_code == 0
    identity = {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "base_sequence": 0,
        "attributes": 0x10,
    }
    lying = batch(good(), now_ms(), codec, count=4, **identity)
    fine = batch(good(), now_ms(), codec, **identity)
    for sent, code in ((lying, ErrorCode.INVALID_RECORD), (fine, 0), (fine, 0)):
        answer = produce(wire, topic, sent, version=12, transactional_id=name)
        assert answer.error_code == code
    assert answer.base_offset == 0
    assert end_offset(wire, topic) == 3
