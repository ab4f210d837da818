"""Compaction in a running broker, seen by clients; and the same story told to Apache Kafka.

KAFKA_PEER=HOST:PORT names a running Apache Kafka for the comparison (it takes a minute: Kafka's
cleaner looks every 15 seconds).
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.testing import BrokerProcess

PEER = os.environ.get("KAFKA_PEER", "")
PATIENCE = 90.0
# Records are stamped a second apart, so that this many of them fill a segment.
SEGMENT_RECORDS = 20
TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": str(SEGMENT_RECORDS * 1000),
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "1000",
}
QUICK = {"log.cleaner.backoff.ms": "200", "log.retention.check.interval.ms": "1000"}

Seen = list[tuple[int, bytes | None, bytes | None]]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", settings=QUICK) as broker:
        yield broker


def create(bootstrap: str, name: str, **settings: str) -> None:
    topic = NewTopic(name, 1, 1, config=TOPIC_SETTINGS | settings)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for result in admin.create_topics([topic]).values():
        result.result(30)


def read(bootstrap: str, topic: str, isolation: str = "read_committed") -> Seen:
    """All records, once, from the start to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    partition = TopicPartition(topic, 0, 0)
    consumer.assign([partition])
    seen: Seen = []
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None, "the broker does not answer"
            if message.error():
                return seen
            offset = message.offset()
            assert offset is not None
            seen.append((offset, message.key(), message.value()))
    finally:
        consumer.close()


