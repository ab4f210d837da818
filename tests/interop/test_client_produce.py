"""What Ottla's own producer writes, clients of other makers and languages read identically.

Records go in one by one and as a table, with every codec. With TEST_BOOTSTRAP the broker is
another one, Apache Kafka for example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from interop_kit.clients.client import ALL_CODECS, A, Client, as_seen_by
from interop_kit.clients.wire_client import WireClient
from interop_kit.records import Record, assert_same, binary_records, numbered, odd_records
from interop_kit.wire import stored_batches

from ottla import Producer

TEXT, BINARY = 0, 1  # partitions: not every reader shows bytes that are no text
READERS = ["java", "confluent-kafka", "franz-go"]
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def table_of(records: list[Record]) -> pa.Table:
    return pa.table(
        {
            "key": pa.array([each.key for each in records], pa.binary()),
            "value": pa.array([each.value for each in records], pa.binary()),
            "headers": pa.array(
                [
                    [{"key": name, "value": value} for name, value in each.headers]
                    for each in records
                ],
                HEADERS,
            ),
            "timestamp": pa.array([each.timestamp for each in records], pa.int64()),
            "partition": pa.array([each.partition for each in records], pa.int32()),
        }
    )


def send_all(producer: Producer, topic: str, records: list[Record]) -> None:
    for each in records:
        producer.send(
            topic,
            each.value,
            key=each.key,
            headers=each.headers,
            timestamp=each.timestamp,
            partition=each.partition,
        )


def write_all(producer: Producer, topic: str, records: list[Record]) -> None:
    producer.write(topic, table_of(records))


Way = Callable[[Producer, str, list[Record]], None]
WAYS: dict[str, Way] = {"send": send_all, "write": write_all}


@pytest.fixture(scope="session")
def written(broker: Any, reference: WireClient) -> Callable[[str], tuple[str, list[Record]]]:
    """Writes everything in one of the ways, once for all readers: the topic, and what is in it."""
    done: dict[str, tuple[str, list[Record]]] = {}

    def write(way: str) -> tuple[str, list[Record]]:
        if way not in done:
            topic = f"own-producer-{way}-{id(done)}"
            reference.create_topic(topic, 2)
            records = []
            for codec in ALL_CODECS:
                some = odd_records(TEXT) + binary_records(BINARY)
                with Producer(broker.bootstrap, compression_type=codec) as producer:
                    WAYS[way](producer, topic, some)
                records += some
            used = {batch.codec for batch in stored_batches(broker.bootstrap, topic, TEXT)}
            assert used == set(ALL_CODECS)
            done[way] = topic, numbered(records)
        return done[way]

    return write


@pytest.fixture
def reading_client(reader: str, make_client: Callable[[str], Client]) -> Client:
    """Made here, so that the time to build it on a cold machine is not the test's."""
    return make_client(reader)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("way", WAYS)
def test_others_read_what_the_producer_wrote(
    way: str, reader: str, written: Any, reading_client: Client
) -> None:
    client = reading_client
    topic, records = written(way)
    for partition in (TEXT, BINARY):
        if partition == BINARY and A.BINARY in client.unreadable:
            continue
        expected = [record for record in records if record.partition == partition]
        found = client.consume(topic, partition, len(expected))
        assert_same(found, as_seen_by(expected, client))
