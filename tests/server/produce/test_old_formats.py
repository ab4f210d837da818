"""Produce v0–v2: message sets of formats 0 and 1 become batches of format 2.

Kafka 4 no longer takes these versions, so there is no peer to compare with.
"""

from __future__ import annotations

import itertools

import pytest
from server_kit.calls import (
    Topic,
    all_batches,
    create_topic,
    end_offset,
    fetch,
    now_ms,
    produce,
    produce_request,
    read_all,
    whole_batches,
)
from server_kit.wire import Wire

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.produce import ProduceResponse
from ottla.record.batch import Codec, Record, check_batch, records
from ottla.record.legacy import build_message_set

pytestmark = pytest.mark.differs("Kafka 4 closes the connection on Produce v0–v2")

OLD_CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
CASES = list(itertools.product([0, 1, 2], [0, 1]))


def some(count: int, size: int = 10) -> list[Record]:
    at = now_ms()
    return [Record(each, at + each, b"k%d" % each, b"v%d" % each * size) for each in range(count)]


@pytest.mark.parametrize(("version", "magic"), CASES)
@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("count", [1, 3, 400])
def test_message_sets_become_batches(
    wire: Wire, topic: Topic, version: int, magic: int, codec: Codec, count: int
) -> None:
    sent = some(count)
    for round_number in (0, 1):
        answer = produce(wire, topic, build_message_set(sent, magic, codec), version=version)
        assert (answer.error_code, answer.base_offset) == (0, round_number * count)
        assert answer.log_append_time_ms == -1
    stored = all_batches(wire, topic)
    got = [record for batch in stored for record in records(batch)]
    for batch in stored:
        assert check_batch(batch).codec == codec
    assert [record.offset for record in got] == list(range(2 * count))
    assert [(record.key, record.value) for record in got] == [
        (record.key, record.value) for record in sent * 2
    ]
    assert [record.timestamp for record in got] == [
        record.timestamp if magic else -1 for record in sent * 2
    ]


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(
    "damage", ["checksum", "cut", "length", "codec", "nothing", "null", "magic"]
)
def test_bad_message_sets(wire: Wire, topic: Topic, version: int, damage: str) -> None:
    good = build_message_set(some(2), 1)
    bad: bytes | None
    match damage:
        case "checksum":
            bad = good[:-1] + b"?"
        case "cut":
            bad = good[:-5]
        case "length":
            bad = good[:8] + b"\x7f\xff\xff\xff" + good[12:]
        case "codec":
            bad = build_message_set(some(2), 1, Codec.GZIP)
            bad = bad[:-20] + bytes(20)
        case "nothing":
            bad = b""
        case "null":
            bad = None
        case _:
            bad = good[:16] + b"\x02" + good[17:]
    answer = produce(wire, topic, bad, version=version)
    assert answer.error_code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)
    assert answer.base_offset == -1
    assert end_offset(wire, topic) == 0


@pytest.mark.parametrize("version", [0, 1, 2])
def test_without_acknowledgement(wire: Wire, topic: Topic, version: int) -> None:
    for value in range(3):
        message = build_message_set([Record(0, -1, None, b"%d" % value)], 0)
        wire.send(produce_request(topic, (0, message), acks=0), version)
    assert wire.call(MetadataRequest(topics=[]), MetadataResponse, 1).brokers
    assert read_all(wire, topic) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_log_append_time(wire: Wire, version: int) -> None:
    topic = create_topic(wire, message_timestamp_type="LogAppendTime")
    before = now_ms()
    answer = produce(wire, topic, build_message_set(some(2), 1), version=version)
    assert answer.error_code == 0
    if version == 2:
        assert before <= answer.log_append_time_ms <= now_ms()
    else:
        assert answer.log_append_time_ms == -1  # the version has no room for it
    (batch,) = whole_batches(fetch(wire, topic, 0).records)
    assert check_batch(batch).timestamp_type == 1


@pytest.mark.parametrize("name", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_topics_own_codec(wire: Wire, name: str) -> None:
    topic = create_topic(wire, compression_type=name)
    answer = produce(wire, topic, build_message_set(some(5), 1, Codec.GZIP), version=2)
    assert answer.error_code == 0
    (batch,) = whole_batches(fetch(wire, topic, 0).records)
    wanted = Codec.NONE if name == "uncompressed" else Codec[name.upper()]
    assert check_batch(batch).codec == wanted
    assert [record.value for record in records(batch)] == [each.value for each in some(5)]


def test_compacted_topic_wants_keys(wire: Wire) -> None:
    topic = create_topic(wire, cleanup_policy="compact")
    keyless = build_message_set([Record(0, 5, None, b"v")], 1)
    assert produce(wire, topic, keyless, version=2).error_code == ErrorCode.INVALID_RECORD
    keyed = build_message_set([Record(0, now_ms(), b"k", b"v")], 1)
    assert produce(wire, topic, keyed, version=2).error_code == 0
    assert end_offset(wire, topic) == 1


def test_wrapper_that_unfolds_to_very_much(wire: Wire, topic: Topic) -> None:
    bomb = build_message_set([Record(0, now_ms(), b"k", bytes(3 << 20))], 1, Codec.GZIP)
    assert len(bomb) < 10_000
    answer = produce(wire, topic, bomb, version=2)
    # It fits the memory, and its batch (gzip again) fits max.message.bytes.
    assert answer.error_code == 0
    assert read_all(wire, topic) == [bytes(3 << 20)]


def test_several_partitions(wire: Wire) -> None:
    topic = create_topic(wire, partitions=3)
    request = produce_request(
        topic,
        (0, build_message_set(some(2), 0)),
        (1, b"bad"),
        (2, build_message_set(some(1), 1, Codec.SNAPPY)),
        (3, build_message_set(some(1), 1)),
    )
    answers = wire.call(request, ProduceResponse, 0).responses[0].partition_responses
    assert [(each.index, each.error_code) for each in answers] == [
        (0, ErrorCode.NONE),
        (1, ErrorCode.CORRUPT_MESSAGE),
        (2, ErrorCode.NONE),
        (3, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
