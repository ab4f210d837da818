"""A worker: a producer and a consumer with default settings that write and read the whole time.

    python -m interop_kit.steady '{"client": "confluent-kafka" | "ottla", "bootstrap": ..., "topic": ...,
        "topics": [...], "group": ..., "partitions": 3, "rate": 100, "bytes": 500}'

It alone writes to `topic`, `rate` records a second of so many `bytes`, round the partitions; it reads
all `topics` as the only member of `group`. (Java: java/Steady.java, Go: go/steady/main.go.) A value
begins with its number, which counts the records of a partition from 0. So number and offset are the same
as long as nothing is lost, written twice or out of order, and every acknowledgement and every record
that is read is held to that. The events:

    {"event": "state", "written": [...], "acknowledged": [...], "read": {TOPIC: [...]}, "again": N}
    {"event": "error", "call": "send" | "poll", "reason": ...}      what a client was told
    {"event": "wrong", "what": ...}                                 what must not be

`state` comes twice a second: records by partition, the offset up to which a partition was read, and how
many were read again (a group reads from its last commit after a rebalance). A line on standard input
ends the writing; {"event": "flushed"} tells that all of it was acknowledged or failed. The end of the
input ends the worker.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

TELL_SECONDS = 0.5
FLUSH_SECONDS = 150.0
MOST_RECORDS = 500
# An error that comes again and again is told now and then.
PAUSE_AFTER_ERROR = 1.0


class Ledger:
    """What was written, acknowledged and read. Each list has one thread that changes it."""

    def __init__(self, topics: list[str], partitions: int) -> None:
        self.written = [0] * partitions
        self.acknowledged = [0] * partitions
        self.read = {topic: [0] * partitions for topic in topics}
        self.again = 0
        self._turn = threading.Lock()

    def acknowledge(self, partition: int, number: int, offset: int | None) -> None:
        """`offset` is None where the client does not know it: librdkafka, when the answer to a batch was
        lost and the one after it was accepted, so that it must have been written."""
        if offset is not None and offset != number:
            self.tell("wrong", what=f"{partition}/{number} was acknowledged with offset {offset}")
        self.acknowledged[partition] += 1

    def receive(self, topic: str, partition: int, offset: int, value: bytes) -> None:
        if int(value.split(b" ", 1)[0]) != offset:
            self.tell("wrong", what=f"{topic}-{partition} has {value[:20]!r} at offset {offset}")
        following = self.read[topic][partition]
        if offset > following:
            self.tell("wrong", what=f"{topic}-{partition}: {offset} was read after {following - 1}")
        if offset < following:
            self.again += 1
        else:
            self.read[topic][partition] = offset + 1

    def error(self, call: str, reason: object) -> None:
        self.tell("error", call=call, reason=str(reason))

    def tell_state(self) -> None:
        self.tell(
            "state",
            written=self.written,
            acknowledged=self.acknowledged,
            read=self.read,
            again=self.again,
        )

    def tell(self, event: str, **fields: Any) -> None:
        with self._turn:
            sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
            sys.stdout.flush()


class Steady:
    """What a client's writer and reader are given."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.bootstrap: str = settings["bootstrap"]
        self.topic: str = settings["topic"]
        self.topics: list[str] = settings["topics"]
        self.group: str = settings["group"]
        self.partitions = range(settings["partitions"])
        self.ledger = Ledger(self.topics, len(self.partitions))
        self.enough = threading.Event()  # of writing
        self.leaving = threading.Event()
        self._pace = len(self.partitions) / settings["rate"]
        self._bytes: int = settings["bytes"]

    def write(self, send: Callable[[int, int, bytes], None]) -> None:
        """Gives `send` partitions, numbers and values at the pace that was asked for."""
        while not self.enough.wait(self._pace):
            for partition in self.partitions:
                number = self.ledger.written[partition]
                self.ledger.written[partition] += 1
                try:
                    send(partition, number, b"%d ".ljust(self._bytes, b".") % number)
                except Exception as error:  # noqa: BLE001 - whatever a client may raise is told
                    self.ledger.error("send", repr(error))

    def read(self, poll: Callable[[], None]) -> None:
        while not self.leaving.is_set():
            try:
                poll()
            except Exception as error:  # noqa: BLE001 - whatever a client may raise is told
                self.ledger.error("poll", repr(error))
                self.leaving.wait(PAUSE_AFTER_ERROR)


def confluent_writer(steady: Steady) -> None:
    from confluent_kafka import KafkaError, Message, Producer

    # The only one of these clients that has to be asked for idempotence.
    producer = Producer({"bootstrap.servers": steady.bootstrap, "enable.idempotence": True})

    def send(partition: int, number: int, value: bytes) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                steady.ledger.error("send", error)
            else:
                steady.ledger.acknowledge(partition, number, message.offset())

        producer.produce(steady.topic, value, partition=partition, on_delivery=delivered)
        producer.poll(0)

    steady.write(send)
    left = producer.flush(FLUSH_SECONDS)
    if left:
        steady.ledger.error("send", f"{left} records were neither acknowledged nor failed")


def confluent_reader(steady: Steady) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": steady.bootstrap,
            "group.id": steady.group,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(steady.topics)

    def poll() -> None:
        for message in consumer.consume(MOST_RECORDS, 0.2):
            if message.error() is not None:
                steady.ledger.error("poll", message.error())
            else:
                steady.ledger.receive(
                    message.topic(), message.partition(), message.offset(), message.value()
                )

    steady.read(poll)
    consumer.close()


def ottla_writer(steady: Steady) -> None:
    from ottla import Producer

    producer = Producer(steady.bootstrap)

    def send(partition: int, number: int, value: bytes) -> None:
        def delivered(future: Future[Any]) -> None:
            error = future.exception()
            if error is not None:
                steady.ledger.error("send", repr(error))
            else:
                steady.ledger.acknowledge(partition, number, future.result().offset)

        producer.send(steady.topic, value, partition=partition).add_done_callback(delivered)

    steady.write(send)
    try:
        producer.close(FLUSH_SECONDS)
    except Exception as error:  # noqa: BLE001 - whatever a client may raise is told
        steady.ledger.error("send", repr(error))


def ottla_reader(steady: Steady) -> None:
    from ottla import Consumer

    with Consumer(steady.bootstrap, group=steady.group, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(steady.topics)

        def poll() -> None:
            batch = consumer.next_batch(timeout=0.2)
            if batch is None:
                return
            topic = batch.column("topic")[0].as_py()
            partition = batch.column("partition")[0].as_py()
            for offset, value in zip(
                batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True
            ):
                steady.ledger.receive(topic, partition, offset, value)

        steady.read(poll)


CLIENTS = {
    "confluent-kafka": (confluent_writer, confluent_reader),
    "ottla": (ottla_writer, ottla_reader),
}


def main() -> None:
    settings = json.loads(sys.argv[1])
    steady = Steady(settings)
    writer, reader = (
        threading.Thread(target=work, args=(steady,)) for work in CLIENTS[settings["client"]]
    )

    def tell_states() -> None:
        while not steady.leaving.wait(TELL_SECONDS):
            steady.ledger.tell_state()

    teller = threading.Thread(target=tell_states)
    for thread in (writer, reader, teller):
        thread.start()
    if sys.stdin.readline():
        steady.enough.set()
        writer.join()
        steady.ledger.tell_state()
        steady.ledger.tell("flushed")
        sys.stdin.read()
    steady.enough.set()
    steady.leaving.set()
    for thread in (writer, reader, teller):
        thread.join()


if __name__ == "__main__":
    main()
