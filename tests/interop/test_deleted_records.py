"""Records that were deleted one by one: no client sees them, and none stumbles over the gaps."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from interop_kit.client import A, Client, Start
from interop_kit.records import plain_records
from interop_kit.registry import CLIENTS, named

from ottla import Admin
from ottla.client.positions import TopicPartition as Place

COUNT = 20
# In the middle of a batch, a whole batch, and the end of the log.
DELETED = [0, 3, *range(5, 10), 18, 19]
LEFT = [each for each in range(COUNT) if each not in DELETED]


@pytest.fixture
def thinned(broker, reference: Client, topic: str) -> str:
    """Four batches of five records, some of which are deleted."""
    reference.create_topic(topic, 1)
    for _ in range(4):
        reference.produce(topic, plain_records(5))
    with Admin(broker.bootstrap) as admin:
        assert admin.delete_records_at({Place(topic, 0): DELETED}) == {
            Place(topic, 0): len(DELETED)
        }
    return topic


@pytest.fixture(params=named(CLIENTS, A.READ))
def client(request: pytest.FixtureRequest, make_client: Callable[[str], Client]) -> Client:
    return make_client(request.param)


def test_no_client_sees_them(client: Client, reference: Client, thinned: str) -> None:
    seen = client.consume(thinned, 0, len(LEFT))
    assert [each.offset for each in seen] == LEFT
    seen = client.consume(thinned, 0, 3, Start(offset=8))
    assert [each.offset for each in seen] == [10, 11, 12]
    # Over the end, where nothing but deleted records and the mark is left.
    reference.produce(thinned, plain_records(2))
    seen = client.consume(thinned, 0, 2, Start(offset=18))
    assert [each.offset for each in seen] == [21, 22]


def test_read_to_end_in_java(make_client: Callable[[str], Client], thinned: str) -> None:
    """The position gets to the end, as Kafka Connect and Streams wait for when they start."""
    java = make_client("java")
    found = java.request(command="read_to_end", topic=thinned, partition=0, timeout=30_000)  # type: ignore[attr-defined]
    assert found == LEFT


def test_kcat_exits_at_the_end(make_client: Callable[[str], Client], broker, thinned: str) -> None:
    kcat = make_client("kcat")
    command = [kcat.program, "-b", broker.bootstrap, "-C", "-t", thinned, "-p", "0", "-e", "-q"]  # type: ignore[attr-defined]
    done = subprocess.run(
        [*command, "-f", "%o\n"], capture_output=True, text=True, timeout=60, check=True
    )
    assert [int(each) for each in done.stdout.split()] == LEFT


def test_the_position_of_confluent_kafka(broker, thinned: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": thinned,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(thinned, 0, 0)])
    seen = []
    while True:
        message = consumer.poll(30)
        assert message is not None
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF
            assert message.offset() == COUNT + 1
            break
        seen.append(message.offset())
    assert seen == LEFT
    consumer.close()
