"""What clients of other makers and languages write, Ottla's own consumer reads identically.

With every codec each writer has, by the compiled kernels and by the plain path. With
TEST_BOOTSTRAP the broker is another one, Apache Kafka for example.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from interop_kit.clients.client import Client, carried
from interop_kit.clients.wire_client import WireClient
from interop_kit.records import (
    Record,
    assert_same,
    binary_records,
    now_ms,
    numbered,
    odd_records,
    plain_records,
)

from ottla import Consumer
from ottla.record.columns import compile_kernels

WRITERS = ["java", "confluent-kafka", "franz-go", "kafka-python", "aiokafka"]

_numbers = itertools.count()


def read(bootstrap: str, topic: str) -> list[Record]:
    """All records of the topic, by the consumer under test."""
    with Consumer(bootstrap) as consumer:
        table = consumer.read(topic)
    table.validate(full=True)
    at = table.schema.get_field_index("timestamp")
    rows = table.set_column(at, "timestamp", table.column(at).cast(pa.int64())).to_pylist()
    return [
        Record(
            row["value"],
            row["key"],
            tuple((header["key"], header["value"]) for header in row["headers"]),
            row["timestamp"],
            row["partition"],
            row["offset"],
        )
        for row in rows
    ]


@pytest.fixture(params=["compiled", "plain"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "compiled":
        assert compile_kernels()
    else:
        monkeypatch.setattr("ottla.record.columns.decoding.kernels_for", lambda size: None)
    return str(request.param)


@pytest.fixture
def writing_client(writer: str, make_client: Callable[[str], Client]) -> Client:
    """Made here, so that the time to build it on a cold machine is not the test's."""
    return make_client(writer)


@pytest.mark.parametrize("writer", WRITERS)
def test_the_consumer_reads_what_others_wrote(
    writer: str, way: str, broker: Any, reference: WireClient, writing_client: Client
) -> None:
    client = writing_client
    topic = f"own-consumer-{writer}-{way}-{next(_numbers)}"
    reference.create_topic(topic, 1)
    expected: list[Record] = []
    for codec in sorted(client.codecs):
        some = carried(odd_records() + binary_records() + plain_records(300), client)
        client.produce(topic, some, codec)
        expected += some
    assert_same(read(broker.bootstrap, topic), numbered(expected))


blobs = st.none() | st.binary(max_size=60)
names = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=8)
some_records = st.lists(
    st.builds(
        Record,
        value=blobs,
        key=blobs,
        headers=st.lists(st.tuples(names, blobs), max_size=3).map(tuple),
        timestamp=st.integers(0, 60_000).map(lambda age: now_ms() - age),
    ),
    min_size=1,
    max_size=20,
)


@pytest.mark.parametrize("writer", ["java", "confluent-kafka"])
def test_whatever_they_write(
    writer: str, broker: Any, reference: WireClient, writing_client: Client
) -> None:
    client = writing_client
    assert compile_kernels()

    @settings(
        max_examples=15,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(some_records, st.sampled_from(sorted(client.codecs)))
    def holds(records: list[Record], codec: str) -> None:
        topic = f"own-consumer-any-{writer}-{next(_numbers)}"
        reference.create_topic(topic, 1)
        written = carried(records, client)
        client.produce(topic, written, codec)
        assert_same(read(broker.bootstrap, topic), numbered(written))

    holds()
