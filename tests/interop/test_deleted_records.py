"""Records that were deleted one by one: no client sees them, and none stumbles over the gaps."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from interop_kit.clients.client import READ_TIMEOUT, A, Client, Start
from interop_kit.clients.registry import CLIENTS, IN_SHORT_RUNS, OLD_CLIENTS, named
from interop_kit.records import plain_records

from ottla import Admin, AsyncConsumer
from ottla import Consumer as OwnConsumer
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


# Also the one that reads as a member of a group only, and those that speak of message sets, in which
# a broker has no other way to pass over what is deleted than to leave it out.
SEEING = [
    *named(CLIENTS, A.READ),
    *named(CLIENTS, A.GROUP_READ),
    *(
        name if name in IN_SHORT_RUNS else pytest.param(name, marks=pytest.mark.long)
        for name in named(OLD_CLIENTS, A.READ)
    ),
]


@pytest.fixture(params=SEEING)
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


# To the end, where nothing is left that a consumer may see


@pytest.fixture(params=["some", "all"])
def tail(request: pytest.FixtureRequest, broker, reference: Client, topic: str) -> Tail:
    """A topic whose end is invisible: two batches before the end, or all that there is."""
    reference.create_topic(topic, 1)
    for _ in range(4):
        reference.produce(topic, plain_records(5))
    left = 10 if request.param == "some" else 0
    with Admin(broker.bootstrap) as admin:
        admin.delete_records_at({Place(topic, 0): range(left, COUNT)})
    return Tail(topic, list(range(left)), COUNT + 1)


class Tail(NamedTuple):
    topic: str
    seen: list[int]
    end: int


def read_by_driver(client: Client, topic: str) -> tuple[list[int], int]:
    """By a program of another language, which reads until its position is the end."""
    found = client.request(command="read_to_end", topic=topic, partition=0, timeout=30_000)  # type: ignore[attr-defined]
    return found["offsets"], found["position"]


def read_by_confluent_kafka(client: Client, topic: str) -> tuple[list[int], int]:
    consumer = Consumer(
        {
            "bootstrap.servers": client.bootstrap,  # type: ignore[attr-defined]
            "group.id": topic,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        seen = []
        while True:
            message = consumer.poll(30)
            assert message is not None
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF
                return seen, message.offset()
            seen.append(message.offset())
    finally:
        consumer.close()


def read_by_kafka_python(client: Client, topic: str) -> tuple[list[int], int]:
    from kafka import TopicPartition as Partition

    consumer = client._consumer()  # type: ignore[attr-defined]
    try:
        place = Partition(topic, 0)
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        end = consumer.end_offsets([place])[place]
        seen: list[int] = []
        deadline = time.monotonic() + READ_TIMEOUT
        while (position := consumer.position(place)) < end and time.monotonic() < deadline:
            polled = consumer.poll(timeout_ms=500).get(place, [])
            seen += [each.offset for each in polled]
        return seen, position
    finally:
        consumer.close()


def read_by_aiokafka(client: Client, topic: str) -> tuple[list[int], int]:
    async def read() -> tuple[list[int], int]:
        from aiokafka import TopicPartition as Partition

        consumer = await client._consumer()  # type: ignore[attr-defined]
        try:
            place = Partition(topic, 0)
            consumer.assign([place])
            await consumer.seek_to_beginning(place)
            end = (await consumer.end_offsets([place]))[place]
            seen: list[int] = []
            deadline = time.monotonic() + READ_TIMEOUT
            while (
                position := await consumer.position(place)
            ) < end and time.monotonic() < deadline:
                fetched = await consumer.getmany(place, timeout_ms=500)
                seen += [each.offset for each in fetched.get(place, [])]
            return seen, position
        finally:
            await consumer.stop()

    return asyncio.run(read())


def read_by_ottla(bootstrap: str, topic: str) -> tuple[list[int], int]:
    async def read() -> tuple[list[int], int]:
        place = Place(topic, 0)
        async with AsyncConsumer(bootstrap) as consumer:
            await consumer.assign({place: "earliest"})
            seen: list[int] = []
            while (await consumer.lag())[place]:
                batch = await consumer.next_batch(timeout=0.5)
                if batch is not None:
                    seen += batch["offset"].to_pylist()
            return seen, consumer.position(place)

    return asyncio.run(asyncio.wait_for(read(), READ_TIMEOUT))


# Those that tell where they are. (kafkajs tells what its group has committed, and commits nothing for a
# control batch; sarama, @platformatic/kafka and php-rdkafka tell of records only: that they get over an
# invisible end is in `test_no_client_sees_them`.)
READERS = {
    "java": read_by_driver,
    "franz-go": read_by_driver,
    "confluent-kafka": read_by_confluent_kafka,
    "kafka-python": read_by_kafka_python,
    "aiokafka": read_by_aiokafka,
}


@pytest.mark.parametrize("client", READERS, indirect=True)
def test_positions_reach_the_end(client: Client, tail: Tail) -> None:
    """As Kafka Connect and Streams wait for it when they start."""
    assert READERS[client.name](client, tail.topic) == (tail.seen, tail.end)


def test_the_position_of_our_own_consumer_reaches_the_end(broker, tail: Tail) -> None:
    assert read_by_ottla(broker.bootstrap, tail.topic) == (tail.seen, tail.end)
    with OwnConsumer(broker.bootstrap) as consumer:
        assert consumer.read(tail.topic)["offset"].to_pylist() == tail.seen


def test_kcat_exits_at_the_end(make_client: Callable[[str], Client], broker, tail: Tail) -> None:
    kcat = make_client("kcat")
    command = [kcat.program, "-b", broker.bootstrap, "-C", "-t", tail.topic, "-p", "0", "-e", "-q"]  # type: ignore[attr-defined]
    done = subprocess.run(
        [*command, "-f", "%o\n"], capture_output=True, text=True, timeout=60, check=True
    )
    assert [int(each) for each in done.stdout.split()] == tail.seen
