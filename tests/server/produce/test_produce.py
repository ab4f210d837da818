"""Produce: what is taken, what is refused and how, in which order it is answered."""

from __future__ import annotations

import errno
import itertools
import struct
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import (
    Topic,
    batch_of,
    create_topic,
    end_offset,
    errors,
    fetch,
    fill,
    fresh_name,
    now_ms,
    produce,
    produce_request,
    read_all,
    set_config,
    versions_of,
    whole_batches,
)
from server_kit.wire import Wire

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.record.batch import (
    ATTRIBUTES_AT,
    BATCH_LENGTH_AT,
    CRC_AT,
    LAST_OFFSET_DELTA_AT,
    RECORD_COUNT_AT,
    Codec,
    Record,
    build_batch,
    read_header,
)
from ottla.record.legacy import build_message_set
from ottla.server.broker import Broker
from ottla.server.network import connection
from ottla.storage.segments.segment import Segment

FORMAT_2 = versions_of(ProduceRequest, first=3)
DAY_MS = 24 * 3600 * 1000


def with_right_checksum(batch: bytearray) -> bytes:
    from crc32c import crc32c

    struct.pack_into(">I", batch, CRC_AT, crc32c(bytes(batch[ATTRIBUTES_AT:])))
    return bytes(batch)


def changed(batch: bytes, code: str, at: int, value: int) -> bytes:
    """The batch with one header field changed and the checksum made to fit."""
    copy = bytearray(batch)
    struct.pack_into(">" + code, copy, at, value)
    return with_right_checksum(copy)


# What is taken ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", FORMAT_2)
@pytest.mark.parametrize("acks", [1, -1])
def test_offsets_count_records(wire: Wire, topic: Topic, version: int, acks: int) -> None:
    first = produce(wire, topic, batch_of(b"a", b"b", b"c"), version=version, acks=acks)
    second = produce(wire, topic, batch_of(b"d"), version=version, acks=acks)
    assert (first.error_code, first.base_offset) == (0, 0)
    assert (second.error_code, second.base_offset) == (0, 3)
    assert first.log_append_time_ms == -1
    if version >= 5:
        assert first.log_start_offset == 0
    assert read_all(wire, topic) == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("version", FORMAT_2)
def test_batch_is_stored_as_it_came(wire: Wire, topic: Topic, version: int) -> None:
    """All but base offset and leader epoch, which the checksum does not cover."""
    fill(wire, topic, batch_of(b"before"))
    sent = batch_of(b"x", None, b"", headers_are := b"y" * 100)
    assert headers_are
    produce(wire, topic, sent, version=version)
    (stored,) = whole_batches(fetch(wire, topic, 1).records)
    assert stored[16:] == sent[16:]
    assert read_header(stored).base_offset == 1
    assert read_header(stored).partition_leader_epoch == 0


@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec_is_kept(wire: Wire, topic: Topic, codec: Codec) -> None:
    sent = batch_of(b"value " * 50, b"value " * 60, codec=codec)
    fill(wire, topic, sent)
    (stored,) = whole_batches(fetch(wire, topic, 0).records)
    assert stored[16:] == sent[16:]


