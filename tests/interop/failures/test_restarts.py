"""Clients that are connected while the broker goes away and comes back."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from interop_kit.clients.client import A, Client
from interop_kit.clients.registry import CLIENTS, named
from interop_kit.clients.wire_client import WireClient
from interop_kit.records import Record, assert_same, numbered, plain_records

FETCH = 1
USUAL = {"confluent-kafka", "java", "kafkajs"}  # the others are long tests


@pytest.fixture
def reader(request: pytest.FixtureRequest, watched_broker, tmp_path) -> Iterator[Client]:
    client = CLIENTS[request.param].client(watched_broker.proxy.address, tmp_path)
    yield client
    client.close()


@pytest.mark.parametrize(
    ("reader", "end"),
    [
        pytest.param(name, "kill", marks=() if name in USUAL else pytest.mark.long)
        for name in named(CLIENTS, A.READ)
    ]
    + [("confluent-kafka", "stop")],
    indirect=["reader"],
)
def test_a_reader_goes_on(reader, watched_broker, topic, end) -> None:
    """What was acknowledged before is there after, and the reader goes on where it was."""
    broker, proxy = watched_broker.process, watched_broker.proxy
    reference = WireClient(broker.bootstrap)
    reference.create_topic(topic)
    records = numbered(plain_records(40))
    found: list[Record] = []

    def read() -> None:
        found.extend(reader.consume(topic, 0, 40))

    reference.produce(topic, records[:20], "snappy")
    reading = threading.Thread(target=read)
    reading.start()
    # A second fetch: the first one is answered.
    proxy.wait_for(lambda requests: [key for key, _ in requests].count(FETCH) >= 2)
    proxy.turn_away()
    if end == "stop":
        assert broker.stop() == 0
    else:
        broker.kill()
    broker.start()
    proxy.listen()
    reference = WireClient(broker.bootstrap)
    assert_same(reference.consume(topic, 0, 20), records[:20])
    reference.produce(topic, records[20:])
    reading.join(40)
    assert_same(found, records)


def test_an_idempotent_producer_goes_on(fresh_broker, topic) -> None:
    """confluent-kafka writes without a pause over three crashes: each record once, in order."""
    from confluent_kafka import Producer

    broker = fresh_broker()
    reference = WireClient(broker.bootstrap)
    reference.create_topic(topic)
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "enable.idempotence": True,
        "linger.ms": 2,
        "reconnect.backoff.max.ms": 100,
        "retry.backoff.ms": 20,
        "message.timeout.ms": 60_000,
    }
    producer = Producer(settings)
    acknowledged: list[int] = []
    problems: list[object] = []

    def delivered(error: object, message: object) -> None:
        if error is None:
            acknowledged.append(int(message.value()))  # type: ignore[attr-defined]
        else:
            problems.append(error)

    written = 0
    for _ in range(3):
        goal = len(acknowledged) + 500
        while len(acknowledged) < goal:
            if written < len(acknowledged) + 2_000:
                producer.produce(topic, str(written), partition=0, on_delivery=delivered)
                written += 1
            producer.poll(0.0005)
        broker.kill()
        broker.start()
    assert producer.flush(60) == 0
    assert not problems
    assert acknowledged == list(range(written))
    values = [int(record.value) for record in reference.consume(topic, 0, written)]
    assert values == list(range(written))
    assert reference.offsets(topic, 0) == (0, written)
