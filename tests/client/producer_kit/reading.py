"""What is in a topic, read with confluent-kafka: another hand than the one that wrote it."""

from __future__ import annotations

from typing import Any, NamedTuple

import confluent_kafka


class Read(NamedTuple):
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def read_all(bootstrap: str, topic: str, *, committed: bool = True) -> list[Read]:
    """Every visible record of the topic, by partition and offset."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "producer-tests",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
            # A partition's end is told by an answer without records: let it come soon.
            "fetch.wait.max.ms": 10,
            # Its messages about brokers that tests stop are of no use here.
            "log_level": 0,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in partitions])
        found: list[Read] = []
        ended: set[int] = set()
        while len(ended) < len(partitions):
            message: Any = consumer.poll(20)
            assert message is not None, f"nothing more came of {topic}"
            if message.error() is not None:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                ended.add(message.partition())
                continue
            found.append(
                Read(
                    message.partition(),
                    message.offset(),
                    message.timestamp()[1],
                    message.key(),
                    message.value(),
                    message.headers() or [],
                )
            )
        return sorted(found, key=lambda each: (each.partition, each.offset))
    finally:
        consumer.close()
