"""A worker: a consumer in a group that tells what it owns and what it reads, and commits.

    python -m interop_kit.group_member '{"client": "confluent-kafka" | "aiokafka", "bootstrap": ...,
        "group": ..., "topic": ..., "session_ms": 1500, "protocol": "classic" | "consumer",
        "assignor": ...}'

The events:

    {"event": "owns", "partitions": [...]}                  after every change
    {"event": "read", "generation": G, "partition": P, "first": OFFSET, "last": OFFSET}
    {"event": "committed", ...the same..., "began": NS, "ended": NS}
    {"event": "refused", "generation": G, "reason": ...}    the commit, instead

`generation` is the member's epoch in the new protocol; times are of the machine's monotonic clock.
SIGTERM makes it leave the group.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
import time
from collections.abc import Iterable
from itertools import groupby
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from interop_kit.relay import (
    COMMON,
    HEARTBEATS_IN_A_SESSION,
    generation,
    group_settings,
    tell,
)

MOST_RECORDS = 200


class Batch(NamedTuple):
    """Neighbouring records of a partition."""

    partition: int
    first: int
    last: int


def batches(records: Iterable[tuple[int, int]]) -> list[Batch]:
    """Of (partition, offset), in the order of offsets in each partition."""
    found = []
    for partition, group in groupby(sorted(records), key=lambda record: record[0]):
        offsets = [offset for _, offset in group]
        found.append(Batch(partition, offsets[0], offsets[-1]))
    return found


class Owned:
    """What a member owns, told whenever it changes."""

    def __init__(self) -> None:
        self._partitions: set[int] = set()

    def add(self, partitions: Iterable[int]) -> None:
        self._partitions.update(partitions)
        tell("owns", partitions=sorted(self._partitions))

    def remove(self, partitions: Iterable[int]) -> None:
        self._partitions.difference_update(partitions)
        tell("owns", partitions=sorted(self._partitions))


def confluent_member(settings: dict[str, Any]) -> None:
    leaving = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: leaving.set())
    wanted: dict[str, Any] = {
        "bootstrap.servers": settings["bootstrap"],
        "group.id": settings["group"],
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        **group_settings(settings["protocol"], settings["session_ms"]),
        **COMMON,
    }
    new = settings["protocol"] == "consumer"
    assignor = "group.remote.assignor" if new else "partition.assignment.strategy"
    wanted[assignor] = settings["assignor"]
    consumer = Consumer(wanted)
    owned = Owned()

    def assigned(_: Consumer, partitions: list[TopicPartition]) -> None:
        owned.add(each.partition for each in partitions)

    def revoked(_: Consumer, partitions: list[TopicPartition]) -> None:
        owned.remove(each.partition for each in partitions)

    topic = settings["topic"]
    consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
    while not leaving.is_set():
        messages = [each for each in consumer.consume(MOST_RECORDS, 0.1) if each.error() is None]
        current = generation(consumer.consumer_group_metadata())
        for batch in batches((each.partition(), each.offset()) for each in messages):
            tell("read", generation=current, **batch._asdict())
            began = time.monotonic_ns()
            try:
                consumer.commit(
                    offsets=[TopicPartition(topic, batch.partition, batch.last + 1)],
                    asynchronous=False,
                )
            except KafkaException as problem:
                tell("refused", generation=current, reason=str(problem.args[0]))
            else:
                ended = time.monotonic_ns()
                tell("committed", generation=current, began=began, ended=ended, **batch._asdict())
    consumer.close()


async def aiokafka_member(settings: dict[str, Any]) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, abc  # noqa: F401
    from aiokafka import TopicPartition as Place
    from aiokafka.errors import KafkaError

    leaving = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leaving.set)
    owned = Owned()

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: set[Place]) -> None:
            owned.remove(each.partition for each in revoked)

        def on_partitions_assigned(self, assigned: set[Place]) -> None:
            owned.add(each.partition for each in assigned)

    consumer = AIOKafkaConsumer(
        bootstrap_servers=settings["bootstrap"],
        group_id=settings["group"],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=settings["session_ms"],
        heartbeat_interval_ms=settings["session_ms"] // HEARTBEATS_IN_A_SESSION,
        retry_backoff_ms=20,
    )
    topic = settings["topic"]
    consumer.subscribe([topic], listener=Listener())
    await consumer.start()
    while not leaving.is_set():
        found = await consumer.getmany(timeout_ms=100, max_records=MOST_RECORDS)
        current = consumer._coordinator.generation
        records = ((record.partition, record.offset) for each in found.values() for record in each)
        for batch in batches(records):
            tell("read", generation=current, **batch._asdict())
            if current < 0:
                # Put out of the group while it polled. This client would commit all the same, as a
                # consumer without a group; where the group has no members left, that is accepted.
                tell("refused", generation=current, reason="not a member of the group any more")
                continue
            began = time.monotonic_ns()
            try:
                await consumer.commit({Place(topic, batch.partition): batch.last + 1})
            except KafkaError as problem:
                tell("refused", generation=current, reason=repr(problem))
            else:
                ended = time.monotonic_ns()
                tell("committed", generation=current, began=began, ended=ended, **batch._asdict())
    await consumer.stop()


def main() -> None:
    settings = json.loads(sys.argv[1])
    if settings["client"] == "aiokafka":
        asyncio.run(aiokafka_member(settings))
    else:
        confluent_member(settings)


if __name__ == "__main__":
    main()
