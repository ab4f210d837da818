"""Clients from before Kafka 0.11, which speak the message formats v0 and v1.

Kafka 4 turns them away; here they work. The old ones are real where they can be had (the Java clients
of 0.8.2, 0.9 and 0.10), and newer clients told that the broker is old (kafka-python, kcat, sarama).
Their records have no headers; those of before 0.10 have no timestamps either.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from interop_kit.clients.client import A, Ability, Client, Start, as_seen_by, carried
from interop_kit.clients.registry import OLD_CLIENTS, named, parsed
from interop_kit.clients.wire_client import WireClient
from interop_kit.records import assert_same, binary_records, numbered, odd_records, plain_records
from interop_kit.wire import RawConnection, stored_batches

PRODUCE, FETCH = 0, 1
NO_TIMESTAMP = -1
UNSUPPORTED_COMPRESSION_TYPE = 76


@pytest.fixture(scope="session", autouse=True)
def broker_with_old_versions(broker) -> None:
    with RawConnection(broker.bootstrap) as connection:
        lowest = connection.api_versions()[FETCH][0]
    if lowest > 0:
        pytest.skip("the broker does not serve clients as old as these (Kafka 4 does not)")


@pytest.fixture(params=OLD_CLIENTS)
def client(request: pytest.FixtureRequest, make_client) -> Client:
    return make_client(request.param)


def those_that(*abilities: Ability) -> pytest.MarkDecorator:
    """Limits a test to the clients that can do this."""
    return pytest.mark.parametrize("client", named(OLD_CLIENTS, *abilities), indirect=True)


def with_codecs(*abilities: Ability) -> pytest.MarkDecorator:
    """The same, with each codec that the client has."""
    pairs = [
        (name, codec)
        for name in named(OLD_CLIENTS, *abilities)
        for codec in sorted(OLD_CLIENTS[name].codecs)
    ]
    return pytest.mark.parametrize(("client", "codec"), pairs, indirect=["client"])


def readable_kinds(client: Client) -> list:
    binary = [] if A.BINARY in client.unreadable else binary_records()
    return odd_records() + binary


@with_codecs()
def test_written_by_an_old_client(client, reference, broker, topic, codec) -> None:
    """Converted on the way in: a reader of today finds record batches v2."""
    reference.create_topic(topic)
    records = carried(odd_records() + binary_records(), client)
    offsets = client.produce(topic, records, codec)
    assert offsets in (list(range(len(records))), [-1] * len(records))
    assert_same(reference.consume(topic, 0, len(records)), numbered(records))
    stored = stored_batches(broker.bootstrap, topic)
    assert {batch.magic for batch in stored} == {2}
    assert codec in {batch.codec for batch in stored}
    if A.TIMESTAMPS in client.unreadable:
        # The sign of format v0: it has nowhere to put a timestamp.
        assert {batch.max_timestamp for batch in stored} == {NO_TIMESTAMP}
    else:
        assert all(batch.max_timestamp > 0 for batch in stored)


@with_codecs(A.READ)
def test_read_by_an_old_client(client, reference, topic, codec) -> None:
    """Converted on the way out: batches with headers reach a reader that knows none of it."""
    reference.create_topic(topic)
    records = readable_kinds(client)
    reference.produce(topic, records, codec)
    found = client.consume(topic, 0, len(records))
    assert_same(found, numbered(as_seen_by(records, client)))


@those_that(A.READ)
def test_written_and_read_by_the_same_old_client(client, reference, topic) -> None:
    reference.create_topic(topic)
    records = []
    for codec in sorted(client.codecs):
        some = carried(odd_records(), client)
        client.produce(topic, some, codec)
        records += some
    assert_same(client.consume(topic, 0, len(records)), numbered(as_seen_by(records, client)))


@those_that(A.READ)
def test_read_from_the_middle_of_a_batch(client, reference, topic) -> None:
    reference.create_topic(topic)
    records = numbered(plain_records(80))
    codecs = sorted(client.codecs)
    for number, codec in enumerate(codecs):
        reference.produce(topic, records[number * 20 : number * 20 + 20], codec)
    seen = as_seen_by(records[: len(codecs) * 20], client)
    for number in range(len(codecs)):
        middle = number * 20 + 13
        assert_same(client.consume(topic, 0, 6, Start(offset=middle)), seen[middle : middle + 6])
    assert_same(client.consume(topic, 0, len(seen) - 7, Start(offset=7)), seen[7:])


@those_that(A.READ)
def test_formats_of_all_ages_in_one_log(client, reference, topic) -> None:
    """Old and new writers take turns; the old reader and the new one see the same."""
    reference.create_topic(topic)
    records = carried(plain_records(60), client)
    for first in range(0, 60, 20):
        client.produce(topic, records[first : first + 10], "gzip")
        reference.produce(topic, records[first + 10 : first + 20], "snappy")
    assert_same(reference.consume(topic, 0, 60), numbered(records))
    assert_same(client.consume(topic, 0, 60), numbered(as_seen_by(records, client)))


@those_that(A.READ, A.TIME)
def test_read_from_a_time(client, reference, topic) -> None:
    records = numbered(plain_records(30, step=1000))
    reference.create_topic(topic)
    reference.produce(topic, records[:15])
    reference.produce(topic, records[15:], "lz4")
    found = client.consume(topic, 0, 10, Start(time=records[20].timestamp - 300))
    assert_same(found, as_seen_by(records[20:], client))


@those_that(A.READ)
def test_many_records(client, reference, topic) -> None:
    reference.create_topic(topic)
    records = carried(plain_records(3_000, size=300, step=1), client)
    client.produce(topic, records, "snappy")
    assert_same(client.consume(topic, 0, 3_000), numbered(as_seen_by(records, client)))


@pytest.mark.parametrize("acks", ["0", "1"])
def test_acknowledgements(client, reference, topic, acks) -> None:
    reference.create_topic(topic)
    records = carried(plain_records(10), client)
    client.produce(topic, records, acks=acks)
    assert_same(reference.consume(topic, 0, 10), numbered(records))


# (Produce, Fetch): what each version of Kafka brought. Some clients skip a step on their way.
SPOKEN = {(0, 8, 2): (0, 0), (0, 9): (1, 1), (0, 10, 0): (2, 2), (0, 10, 2): (2, 3)}


@pytest.fixture(params=OLD_CLIENTS)
def watched(request: pytest.FixtureRequest, watched_broker, tmp_path) -> Iterator[Client]:
    client = OLD_CLIENTS[request.param].client(watched_broker.proxy.address, tmp_path)
    yield client
    client.close()


def test_old_clients_speak_old_versions(watched, watched_broker, topic) -> None:
    """Seen by a proxy: Produce 0-2 and Fetch 0-3, or the tests above would prove little."""
    proxy = watched_broker.proxy
    WireClient(watched_broker.process.bootstrap).create_topic(topic)
    records = carried(plain_records(5), watched)
    watched.produce(topic, records, "gzip")
    if watched.can(A.READ):
        assert_same(watched.consume(topic, 0, 5), numbered(as_seen_by(records, watched)))
    version = parsed(watched.name.rpartition("-")[2])
    highest_produce, highest_fetch = max(
        spoken for since, spoken in SPOKEN.items() if version >= since
    )
    produced, fetched = proxy.versions(PRODUCE), proxy.versions(FETCH)
    assert produced
    assert max(produced) <= highest_produce
    assert fetched or not watched.can(A.READ)
    assert max(fetched, default=0) <= highest_fetch