class Story:
    """Records of several producers, the same whoever listens."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        # From now on into the future: the markers of transactions, stamped now, end no segment.
        self.clock = int(time.time() * 1000)
        self.chance = random.Random(4)
        # What was acknowledged and not aborted.
        self.told: Seen = []

    def _delivered(self, error: object, message: Message) -> None:
        assert error is None, error
        offset = message.offset()
        assert offset is not None
        self.told.append((offset, message.key(), message.value()))

    def producer(self, **settings: object) -> Producer:
        given = {"bootstrap.servers": self.bootstrap, "linger.ms": 10, "enable.idempotence": True}
        return Producer({**given, **settings})

    def tell(self, producer: Producer, count: int, codec: str = "") -> None:
        """Batches of up to seven records, keys of which some are long, some values missing."""
        left = count
        while left:
            size = min(left, self.chance.randint(1, 7))
            for _ in range(size):
                self.clock += 1000
                number = self.chance.randrange(12)
                key = b"key-%d" % number + (b"x" * 40 if number > 8 else b"")
                value = None if self.chance.random() < 0.15 else self.chance.randbytes(20)
                producer.produce(
                    self.topic,
                    value,
                    key,
                    timestamp=self.clock,
                    headers={"h": codec},
                    on_delivery=self._delivered,
                )
            producer.flush(30)
            left -= size

    def end(self, producer: Producer) -> None:
        """One record in a segment of its own: what is before it can be compacted."""
        self.clock += 10 * SEGMENT_RECORDS * 1000
        producer.produce(
            self.topic, b"end", b"end", timestamp=self.clock, on_delivery=self._delivered
        )
        producer.flush(30)

    def of_codecs(self) -> Seen:
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            producer = self.producer(**{"compression.type": codec})
            self.tell(producer, 60, codec)
        self.end(producer)
        return self.told

    def of_transactions(self) -> Seen:
        producer = self.producer(**{"transactional.id": f"id-{self.topic}"})
        producer.init_transactions(30)
        for number in range(8):
            producer.begin_transaction()
            before = list(self.told)
            self.tell(producer, 25)
            if number % 3 == 1:
                producer.abort_transaction(30)
                self.told = before
            else:
                producer.commit_transaction(30)
        self.end(self.producer())
        return self.told


def last_of_each_key(seen: Seen) -> Seen:
    last = {key: offset for offset, key, _ in seen[:-1]}
    return [each for each in seen[:-1] if last[each[1]] == each[0]] + seen[-1:]


def wait_for(bootstrap: str, topic: str, expected: Seen, isolation: str = "read_committed") -> Seen:
    deadline = time.monotonic() + PATIENCE
    while (seen := read(bootstrap, topic, isolation)) != expected:
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    return seen


def test_clients_see_the_last_record_of_each_key(broker: BrokerProcess) -> None:
    create(broker.bootstrap, "compacted")
    before = Story(broker.bootstrap, "compacted").of_codecs()
    assert len(before) > 300
    expected = last_of_each_key(before)
    assert wait_for(broker.bootstrap, "compacted", expected) == expected
    folder = broker.data / "compacted-0"
    # The old files go, and the next start finds the same.
    wait_until(lambda: not [*folder.glob("*.deleted"), *folder.glob("*.swap")])
    checkpoint = broker.data / "cleaner-offset-checkpoint"
    wait_until(
        lambda: checkpoint.exists() and f"compacted 0 {before[-1][0]}" in checkpoint.read_text()
    )
    broker.stop()
    assert not list(folder.glob("*.cleaned"))
    broker.start()
    assert read(broker.bootstrap, "compacted") == expected
    broker.kill()
    broker.start()
    assert read(broker.bootstrap, "compacted") == expected


def wait_until(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_stop_does_not_wait_for_a_slow_pass(tmp_path: Path) -> None:
    slow = {"log.cleaner.io.max.bytes.per.second": "100"}
    with BrokerProcess(tmp_path / "data", settings=QUICK | slow) as broker:
        create(broker.bootstrap, "compacted")
        before = Story(broker.bootstrap, "compacted").of_codecs()
        folder = broker.data / "compacted-0"
        wait_until(lambda: list(folder.glob("*.cleaned")))
        broker.stop()
        assert not list(folder.glob("*.cleaned"))
        broker.settings = dict(QUICK)
        broker.start()
        # Retention loads the log, which nobody used since the start, and compaction goes on.
        expected = last_of_each_key(before)
        assert wait_for(broker.bootstrap, "compacted", expected) == expected


def test_other_topics_are_left_alone(broker: BrokerProcess) -> None:
    create(broker.bootstrap, "compacted")
    create(broker.bootstrap, "kept", **{"cleanup.policy": "delete", "retention.ms": "-1"})
    before = Story(broker.bootstrap, "kept").of_codecs()
    expected = last_of_each_key(Story(broker.bootstrap, "compacted").of_codecs())
    assert wait_for(broker.bootstrap, "compacted", expected) == expected
    assert read(broker.bootstrap, "kept") == before


@pytest.mark.interop
@pytest.mark.skipif(not PEER, reason="KAFKA_PEER names no Apache Kafka")
@pytest.mark.timeout(400)
@pytest.mark.parametrize("story", ["of_codecs", "of_transactions"])
def test_the_same_is_left_as_in_kafka(broker: BrokerProcess, story: str) -> None:
    topic = f"compacted-{story}-{uuid.uuid4().hex[:6]}"
    told: dict[str, Seen] = {}
    for bootstrap in (PEER, broker.bootstrap):
        create(bootstrap, topic)
        try:
            told[bootstrap] = getattr(Story(bootstrap, topic), story)()
        except KafkaException as error:
            if bootstrap == PEER:
                raise
            pytest.skip(f"no transactions here yet: {error}")
    assert told[PEER] == told[broker.bootstrap]
    expected = last_of_each_key(told[PEER])
    for isolation in ("read_committed", "read_uncommitted"):
        left = {
            bootstrap: wait_for(bootstrap, topic, expected, isolation)
            for bootstrap in (broker.bootstrap, PEER)
        }
        assert left[PEER] == left[broker.bootstrap]
        assert left[PEER] == expected


def test_what_cannot_be_read_is_named_and_left_alone(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", settings={"log.cleaner.enable": "false"}) as broker:
        create(broker.bootstrap, "damaged")
        create(broker.bootstrap, "whole")
        for topic in ("damaged", "whole"):
            Story(broker.bootstrap, topic).of_codecs()
        broker.stop()
        first = broker.data / "damaged-0" / f"{0:020d}.log"
        content = bytearray(first.read_bytes())
        content[-1] ^= 0xFF
        first.write_bytes(content)
        broker.settings = dict(QUICK)
        broker.start()
        wait_until(lambda: "cannot be compacted: log=damaged-0" in broker.log_text())
        # The others go on, and so does this one.
        folder = broker.data / "whole-0"
        wait_until(lambda: len(list(folder.glob("*.log"))) == 2)
        Story(broker.bootstrap, "damaged").end(Story(broker.bootstrap, "damaged").producer())
        assert len(list((broker.data / "damaged-0").glob("*.log"))) > 5


@pytest.mark.long
def test_killed_again_and_again_while_it_compacts(tmp_path: Path) -> None:
    """Slowly, so that there is always a pass to interrupt."""
    slow = {"log.cleaner.io.max.bytes.per.second": "20000"}
    with BrokerProcess(tmp_path / "data", settings=QUICK | slow) as broker:
        create(broker.bootstrap, "compacted")
        story = Story(broker.bootstrap, "compacted")
        producer = story.producer()
        folder = broker.data / "compacted-0"
        for _ in range(3):
            story.tell(producer, 150)
            story.end(producer)
            wait_until(lambda: [*folder.glob("*.cleaned"), *folder.glob("*.swap")])
            broker.kill()
            broker.start()
        broker.stop()
        broker.settings = dict(QUICK)
        broker.start()
        story.tell(producer, 30)
        story.end(producer)
        expected = last_of_each_key(story.told)
        assert wait_for(broker.bootstrap, "compacted", expected) == expected
