"""Topics on which the broker does more than store: every client reads what comes of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from confluent_kafka.admin import ConfigResource
from interop_kit.clients.client import A, Client, Start, as_seen_by
from interop_kit.clients.registry import CLIENTS
from interop_kit.clients.wire_client import WireClient, record_batch
from interop_kit.records import Record, assert_same, now_ms, numbered, odd_records, plain_records
from interop_kit.wire import RawConnection, stored_batches

MESSAGE_TOO_LARGE = 10


@pytest.fixture(params=CLIENTS)
def reader(
    request: pytest.FixtureRequest, make_client: Callable[[str], Client], has_groups: bool
) -> Client:
    client = make_client(request.param)
    if not client.can(A.READ) and not has_groups:
        pytest.skip(f"{client.name} reads through consumer groups only, which come later")
    return client


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_the_broker_compresses_anew(reader, reference, broker, topic, codec) -> None:
    """compression.type of the topic is another one than the writer's."""
    reference.create_topic(topic, config={"compression.type": codec})
    records = odd_records()
    reference.produce(topic, records, "gzip" if codec != "gzip" else "snappy")
    expected = "none" if codec == "uncompressed" else codec
    assert {batch.codec for batch in stored_batches(broker.bootstrap, topic)} == {expected}
    assert_same(reader.consume(topic, 0, len(records)), numbered(as_seen_by(records, reader)))


def test_the_broker_stamps_the_records(reader, reference, broker, topic) -> None:
    reference.create_topic(topic, config={"message.timestamp.type": "LogAppendTime"})
    before = now_ms()
    records = [replace(record, timestamp=1000) for record in plain_records(20)]
    reference.produce(topic, records[:10])
    reference.produce(topic, records[10:], "gzip")
    after = now_ms()
    found = reader.consume(topic, 0, 20)
    assert_same(found, numbered([replace(record, timestamp=None) for record in records]))
    for batch in stored_batches(broker.bootstrap, topic):
        assert batch.log_append_time
        times = {
            record.timestamp
            for record in found
            if batch.base_offset <= record.offset <= batch.last_offset
        }
        assert times == {batch.max_timestamp}
        assert before <= batch.max_timestamp <= after


def test_a_record_larger_than_a_fetch(reader, reference, topic) -> None:
    """3 MB where clients ask for 1 MB of a partition: the first batch comes whole all the same."""
    reference.create_topic(topic, config={"max.message.bytes": "4000000"})
    small, large = plain_records(2), Record(b"x" * 3_000_000, b"large", timestamp=now_ms())
    records = [small[0], large, small[1]]
    for record in records:
        reference.produce(topic, [record])
    assert_same(reader.consume(topic, 0, 3), numbered(records))


def test_a_log_that_starts_late(reader, reference, topic) -> None:
    """The earliest record is not at offset 0, and in the middle of a batch."""
    reference.create_topic(topic)
    records = numbered(plain_records(30))
    reference.produce(topic, records[:15], "lz4")
    reference.produce(topic, records[15:], "lz4")
    reference.delete_records(topic, 0, 7)
    if reader.name != "kafkajs":  # its driver starts at a number
        assert_same(reader.consume(topic, 0, 23), records[7:])
    assert_same(reader.consume(topic, 0, 10, Start(offset=20)), records[20:])


def test_settings_change_while_the_broker_runs(reference: WireClient, broker, topic) -> None:
    """Another codec, a smaller limit: later batches feel it, those before stay as they are."""
    reference.create_topic(topic)
    reference.produce(topic, plain_records(10))
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    reference.alter_config(resource, {"compression.type": "zstd", "max.message.bytes": "2000"})
    # Kafka answers a little before a change has reached the log.
    deadline = time.monotonic() + 10
    while stored_batches(broker.bootstrap, topic)[-1].codec != "zstd":
        assert time.monotonic() < deadline, "the topic's codec has no effect"
        reference.produce(topic, plain_records(10))
    first, *_, last = stored_batches(broker.bootstrap, topic)
    assert (first.codec, last.codec) == ("none", "zstd")
    # The limit is for the batch as it was sent, however small the broker would make it.
    end = reference.offsets(topic, 0)[1]
    with RawConnection(broker.bootstrap) as connection:
        large = record_batch([Record(b"x" * 4000, timestamp=now_ms())], "none")
        answer = connection.produce(7, topic, 0, large)
    assert answer is not None
    assert answer.error == MESSAGE_TOO_LARGE
    assert reference.offsets(topic, 0)[1] == end
