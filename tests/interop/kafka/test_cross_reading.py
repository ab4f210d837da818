"""What one client writes, every other one reads: all pairs, every codec, every kind of record."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from interop_kit.clients.client import A, Client, as_seen_by, carried
from interop_kit.clients.registry import CLIENTS
from interop_kit.clients.wire_client import WireClient
from interop_kit.records import Record, assert_same, binary_records, numbered, odd_records
from interop_kit.wire import stored_batches

TEXT, BINARY = 0, 1  # partitions: not every reader shows bytes that are no text

# One worker does them all: what was written is there already, and so is every client.
pytestmark = pytest.mark.xdist_group("cross-reading")

# Of these `make test` has all pairs: they run in this process, or as a command.
AT_HAND = {"confluent-kafka", "kafka-python", "aiokafka", "kcat"}
PAIRS = [
    pytest.param(writer, reader, marks=() if {writer, reader} <= AT_HAND else pytest.mark.long)
    for writer in CLIENTS
    for reader in CLIENTS
    if writer != reader
]


@pytest.fixture(scope="session")
def written(broker, reference: WireClient) -> Callable[[Client], tuple[str, list[Record]]]:
    """Has a writer write its records, once for all readers: the topic, and what is in it."""
    done: dict[str, tuple[str, list[Record]]] = {}

    def write(writer: Client) -> tuple[str, list[Record]]:
        if writer.name not in done:
            topic = f"cross-{writer.name.replace(' ', '-')}-{id(done)}"
            reference.create_topic(topic, 2)
            records = []
            for codec in sorted(writer.codecs):
                odd = carried(odd_records(TEXT), writer)
                binary = carried(binary_records(BINARY), writer)
                writer.produce(topic, odd + binary, codec)
                records += odd + binary
            used = {batch.codec for batch in stored_batches(broker.bootstrap, topic, TEXT)}
            assert used == writer.codecs
            done[writer.name] = topic, numbered(records)
        return done[writer.name]

    return write


@pytest.fixture
def writer(request: pytest.FixtureRequest, make_client) -> Client:
    return make_client(request.param)


@pytest.fixture
def reader(request: pytest.FixtureRequest, make_client, has_groups) -> Client:
    client = make_client(request.param)
    if not client.can(A.READ) and not has_groups:
        pytest.skip(f"{client.name} reads through consumer groups only, which come later")
    return client


@pytest.mark.parametrize(("writer", "reader"), PAIRS, indirect=True)
def test_one_writes_the_other_reads(writer, reader, written) -> None:
    topic, records = written(writer)
    for partition in (TEXT, BINARY):
        if partition == BINARY and A.BINARY in reader.unreadable:
            continue
        expected = [record for record in records if record.partition == partition]
        if expected:
            found = reader.consume(topic, partition, len(expected))
            assert_same(found, as_seen_by(expected, reader))