def test_several_partitions_and_topics_some_of_which_fail(wire: Wire) -> None:
    one, two = create_topic(wire, partitions=3), create_topic(wire)
    damaged = bytearray(batch_of(b"damaged"))
    damaged[-1] ^= 1
    request = ProduceRequest(
        acks=1,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(
                name=one.name,
                partition_data=[
                    PartitionProduceData(index=2, records=batch_of(b"two")),
                    PartitionProduceData(index=0, records=bytes(damaged)),
                    PartitionProduceData(index=3, records=batch_of(b"nowhere")),
                    PartitionProduceData(index=1, records=batch_of(b"one")),
                ],
            ),
            TopicProduceData(
                name=fresh_name("missing"),
                partition_data=[PartitionProduceData(index=0, records=batch_of(b"nowhere"))],
            ),
            TopicProduceData(
                name=two.name,
                partition_data=[PartitionProduceData(index=0, records=batch_of(b"other"))],
            ),
        ],
    )
    response = wire.call(request, ProduceResponse, 8)
    answers = {
        (topic.name, each.index): each
        for topic in response.responses
        for each in topic.partition_responses
    }
    assert len(answers) == 6
    missing = request.topic_data[1].name
    assert {key: ErrorCode(each.error_code) for key, each in answers.items()} == {
        (one.name, 2): ErrorCode.NONE,
        (one.name, 0): ErrorCode.CORRUPT_MESSAGE,
        (one.name, 3): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (one.name, 1): ErrorCode.NONE,
        (missing, 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (two.name, 0): ErrorCode.NONE,
    }
    assert answers[one.name, 0].base_offset == -1
    assert answers[one.name, 2].base_offset == 0
    assert read_all(wire, one, 2) == [b"two"]
    assert read_all(wire, one, 1) == [b"one"]
    assert read_all(wire, one, 0) == []
    assert read_all(wire, two) == [b"other"]


# acks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 8, 9, 13])
def test_without_acknowledgement_nothing_is_answered(
    wire: Wire, topic: Topic, version: int
) -> None:
    for value in (b"a", b"b"):
        wire.send(produce_request(topic, (0, batch_of(value)), acks=0), version)
    # The next answer on this connection is that of the next request.
    metadata = wire.call(MetadataRequest(topics=[]), MetadataResponse, 9)
    assert metadata.brokers
    assert read_all(wire, topic) == [b"a", b"b"]


@pytest.mark.parametrize("version", [3, 9, 13])
def test_a_failure_without_acknowledgement_closes_the_connection(
    wire: Wire, connect: Callable[[], Wire], topic: Topic, version: int
) -> None:
    wire.send(produce_request(topic, (7, batch_of(b"lost")), acks=0), version)
    assert wire.is_closed()
    assert end_offset(connect(), topic) == 0


def test_without_acks_all_that_was_sent_before_the_end_is_written(
    inside: BrokerThread, wire: Wire, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer that asks for no answers may be gone before the last of its requests is handled."""
    # Every look at the clock finds that the time of a turn is over.
    seconds = itertools.count(1)
    monkeypatch.setattr(connection, "clock", lambda: float(next(seconds)))
    many = 1000
    has_left = threading.Event()
    with inside.wire() as leaving:
        request = produce_request(topic, (0, batch_of(b"x")), acks=0)
        leaving.send_raw(leaving.encode(request, 9))
        inside.until(lambda broker: len(broker.reactor.connections) == 2)
        # The broker has other things to do until all of it is there, and the end too.
        is_busy = threading.Thread(target=inside.run, args=(lambda _: has_left.wait(20),))
        is_busy.start()
        leaving.send_raw(b"".join(leaving.encode(request, 9) for _ in range(many - 1)))
    has_left.set()
    is_busy.join()
    inside.until(lambda broker: len(broker.reactor.connections) == 1)
    assert fetch(wire, topic, 0).high_watermark == many


@pytest.mark.parametrize("acks", [2, -2, 32767])
@pytest.mark.parametrize("version", [3, 9, 13])
def test_acks_of_other_numbers(wire: Wire, topic: Topic, version: int, acks: int) -> None:
    answer = produce(wire, topic, batch_of(b"a"), version=version, acks=acks)
    assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert answer.base_offset == -1
    assert end_offset(wire, topic) == 0


def test_fewer_replicas_than_are_wanted_in_sync(wire: Wire) -> None:
    """With all replicas in sync a topic has done what it can."""
    topic = create_topic(wire, min_insync_replicas="2")
    for acks in (-1, 1):
        assert produce(wire, topic, batch_of(b"a"), acks=acks).error_code == 0


def test_too_few_replicas_in_sync(inside: BrokerThread, wire: Wire) -> None:
    topic = create_topic(wire, min_insync_replicas="2")

    def lose_one(broker: Broker) -> None:
        """As if it had a second replica, which is behind."""
        partition = broker.partitions.by_name[topic.name][0]
        state = broker.image.topics[topic.name].partitions[0]
        replicas = (broker.id, broker.id + 1)
        partition.update(replace(state, replicas=replicas, partition_epoch=1), 0)
        broker.partitions.settle(topic.name)

    inside.run(lose_one)
    refused = produce(wire, topic, batch_of(b"a"), acks=-1)
    assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert end_offset(wire, topic) == 0
    assert produce(wire, topic, batch_of(b"a"), acks=1).error_code == 0
    set_config(wire, topic.name, min_insync_replicas="1")
    assert produce(wire, topic, batch_of(b"b"), acks=-1).base_offset == 1


# Unknown topics, partitions, ids ----------------------------------------------------------------


@pytest.mark.differs("Kafka names Produce v0–v2 in ApiVersions and closes the connection on them")
@pytest.mark.parametrize("version", range(13))
def test_unknown_topic(wire: Wire, version: int) -> None:
    nowhere = Topic(fresh_name("missing"), bytes(16))
    answer = produce(wire, nowhere, batch_of(b"a"), version=version)
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert answer.base_offset == -1
    assert answer.log_start_offset == -1


@pytest.mark.parametrize("version", FORMAT_2)
@pytest.mark.parametrize("index", [1, -1, 2**31 - 1])
def test_unknown_partition(wire: Wire, topic: Topic, version: int, index: int) -> None:
    answer = produce(wire, topic, batch_of(b"a"), version=version, index=index)
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_unknown_topic_id(wire: Wire, topic: Topic) -> None:
    stranger = Topic(topic.name, b"\x01" * 16)
    answer = produce(wire, stranger, batch_of(b"a"), version=13)
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID


# Batches that are refused -----------------------------------------------------------------------


@pytest.mark.parametrize("version", FORMAT_2)
def test_damaged_batch(wire: Wire, topic: Topic, version: int) -> None:
    damaged = bytearray(batch_of(b"value"))
    damaged[-2] ^= 0x40
    answer = produce(wire, topic, bytes(damaged), version=version)
    assert answer.error_code == ErrorCode.CORRUPT_MESSAGE
    assert answer.base_offset == -1
    assert end_offset(wire, topic) == 0


@pytest.mark.parametrize("version", [3, 8, 9, 13])
def test_two_batches(wire: Wire, topic: Topic, version: int) -> None:
    answer = produce(wire, topic, batch_of(b"a") + batch_of(b"b"), version=version)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert end_offset(wire, topic) == 0


@pytest.mark.differs("Kafka never answers a Produce request with null records")
@pytest.mark.parametrize("version", [3, 8, 9, 13])
@pytest.mark.parametrize("records", [None, b""])
def test_no_batch(wire: Wire, topic: Topic, version: int, records: bytes | None) -> None:
    answer = produce(wire, topic, records, version=version)
    assert answer.error_code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("version", [3, 9, 13])
@pytest.mark.parametrize("magic", [0, 1])
def test_old_format_in_a_new_version(wire: Wire, topic: Topic, version: int, magic: int) -> None:
    message = build_message_set([Record(0, now_ms(), b"key", b"value" * 20)], magic)
    answer = produce(wire, topic, message, version=version)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert end_offset(wire, topic) == 0


@pytest.mark.parametrize("version", [3, 9, 13])
def test_format_of_the_future(wire: Wire, topic: Topic, version: int) -> None:
    batch = bytearray(batch_of(b"a"))
    batch[16] = 3
    answer = produce(wire, topic, bytes(batch), version=version)
    assert answer.error_code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)
    assert end_offset(wire, topic) == 0


@pytest.mark.parametrize("version", [3, 4, 5, 6])
def test_zstandard_before_it_was_known(wire: Wire, topic: Topic, version: int) -> None:
    answer = produce(wire, topic, batch_of(b"a" * 99, codec=Codec.ZSTD), version=version)
    assert answer.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert produce(wire, topic, batch_of(b"a", codec=Codec.ZSTD), version=7).error_code == 0


@pytest.mark.differs("Kafka answers UNKNOWN_SERVER_ERROR")
@pytest.mark.parametrize("version", [3, 9, 13])
def test_codec_that_nobody_knows(wire: Wire, topic: Topic, version: int) -> None:
    for codec in (5, 6, 7):
        batch = changed(batch_of(b"a"), "h", ATTRIBUTES_AT, codec)
        answer = produce(wire, topic, batch, version=version)
        assert answer.error_code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)
    assert end_offset(wire, topic) == 0


@pytest.mark.parametrize("version", [3, 9, 13])
def test_control_batch(wire: Wire, topic: Topic, version: int) -> None:
    batch = build_batch(
        [Record(0, now_ms(), b"\0\0\0\1", b"\0\0\0\0\0\0")],
        control=True, producer_id=5, producer_epoch=0, base_sequence=0,
    )  # fmt: skip
    answer = produce(wire, topic, batch, version=version)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert end_offset(wire, topic) == 0


@pytest.mark.parametrize("version", [3, 9, 13])
def test_delete_horizon(wire: Wire, topic: Topic, version: int) -> None:
    batch = changed(batch_of(b"a"), "h", ATTRIBUTES_AT, 0x40)
    answer = produce(wire, topic, batch, version=version)
    assert answer.error_code in (ErrorCode.INVALID_RECORD, ErrorCode.NONE)


@pytest.mark.differs("Kafka takes such a batch if it is not compressed, and resets the type")
def test_timestamp_type_is_the_brokers(wire: Wire, topic: Topic) -> None:
    answer = produce(wire, topic, batch_of(b"a", timestamp_type=1))
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert end_offset(wire, topic) == 0


@pytest.mark.parametrize("version", [3, 9, 13])
def test_transactional_batch_without_a_transaction(wire: Wire, topic: Topic, version: int) -> None:
    """There is no coordinator yet whom to ask, so a producer is told to try again, as by Kafka."""
    batch = batch_of(b"a", transactional=True, producer_id=9999, producer_epoch=0, base_sequence=0)
    answer = produce(wire, topic, batch, version=version, transactional_id="mine")
    assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert end_offset(wire, topic) == 0


@pytest.mark.parametrize("version", [3, 9, 13])
@pytest.mark.parametrize(("count", "delta"), [(2, 0), (1, 1), (0, 0), (-1, -2), (0, -1)])
def test_counts_that_do_not_fit(
    wire: Wire, topic: Topic, version: int, count: int, delta: int
) -> None:
    batch = changed(batch_of(b"a"), "i", RECORD_COUNT_AT, count)
    batch = changed(batch, "i", LAST_OFFSET_DELTA_AT, delta)
    answer = produce(wire, topic, batch, version=version)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert end_offset(wire, topic) == 0


@pytest.mark.parametrize("version", [3, 9, 13])
def test_base_offset_other_than_zero(wire: Wire, topic: Topic, version: int) -> None:
    batch = bytearray(batch_of(b"a"))
    struct.pack_into(">q", batch, 0, 5)
    answer = produce(wire, topic, bytes(batch), version=version)
    assert answer.error_code == ErrorCode.INVALID_RECORD


@pytest.mark.differs("Kafka answers UNKNOWN_SERVER_ERROR to the largest length")
@pytest.mark.parametrize("version", [3, 9, 13])
@pytest.mark.parametrize("length", [0, -1, 48, 49, 2**31 - 1, -(2**31)])
def test_lying_batch_length(wire: Wire, topic: Topic, version: int, length: int) -> None:
    batch = changed(batch_of(b"a" * 30), "i", BATCH_LENGTH_AT, length)
    answer = produce(wire, topic, batch, version=version)
    assert answer.error_code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)
    assert end_offset(wire, topic) == 0


# Sizes and times --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 9, 13])
def test_max_message_bytes(wire: Wire, version: int) -> None:
    fits = batch_of(b"x" * 300)
    topic = create_topic(wire, max_message_bytes=str(len(fits)))
    assert produce(wire, topic, fits, version=version).error_code == 0
    answer = produce(wire, topic, batch_of(b"x" * 301), version=version)
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert answer.base_offset == -1
    set_config(wire, topic.name, max_message_bytes=str(len(fits) + 1))
    assert produce(wire, topic, batch_of(b"x" * 301), version=version).base_offset == 1
    assert end_offset(wire, topic) == 2


def test_broker_wide_limit_of_message_size(wire: Wire, topic: Topic) -> None:
    assert produce(wire, topic, batch_of(b"x" * 1_100_000)).error_code == (
        ErrorCode.MESSAGE_TOO_LARGE
    )
    assert produce(wire, topic, batch_of(b"x" * 1_000_000)).base_offset == 0


@pytest.mark.parametrize("version", [3, 9, 13])
def test_timestamps_out_of_range(wire: Wire, version: int) -> None:
    topic = create_topic(
        wire,
        message_timestamp_before_max_ms=str(3 * DAY_MS),
        message_timestamp_after_max_ms=str(DAY_MS),
    )
    for days in (-4, 2):
        batch = batch_of(b"a", timestamp=now_ms() + days * DAY_MS)
        answer = produce(wire, topic, batch, version=version)
        assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
        assert answer.base_offset == -1
    assert end_offset(wire, topic) == 0
    for days in (-2, 0):
        batch = batch_of(b"a", timestamp=now_ms() + days * DAY_MS)
        assert produce(wire, topic, batch, version=version).error_code == 0


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("records", [3, 500])
def test_the_timestamp_of_every_record_counts(wire: Wire, codec: Codec, records: int) -> None:
    """Not that of the first one alone: deltas may be negative. Small batches are looked at on the
    loop, large ones elsewhere."""
    topic = create_topic(wire, message_timestamp_before_max_ms=str(3 * DAY_MS))
    now = now_ms()

    def batch(*days: int) -> bytes:
        times = [now + each * DAY_MS for each in days]
        times += [now] * (records - len(times))
        return build_batch(
            [Record(offset, at, b"key", b"value" * 5) for offset, at in enumerate(times)],
            codec=codec,
        )

    for days in ((0, -4, 0), (0, 0, -4), (-4, 0, 0)):
        answer = produce(wire, topic, batch(*days))
        assert answer.error_code == ErrorCode.INVALID_TIMESTAMP, days
    assert end_offset(wire, topic) == 0
    assert produce(wire, topic, batch(0, -2, 0)).base_offset == 0


def test_a_record_without_a_timestamp_is_not_too_old(wire: Wire) -> None:
    topic = create_topic(wire, message_timestamp_before_max_ms=str(3 * DAY_MS))
    assert produce(wire, topic, batch_of(b"a", timestamp=-1)).error_code == 0


@pytest.mark.complains
@pytest.mark.parametrize("version", FORMAT_2)
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_a_lack_of_descriptors_is_no_fault_of_the_batch(
    inside: BrokerThread, wire: Wire, monkeypatch: pytest.MonkeyPatch, version: int, kind: str
) -> None:
    """The batch may be sent again, and is taken once there is room."""
    topic = create_topic(wire, message_timestamp_type=kind)

    def create(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "create", create)
        answer = produce(wire, topic, batch_of(b"a"), version=version)
    # Clients of before Kafka 1.0 try again only if they hear of another leader.
    known = ErrorCode.KAFKA_STORAGE_ERROR if version >= 4 else ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answer.error_code == known
    assert produce(wire, topic, batch_of(b"a"), version=version).base_offset == 0
    assert read_all(wire, topic) == [b"a"]


@pytest.mark.parametrize("version", FORMAT_2)
def test_log_append_time(wire: Wire, version: int) -> None:
    topic = create_topic(wire, message_timestamp_type="LogAppendTime")
    before = now_ms()
    answer = produce(wire, topic, batch_of(b"a", b"b", timestamp=17), version=version)
    after = now_ms()
    assert answer.error_code == 0
    assert before <= answer.log_append_time_ms <= after
    (stored,) = whole_batches(fetch(wire, topic, 0).records)
    header = read_header(stored)
    assert header.timestamp_type == 1
    assert header.max_timestamp == answer.log_append_time_ms
    from ottla.record.batch import check_batch, records

    check_batch(stored)
    assert [record.timestamp for record in records(stored)] == [answer.log_append_time_ms] * 2


def test_compacted_topic_wants_keys(wire: Wire) -> None:
    topic = create_topic(wire, cleanup_policy="compact")
    keyless = build_batch([Record(0, now_ms(), b"k", b"v"), Record(1, now_ms(), None, b"v")])
    answer = produce(wire, topic, keyless)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert end_offset(wire, topic) == 0
    for codec in Codec:
        keyed = build_batch([Record(0, now_ms(), b"", None)], codec=codec)
        assert produce(wire, topic, keyed).error_code == 0
    assert produce(wire, topic, keyless).error_code == ErrorCode.INVALID_RECORD
    assert end_offset(wire, topic) == 5


@pytest.mark.differs("Kafka gives no message")
def test_a_refused_batch_names_its_reason(wire: Wire, topic: Topic) -> None:
    answer = produce(wire, topic, batch_of(b"a") + batch_of(b"b"), version=8)
    assert answer.error_message
    assert produce(wire, topic, batch_of(b"a"), version=8).error_message is None


def test_the_same_partition_twice_in_a_request(wire: Wire, topic: Topic, is_kafka: bool) -> None:
    """No client does it; each part is taken or refused, and the answers fit the log."""
    request = produce_request(topic, (0, batch_of(b"a")), (0, batch_of(b"b")))
    (answered,) = wire.call(request, ProduceResponse, 9).responses
    taken = [each for each in answered.partition_responses if each.error_code == 0]
    assert end_offset(wire, topic) == len({each.base_offset for each in taken})


def test_errors_of_one_request_do_not_touch_the_next(wire: Wire, topic: Topic) -> None:
    damaged = bytearray(batch_of(b"value"))
    damaged[-2] ^= 1
    frames = b"".join(
        wire.encode(produce_request(topic, (0, batch)), 9)
        for batch in (batch_of(b"a"), bytes(damaged), batch_of(b"b"))
    )
    wire.send_raw(frames)
    answers = [wire.receive(ProduceResponse, 9).responses[0].partition_responses[0] for _ in "123"]
    assert errors(answers) == [ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE, ErrorCode.NONE]
    assert [each.base_offset for each in answers] == [0, -1, 1]
