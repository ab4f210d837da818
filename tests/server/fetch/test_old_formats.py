"""Fetch v0–v3: batches become message sets, of format 0 for v0 and v1, of format 1 for v2 and v3."""

from __future__ import annotations

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import (
    Topic,
    batch_of,
    create_topic,
    fetch,
    fetch_request,
    fill,
    now_ms,
    produce,
)
from server_kit.wire import Wire

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchResponse
from ottla.record.batch import Codec, Record, build_batch
from ottla.record.legacy import build_message_set, messages

VERSIONS = [0, 1, 2, 3]


def magic_of(data: bytes) -> int:
    return data[16]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("count", [1, 5, 500])
def test_batches_become_messages(
    wire: Wire, topic: Topic, version: int, codec: Codec, count: int
) -> None:
    at = now_ms()
    sent = [
        Record(each, at + each, b"k%d" % each, b"v%d" % each * 9, (("lost", b"header"),))
        for each in range(count)
    ]
    fill(wire, topic, build_batch(sent, codec=codec), build_batch(sent, codec=codec))
    answer = fetch(wire, topic, 0, version=version)
    assert (answer.error_code, answer.high_watermark) == (0, 2 * count)
    data = bytes(answer.records)
    assert magic_of(data) == (0 if version < 2 else 1)
    got = list(messages(data))
    assert [record.offset for record in got] == list(range(2 * count))
    assert [(record.key, record.value) for record in got] == [
        (record.key, record.value) for record in sent * 2
    ]
    assert [record.timestamp for record in got] == [
        -1 if version < 2 else record.timestamp for record in sent * 2
    ]
    assert all(record.headers == () for record in got)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_from_the_middle_of_a_batch(wire: Wire, topic: Topic, version: int, codec: Codec) -> None:
    fill(wire, topic, batch_of(*(b"%d" % each for each in range(10)), codec=codec))
    got = list(messages(bytes(fetch(wire, topic, 6, version=version).records)))
    # An old client skips what is before; in compressed sets there may be some.
    assert [record.offset for record in got if record.offset >= 6] == [6, 7, 8, 9]
    assert got[-1].value == b"9"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_batch_cut_by_max_bytes_is_left_out(wire: Wire, topic: Topic, version: int) -> None:
    first, second = batch_of(b"a" * 300), batch_of(b"b" * 300)
    fill(wire, topic, first, second)
    answer = fetch(wire, topic, 0, version=version, partition_max_bytes=len(first) + 50)
    got = list(messages(bytes(answer.records), partial=True))
    assert [record.value for record in got] == [b"a" * 300]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_batch_larger_than_max_bytes_comes_whole(wire: Wire, topic: Topic, version: int) -> None:
    """Otherwise such a reader would never get on (Kafka before v3 let it hang there)."""
    fill(wire, topic, batch_of(b"a" * 3000))
    answer = fetch(wire, topic, 0, version=version, partition_max_bytes=100)
    assert [record.value for record in messages(bytes(answer.records))] == [b"a" * 3000]


@pytest.mark.parametrize("version", VERSIONS)
def test_empty_and_out_of_range(wire: Wire, topic: Topic, version: int) -> None:
    answer = fetch(wire, topic, 0, version=version)
    assert (answer.error_code, bytes(answer.records or b"")) == (0, b"")
    answer = fetch(wire, topic, 1, version=version)
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("version", VERSIONS)
def test_log_append_time(wire: Wire, version: int) -> None:
    topic = create_topic(wire, message_timestamp_type="LogAppendTime")
    answer = produce(wire, topic, batch_of(b"a", b"b", timestamp=5))
    data = bytes(fetch(wire, topic, 0, version=version).records)
    stamp = -1 if version < 2 else answer.log_append_time_ms
    assert [record.timestamp for record in messages(data)] == [stamp, stamp]
    if version >= 2:
        assert data[17] & 0x08


@pytest.mark.differs("Kafka 4 closes the connection on Produce v0–v2")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_there_and_back_again(wire: Wire, topic: Topic, version: int, codec: Codec) -> None:
    sent = [Record(each, now_ms(), b"k", b"v%d" % each) for each in range(20)]
    magic = 0 if version < 2 else 1
    message_set = build_message_set(sent, magic, codec)
    assert produce(wire, topic, message_set, version=min(version, 2)).error_code == 0
    got = list(messages(bytes(fetch(wire, topic, 0, version=version).records)))
    assert [(each.offset, each.key, each.value) for each in got] == [
        (each.offset, each.key, each.value) for each in sent
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_waiting_for_data(wire: Wire, topic: Topic, version: int) -> None:
    """The wait is by the size of what is stored; what comes is converted."""
    wire.send(fetch_request(topic, (0, 0), max_wait_ms=20_000), version)
    import socket

    other = Wire(*wire.sock.getpeername()[:2])
    fill(other, topic, batch_of(b"woken"))
    (answer,) = wire.receive(FetchResponse, version).responses[0].partitions
    assert [record.value for record in messages(bytes(answer.records))] == [b"woken"]
    other.sock.shutdown(socket.SHUT_RDWR)
    other.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_records_that_are_none_under_a_right_checksum(
    inside: BrokerThread, wire: Wire, topic: Topic, version: int
) -> None:
    """Stored as they came (by a broker that trusts producers); an old client gets an error, not a
    hang."""
    from ottla.record.batch import assemble, read_header

    header = read_header(batch_of(b"a"))
    inside.trust_producers(topic.name)
    fill(wire, topic, assemble(header, b"no records at all"))
    answered = fetch(wire, topic, 0, version=version)
    assert answered.error_code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)
