"""The requests of clients from before Kafka 0.11, byte by byte: Produce 0-2, Fetch 0-3, Metadata 0,
ListOffsets 0-1, and the message formats v0 and v1 in both directions.

What an answer must look like was found by asking Kafka 3.9, the last that took these.
"""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from interop_kit.message_sets import message, message_set, messages
from interop_kit.records import Record, assert_same, now_ms, numbered, plain_records
from interop_kit.wire import EARLIEST, FETCH, LATEST, RawConnection, string

UNKNOWN_TOPIC, OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE, MESSAGE_TOO_LARGE = 3, 1, 2, 10
UNSUPPORTED_COMPRESSION_TYPE = 76
CODECS = ("none", "gzip", "snappy", "lz4")
# The highest format that each version of Fetch may answer with.
FETCH_MAGIC = {0: 0, 1: 0, 2: 1, 3: 1}


@pytest.fixture
def wire(broker):
    with RawConnection(broker.bootstrap) as connection:
        if connection.api_versions()[FETCH][0] > 0:
            pytest.skip("the broker does not serve clients as old as this (Kafka 4 does not)")
        yield connection


def sample(count: int, magic: int) -> list[Record]:
    """Records as this format holds them, a null key and a null value among them."""
    records = plain_records(count)
    records[1] = replace(records[1], key=None)
    records[2] = replace(records[2], value=None)
    if magic == 0:
        records = [replace(record, timestamp=None) for record in records]
    return records


def in_format(records: list[Record], magic: int) -> list[Record]:
    return [
        replace(record, timestamp=record.timestamp if magic == 1 else None) for record in records
    ]


def fetch_all(wire, version: int, topic: str, count: int, offset: int = 0) -> list[Record]:
    """What an old client gets from an offset on; it drops what is before it by itself."""
    found: list[Record] = []
    while len(found) < count:
        answer = wire.fetch(version, topic, 0, offset)
        assert answer.error == 0
        new = list(messages(answer.data))
        assert new, f"nothing at {offset}"
        assert {magic for magic, _ in new} == {FETCH_MAGIC[version]}
        found += [record for _, record in new if record.offset >= offset]
        offset = found[-1].offset + 1
    return found


def test_metadata_0_creates_a_topic(wire, broker, topic) -> None:
    """Old producers know no other way. The first answer may say that there is no leader yet."""
    for _ in range(1000):
        brokers, topics = wire.metadata(topic)
        error, partitions = topics[topic]
        if error == 0:
            break
        assert error in (UNKNOWN_TOPIC, 5)
    assert error == 0
    (partition,) = partitions
    assert (partition.error, partition.partition) == (0, 0)
    host, port = brokers[partition.leader]
    assert f"{host}:{port}" == broker.bootstrap
    assert partition.leader in partition.replicas
    assert partition.leader in partition.in_sync


def test_metadata_0_of_all_topics(wire, reference, topic) -> None:
    reference.create_topic(topic, 2)
    _, topics = wire.metadata()
    assert len(topics[topic][1]) == 2


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 0), (2, 1)])
def test_produce_and_fetch(wire, reference, topic, version, magic, codec) -> None:
    reference.create_topic(topic)
    records = sample(12, magic)
    answer = wire.produce(version, topic, 0, message_set(records[:8], magic, codec))
    assert (answer.error, answer.base_offset) == (0, 0)
    assert answer.log_append_time in (None, -1)
    answer = wire.produce(version, topic, 0, message_set(records[8:], magic, codec), acks=1)
    assert (answer.error, answer.base_offset) == (0, 8)
    expected = numbered(records)
    assert_same(reference.consume(topic, 0, 12), expected)
    for fetch_version, fetch_magic in FETCH_MAGIC.items():
        found = fetch_all(wire, fetch_version, topic, 12)
        assert_same(in_format(found, fetch_magic), in_format(expected, fetch_magic))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("version", FETCH_MAGIC)
def test_record_batches_of_today_in_old_formats(wire, reference, topic, version, codec) -> None:
    """Headers are dropped; offsets, keys, values, and in v1 timestamps, stay."""
    magic = FETCH_MAGIC[version]
    reference.create_topic(topic)
    records = [replace(record, headers=(("h", b"x"),)) for record in sample(20, 1)]
    reference.produce(topic, records[:13], codec)
    reference.produce(topic, records[13:], codec)
    expected = [replace(record, headers=()) for record in numbered(records)]
    assert_same(fetch_all(wire, version, topic, 20), in_format(expected, magic))
    # From the middle of a batch: what the client does not want it drops, what it wants is there.
    assert_same(fetch_all(wire, version, topic, 11, offset=9), in_format(expected[9:], magic))


