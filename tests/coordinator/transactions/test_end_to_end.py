"""Transactions with a real client, confluent-kafka, and a broker process that is killed on the way."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from transactions_kit.calls import fresh_id

from ottla.testing import BrokerProcess

PATIENCE = 30.0
_SETTINGS = {
    "socket.timeout.ms": 5_000,
    "reconnect.backoff.max.ms": 200,
    "log_level": 0,
    # librdkafka 2.16 forgets a broker that is away but keeps it as the coordinator of groups, and
    # then waits for it for ever when it sends offsets.
    "metadata.recovery.strategy": "none",
}


def make_topic(process: BrokerProcess, partitions: int = 1) -> str:
    name = fresh_id()
    admin = AdminClient({"bootstrap.servers": process.bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(PATIENCE)
    return name


def make_producer(process: BrokerProcess, transactional_id: str, **settings: object) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": process.bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 60_000,
            "linger.ms": 1,
            **_SETTINGS,
            **settings,
        }
    )
    producer.init_transactions(PATIENCE)
    return producer


def make_consumer(
    process: BrokerProcess, group: str, isolation: str = "read_committed"
) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": process.bootstrap,
            "group.id": group,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            **_SETTINGS,
        }
    )


def read(
    process: BrokerProcess, topic: str, isolation: str = "read_committed", partition: int = 0
) -> list[bytes]:
    """Everything that a consumer sees in a partition, up to its end."""
    consumer = make_consumer(process, fresh_id(), isolation)
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        seen = []
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                seen.append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                return seen
        raise AssertionError("the end of the partition was not reached")
    finally:
        consumer.close()


def test_committed_and_aborted(process: BrokerProcess) -> None:
    topic = make_topic(process)
    producer = make_producer(process, fresh_id())
    for number in range(10):
        producer.begin_transaction()
        for part in range(5):
            producer.produce(topic, f"{number}-{part}")
        if number % 2:
            producer.abort_transaction(PATIENCE)
        else:
            # Sent before the end, so that something has to be hidden or shown.
            producer.flush(PATIENCE)
            producer.commit_transaction(PATIENCE)
    assert read(process, topic) == [
        f"{number}-{part}".encode() for number in range(0, 10, 2) for part in range(5)
    ]


def test_aborted_records_are_there_for_those_who_ask(process: BrokerProcess) -> None:
    topic = make_topic(process)
    producer = make_producer(process, fresh_id())
    producer.begin_transaction()
    producer.produce(topic, "aborted")
    producer.flush(PATIENCE)
    assert read(process, topic) == []
    producer.abort_transaction(PATIENCE)
    assert read(process, topic) == []
    assert read(process, topic, "read_uncommitted") == [b"aborted"]


def test_a_second_producer_fences_the_first(process: BrokerProcess) -> None:
    topic = make_topic(process)
    name = fresh_id()
    first = make_producer(process, name)
    first.begin_transaction()
    first.produce(topic, "first")
    first.flush(PATIENCE)
    second = make_producer(process, name)
    second.begin_transaction()
    second.produce(topic, "second")
    second.commit_transaction(PATIENCE)
    with pytest.raises(KafkaException) as raised:
        first.commit_transaction(PATIENCE)
    assert raised.value.args[0].code() in (
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
    )
    assert raised.value.args[0].fatal()
    assert read(process, topic) == [b"second"]


@pytest.mark.parametrize("committed", [True, False])
def test_the_broker_is_killed_in_the_middle(process: BrokerProcess, committed: bool) -> None:
    topic = make_topic(process)
    producer = make_producer(process, fresh_id())
    producer.begin_transaction()
    producer.produce(topic, "before")
    producer.flush(PATIENCE)
    process.kill()
    process.start()
    producer.produce(topic, "after")
    producer.flush(PATIENCE)
    assert read(process, topic) == []
    if committed:
        producer.commit_transaction(PATIENCE)
    else:
        producer.abort_transaction(PATIENCE)
    assert read(process, topic) == ([b"before", b"after"] if committed else [])


def test_offsets_go_with_their_transaction(process: BrokerProcess) -> None:
    source, target = make_topic(process), make_topic(process)
    feeder = make_producer(process, fresh_id())
    feeder.begin_transaction()
    for number in range(10):
        feeder.produce(source, str(number))
    feeder.commit_transaction(PATIENCE)
    group = fresh_id()
    consumer = make_consumer(process, group)
    producer = make_producer(process, fresh_id())
    metadata = consumer.consumer_group_metadata()
    position = [TopicPartition(source, 0, 7)]
    for committed, expected in ((False, -1001), (True, 7)):
        producer.begin_transaction()
        producer.produce(target, "x")
        producer.send_offsets_to_transaction(position, metadata, PATIENCE)
        if committed:
            producer.commit_transaction(PATIENCE)
        else:
            producer.abort_transaction(PATIENCE)
        (found,) = consumer.committed([TopicPartition(source, 0)], PATIENCE)
        assert found.offset == expected
    consumer.close()
    process.kill()
    process.start()
    consumer = make_consumer(process, group)
    (found,) = consumer.committed([TopicPartition(source, 0)], PATIENCE)
    consumer.close()
    assert found.offset == 7


class Copier:
    """Copies a topic to another one, exactly once, over any number of lives of itself and the broker."""

    def __init__(self, process: BrokerProcess, source: str, target: str) -> None:
        self.process = process
        self.source = source
        self.target = target
        self.group = fresh_id()
        self.transactional_id = fresh_id()
        self.lives = 0

    def run(self, count: int, disturb: Callable[[], None]) -> None:
        deadline = time.monotonic() + 100
        position = 0
        while position < count:
            assert time.monotonic() < deadline, "no progress"
            try:
                position = self._live(count, disturb)
            except KafkaException:
                # Whatever it was: the next life finds out where this one stood.
                continue

    def _live(self, count: int, disturb: Callable[[], None]) -> int:
        self.lives += 1
        consumer = make_consumer(self.process, self.group)
        try:
            producer = make_producer(self.process, self.transactional_id)
            (found,) = consumer.committed([TopicPartition(self.source, 0)], PATIENCE)
            position = max(found.offset, 0)
            consumer.assign([TopicPartition(self.source, 0, position)])
            while position < count:
                messages = [
                    each
                    for each in consumer.consume(7, 1.0)
                    if each is not None and not each.error()
                ]
                if not messages:
                    continue
                producer.begin_transaction()
                for message in messages:
                    producer.produce(self.target, message.value())
                disturb()
                following = messages[-1].offset() + 1
                producer.send_offsets_to_transaction(
                    [TopicPartition(self.source, 0, following)],
                    consumer.consumer_group_metadata(),
                    PATIENCE,
                )
                disturb()
                producer.commit_transaction(PATIENCE)
                position = following
            return position
        finally:
            consumer.close()


@pytest.fixture
def chance() -> random.Random:
    seed = random.randrange(1 << 32)
    print(f"seed={seed}")
    return random.Random(seed)


def test_exactly_once_while_broker_and_client_die(
    process: BrokerProcess, chance: random.Random
) -> None:
    source, target = make_topic(process), make_topic(process)
    count = 80
    feeder = Producer({"bootstrap.servers": process.bootstrap, **_SETTINGS})
    for number in range(count):
        feeder.produce(source, str(number))
    assert feeder.flush(PATIENCE) == 0
    deaths = ["broker", "client", "broker"]

    def disturb() -> None:
        if deaths and chance.random() < 0.3:
            if deaths.pop() == "broker":
                process.kill()
                process.start()
            else:
                raise KafkaException("the client dies")

    copier = Copier(process, source, target)
    copier.run(count, disturb)
    assert not deaths
    assert copier.lives > 1
    assert read(process, target) == [str(number).encode() for number in range(count)]
