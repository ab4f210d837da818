"""What every client does, one scenario at a time, the same for all of them.

Each test writes or reads with the client it is about; the other side is a socket and the bytes of
the log (`reference`), so that a client which misunderstands its own bytes is not believed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from interop_kit.clients.client import A, Ability, Client, Start, as_seen_by, carried
from interop_kit.clients.registry import CLIENTS, named
from interop_kit.records import (
    assert_same,
    binary_records,
    now_ms,
    numbered,
    odd_records,
    plain_records,
)
from interop_kit.wire import RawConnection

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, make_client: Callable[[str], Client]) -> Client:
    return make_client(request.param)


@pytest.fixture
def reader(client: Client, has_groups: bool) -> Client:
    """The client, where it reads."""
    if not client.can(A.READ) and not has_groups:
        pytest.skip(f"{client.name} reads through consumer groups only, which come later")
    return client


def those_that(*abilities: Ability) -> pytest.MarkDecorator:
    """Limits a test to the clients that can do this."""
    return pytest.mark.parametrize("client", named(CLIENTS, *abilities), indirect=True)


def create(client: Client, reference: Client, topic: str, partitions: int = 1) -> None:
    (client if client.can(A.CREATE) else reference).create_topic(topic, partitions)


@those_that(A.CREATE)
def test_create_and_delete_topic(client, reference, broker, topic) -> None:
    config = {"retention.ms": "86400000", "max.message.bytes": "2000000"}
    client.create_topic(topic, 3, config)
    reference.await_topic(topic)
    with RawConnection(broker.bootstrap) as connection:
        brokers, topics = connection.metadata(topic)
        error, partitions = topics[topic]
        assert error == 0
        assert sorted(one.partition for one in partitions) == [0, 1, 2]
        assert all(one.error == 0 and one.leader in brokers for one in partitions)
    assert reference.topic_config(topic).items() >= config.items()
    client.delete_topic(topic)
    # Kafka's answer may come a little before the topic is gone from its metadata.
    deadline = time.monotonic() + 10
    while topic in reference.topic_names():
        assert time.monotonic() < deadline, "the topic is still there"
        time.sleep(0.01)


def test_topic_is_created_by_writing_to_it(client, reference, topic) -> None:
    records = carried(plain_records(3), client)
    client.produce(topic, records)
    assert_same(reference.consume(topic, 0, 3), numbered(records))


@pytest.mark.parametrize("codec", CODECS)
def test_write_every_kind_of_record(client, reference, broker, topic, codec) -> None:
    assert codec in client.codecs
    create(client, reference, topic)
    records = carried(odd_records() + binary_records(), client)
    offsets = client.produce(topic, records, codec)
    assert offsets in (list(range(len(records))), [-1] * len(records))
    assert_same(reference.consume(topic, 0, len(records)), numbered(records))
    stored = broker.stored_batches(topic)
    assert sum(batch.count for batch in stored) == len(records)
    # A client may leave a batch as it is when compression does not make it smaller.
    used = {batch.codec for batch in stored}
    assert codec in used
    assert used <= {codec, "none"}


@pytest.mark.parametrize("codec", CODECS)
def test_read_every_kind_of_record(reader, reference, topic, codec) -> None:
    reference.create_topic(topic)
    records = odd_records()
    if A.BINARY not in reader.unreadable:
        records += binary_records()
    reference.produce(topic, records, codec)
    assert_same(reader.consume(topic, 0, len(records)), numbered(as_seen_by(records, reader)))


def test_read_from_an_offset(reader, reference, broker, topic) -> None:
    records = numbered(plain_records(60))
    reference.create_topic(topic)
    for first in range(0, 60, 20):
        reference.produce(topic, records[first : first + 20], "lz4")
    starts = {batch.base_offset for batch in broker.stored_batches(topic)}
    assert 20 in starts
    assert_same(reader.consume(topic, 0, 25, Start(offset=20)), records[20:45])
    assert_same(reader.consume(topic, 0, 1, Start(offset=59)), records[59:])


@pytest.mark.parametrize("codec", CODECS)
def test_read_from_the_middle_of_a_batch(reader, reference, broker, topic, codec) -> None:
    """The broker sends the whole batch; the reader must not show what is before the offset."""
    records = numbered(plain_records(60))
    reference.create_topic(topic)
    for first in range(0, 60, 20):
        reference.produce(topic, records[first : first + 20], codec)
    ends = [batch.last_offset for batch in broker.stored_batches(topic)]
    assert ends == [19, 39, 59]
    for offset in (33, 39, 41):
        assert_same(reader.consume(topic, 0, 60 - offset, Start(offset=offset)), records[offset:])


@those_that(A.TIME)
def test_read_from_a_time(reader, reference, topic) -> None:
    records = numbered(plain_records(50, step=1000))
    reference.create_topic(topic)
    for first in range(0, 50, 10):
        reference.produce(topic, records[first : first + 10], "gzip")
    between = records[23].timestamp - 500
    assert_same(reader.consume(topic, 0, 27, Start(time=between)), records[23:])
    exactly = records[30].timestamp
    assert_same(reader.consume(topic, 0, 20, Start(time=exactly)), records[30:])


@those_that(A.TIME)
def test_offsets_and_times(client, reference, topic) -> None:
    records = numbered(plain_records(30, step=1000))
    reference.create_topic(topic)
    assert client.offsets(topic, 0) == (0, 0)
    reference.produce(topic, records[:15])
    reference.produce(topic, records[15:], "snappy")
    assert client.offsets(topic, 0) == (0, 30)
    assert client.offset_for_time(topic, 0, records[0].timestamp - 60_000) == 0
    assert client.offset_for_time(topic, 0, records[7].timestamp) == 7
    assert client.offset_for_time(topic, 0, records[21].timestamp - 1) == 21
    assert client.offset_for_time(topic, 0, now_ms() + 3_600_000) is None


def test_partitions_keep_their_order(client, reference, broker, topic) -> None:
    """Records of four partitions in one call; each partition has its own, in order."""
    create(client, reference, topic, 4)
    rows = zip(*(plain_records(25, partition=number) for number in range(4)), strict=True)
    woven = [record for row in rows for record in row]
    records = carried(woven, client)
    client.produce(topic, records, "gzip")
    written = numbered(records)
    for partition in range(4):
        expected = [record for record in written if record.partition == partition]
        assert_same(reference.consume(topic, partition, 25), expected)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acknowledgements(client, reference, topic, acks) -> None:
    create(client, reference, topic)
    records = carried(plain_records(20), client)
    client.produce(topic, records, acks=acks)
    # With acks=0 the call may return first; the reader waits until the records are there.
    assert_same(reference.consume(topic, 0, 20), numbered(records))


@those_that(A.IDEMPOTENCE)
def test_idempotent_producer(client, reference, broker, topic) -> None:
    create(client, reference, topic)
    records = carried(plain_records(30), client)
    client.produce(topic, records[:10], idempotent=True)
    client.produce(topic, records[10:], "zstd", idempotent=True)
    assert_same(reference.consume(topic, 0, 30), numbered(records))
    stored = broker.stored_batches(topic)
    assert len({batch.producer_id for batch in stored}) == 2  # one for each producer
    for batch in stored:
        assert batch.producer_id >= 0
        assert batch.producer_epoch == 0
        assert batch.base_sequence in (0, batch.base_offset, batch.base_offset - 10)


def test_many_records_over_many_fetches(client, reader, reference, topic) -> None:
    """More than one fetch, one batch and one index entry hold: 6,000 records, some 3 MB."""
    create(client, reference, topic)
    records = carried(plain_records(6_000, size=500, step=1), client)
    for first in range(0, 6_000, 1_500):  # the Node clients make one batch of each call
        client.produce(topic, records[first : first + 1_500])
    assert_same(reader.consume(topic, 0, 6_000), numbered(records))
    tail = numbered(records)[5_321:]
    assert_same(reader.consume(topic, 0, len(tail), Start(offset=5_321)), tail)


def test_waiting_reader_gets_what_is_written(reader, reference, topic) -> None:
    """A reader at the end of the log waits in the broker, and is woken by each record."""
    reference.create_topic(topic)
    records = numbered(plain_records(12))
    with ThreadPoolExecutor(1) as beside:
        reading = beside.submit(reader.consume, topic, 0, 12)
        for record in records:
            reference.produce(topic, [record])
        assert_same(reading.result(), records)