@pytest.mark.parametrize("version", FETCH_MAGIC)
def test_zstandard_is_refused_or_converted(wire, reference, topic, version) -> None:
    """No old client can read it. Kafka refuses; to convert it would be kinder. Never as it is."""
    reference.create_topic(topic)
    records = plain_records(5)
    reference.produce(topic, records, "zstd")
    answer = wire.fetch(version, topic, 0, 0)
    if answer.error == 0:
        found = [record for _, record in messages(answer.data)]
        expected = in_format(numbered(records), FETCH_MAGIC[version])
        assert_same(found, expected)
    else:
        assert answer.error == UNSUPPORTED_COMPRESSION_TYPE
        assert answer.data == b""


def test_acks_0_has_no_answer(wire, reference, topic) -> None:
    """The next answer on the connection belongs to the next request."""
    reference.create_topic(topic)
    records = sample(3, 1)
    assert wire.produce(2, topic, 0, message_set(records, 1), acks=0) is None
    _, topics = wire.metadata(topic)
    assert topics[topic][0] == 0
    assert_same(reference.consume(topic, 0, 3), numbered(records))


def test_requests_in_a_row_are_answered_in_order(wire, reference, topic) -> None:
    reference.create_topic(topic)
    sent = []
    for number in range(20):
        data = message_set([Record(b"%d" % number)], 0)
        body = struct.pack(">hi", -1, 10_000) + struct.pack(">i", 1) + string(topic)
        body += struct.pack(">iii", 1, 0, len(data)) + data
        sent.append(wire.send(0, 0, body))
    for correlation_id in sent:
        wire.receive(correlation_id)  # asserts the order
    values = [record.value for record in reference.consume(topic, 0, 20)]
    assert values == [b"%d" % number for number in range(20)]


def test_list_offsets_0(wire, reference, topic) -> None:
    """Segment offsets rather than times: the end, and the start of the only segment."""
    reference.create_topic(topic)
    assert wire.offsets_before(topic, 0, LATEST) == (0, [0])
    reference.produce(topic, plain_records(7))
    assert wire.offsets_before(topic, 0, LATEST, 10) == (0, [7, 0])
    assert wire.offsets_before(topic, 0, LATEST, 1) == (0, [7])
    assert wire.offsets_before(topic, 0, EARLIEST, 10) == (0, [0])
    assert wire.offsets_before(topic, 3, LATEST) == (UNKNOWN_TOPIC, [])


def test_list_offsets_1(wire, reference, topic) -> None:
    reference.create_topic(topic)
    records = numbered(plain_records(10, step=1000))
    reference.produce(topic, records)
    assert wire.offset_for_time(topic, 0, EARLIEST) == (0, -1, 0)
    assert wire.offset_for_time(topic, 0, LATEST) == (0, -1, 10)
    moment = records[4].timestamp
    assert wire.offset_for_time(topic, 0, moment - 999) == (0, moment, 4)
    assert wire.offset_for_time(topic, 0, now_ms() + 3_600_000) == (0, -1, -1)


def test_fetch_errors(wire, reference, topic) -> None:
    reference.create_topic(topic)
    reference.produce(topic, plain_records(3))
    for version in FETCH_MAGIC:
        assert wire.fetch(version, topic, 0, 4).error == OFFSET_OUT_OF_RANGE
        assert wire.fetch(version, topic, 9, 0).error == UNKNOWN_TOPIC
        at_the_end = wire.fetch(version, topic, 0, 3, wait_ms=10)
        assert (at_the_end.error, at_the_end.high_watermark, at_the_end.data) == (0, 3, b"")


def test_a_corrupt_message_is_refused(wire, reference, topic) -> None:
    reference.create_topic(topic)
    for version, magic in ((0, 0), (2, 1)):
        damaged = bytearray(message(Record(b"value", b"key", timestamp=now_ms()), magic))
        damaged[-1] ^= 1
        answer = wire.produce(version, topic, 0, bytes(damaged))
        assert answer.error == CORRUPT_MESSAGE
    assert reference.offsets(topic, 0) == (0, 0)
    assert wire.produce(0, topic, 0, message(Record(b"good"), 0)).error == 0


def test_a_message_too_large_is_refused(wire, reference, topic) -> None:
    reference.create_topic(topic, config={"max.message.bytes": "1000"})
    assert wire.produce(0, topic, 0, message(Record(b"x" * 2000), 0)).error == MESSAGE_TOO_LARGE
    assert wire.produce(0, topic, 0, message(Record(b"x" * 500), 0)).error == 0
    assert reference.offsets(topic, 0) == (0, 1)


def test_a_client_without_a_name(broker) -> None:
    with RawConnection(broker.bootstrap, client_id=None) as connection:
        assert connection.metadata()[0]
