"""Producers and consumers (librdkafka) on a topic while faults happen, and the history of what they saw.

workload = Workload(bootstrap, "topic", 3)
with workload:                      # they begin
    workload.wait_for_progress()
    ...                             # a fault
    workload.wait_for_progress()    # every partition takes writes again
history = workload.history          # they have ended, and everything has been read once more
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from cluster_kit.history import History, Outcome, Polled, Reading, Write

# A workload that stands still for longer than this on a busy machine has found a cluster that does.
PROGRESS_TIMEOUT: Final = 60.0
_READ_TIMEOUT: Final = 60.0
# How many writes of a producer to a partition may wait for their acknowledgement.
_IN_FLIGHT: Final = 50
_PACE_SECONDS: Final = 0.003
_WRITES_OF_A_TRANSACTION: Final = 6

# What a client is told while it looks for another broker; it goes on by itself.
_PASSING: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)

_COMMON: Final = {
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 500,
    # So that a partition of the network is noticed while the test runs.
    "socket.timeout.ms": 5000,
    "log_level": 0,
}


class Workload:
    """Runs from entering to leaving; what clients must never be told is raised on leaving."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        *,
        producers: int = 2,
        transactional: int = 0,
        consumers: int = 2,
    ) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.partitions = range(partitions)
        self.history = History()
        # What was wrong beside the history: errors that a client must not be given.
        self.problems: list[str] = []
        # Errors of writes, of which the producer cannot know what became of them.
        self.write_errors: list[str] = []
        self._changed = threading.Condition()
        self._acknowledged = dict.fromkeys(self.partitions, 0)
        self._writing_ends = threading.Event()
        self._reading_ends = threading.Event()
        self._writers = [
            self._thread(self._produce, f"producer-{number}") for number in range(producers)
        ] + [
            self._thread(self._transact, f"transactional-{number}")
            for number in range(transactional)
        ]
        self._readers = [
            self._thread(self._consume, f"consumer-{number}") for number in range(consumers)
        ]

    def _thread(self, work: Callable[[str], None], name: str) -> threading.Thread:
        def run() -> None:
            try:
                work(name)
            except Exception as error:  # noqa: BLE001 - told by whoever leaves the workload
                self.problems.append(f"{name}: {error!r}")

        return threading.Thread(target=run, name=name, daemon=True)

    def __enter__(self) -> Workload:
        for thread in (*self._readers, *self._writers):
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writing_ends.set()
        try:
            for thread in self._writers:
                thread.join(PROGRESS_TIMEOUT)
                if thread.is_alive() and kind is None:
                    raise AssertionError(f"{thread.name} does not end")
            if kind is None:
                self._read_everything()
                self._wait_for_readers()
        finally:
            self._reading_ends.set()
            for thread in self._readers:
                thread.join(PROGRESS_TIMEOUT)
        if kind is None and self.problems:
            raise AssertionError("; ".join(self.problems))

    # What a test waits for

    def wait_for_progress(self, writes: int = 20, timeout: float = PROGRESS_TIMEOUT) -> None:
        """Returns when every partition has taken this many more writes."""
        with self._changed:
            wanted = {each: count + writes for each, count in self._acknowledged.items()}
            done = self._changed.wait_for(
                lambda: (
                    bool(self.problems)
                    or all(self._acknowledged[each] >= count for each, count in wanted.items())
                ),
                timeout,
            )
        missing = [each for each, count in wanted.items() if self._acknowledged[each] < count]
        if self.problems:
            raise AssertionError("; ".join(self.problems))
        if not done:
            raise AssertionError(
                f"no {writes} writes to the partitions {missing} within {timeout:.0f} s; errors of "
                f"writes: {self.write_errors[-5:]}"
            )

    def quiet_for(self, seconds: float) -> None:
        """Lets time pass, which is what a fault of some length needs; ends early with a problem."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self.problems), seconds)

    def write(self, producer: Producer, write: Write) -> None:
        """Gives a test's own producer a write, and writes down what becomes of it."""
        self.history.began(write)
        producer.produce(
            self.topic,
            value=write.value.encode(),
            partition=write.partition,
            on_delivery=lambda error, message: self._ended(write, error, message.offset()),
        )

    # Writing

    def _produce(self, name: str) -> None:
        producer = Producer(
            {
                **_COMMON,
                "bootstrap.servers": self.bootstrap,
                "client.id": name,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "message.timeout.ms": 120_000,
            }
        )
        written = dict.fromkeys(self.partitions, 0)
        waiting = dict.fromkeys(self.partitions, 0)

        def acknowledge(write: Write) -> Callable[[KafkaError | None, Message], None]:
            def deliver(error: KafkaError | None, message: Message) -> None:
                waiting[write.partition] -= 1
                self._ended(write, error, message.offset())

            return deliver

        while not self._writing_ends.is_set():
            for partition in self.partitions:
                if waiting[partition] >= _IN_FLIGHT:
                    continue
                write = Write(name, partition, written[partition])
                self.history.began(write)
                written[partition] += 1
                waiting[partition] += 1
                producer.produce(
                    self.topic,
                    value=write.value.encode(),
                    partition=partition,
                    on_delivery=acknowledge(write),
                )
            producer.poll(_PACE_SECONDS)
        if producer.flush(PROGRESS_TIMEOUT):
            self.problems.append(
                f"{name}: {sum(waiting.values())} writes are neither acknowledged nor failed"
            )

    def _transact(self, name: str) -> None:
        producer = self._transactional_producer(name)
        number = 0
        rounds = 0
        while not self._writing_ends.is_set():
            rounds += 1
            writes: list[Write] = []
            try:
                producer.begin_transaction()
                for count in range(_WRITES_OF_A_TRANSACTION):
                    partition = self.partitions[count % len(self.partitions)]
                    write = Write(name, partition, number)
                    number += 1
                    writes.append(write)
                    self.history.began(write)
                    producer.produce(
                        self.topic,
                        value=write.value.encode(),
                        partition=partition,
                        on_delivery=_note_offset(write),
                    )
                aborts = rounds % 3 == 0
                if aborts:
                    # What is aborted has been in the log, or there would be nothing to hide.
                    producer.flush(PROGRESS_TIMEOUT)
                    self._until_done(producer.abort_transaction)
                else:
                    self._until_done(producer.commit_transaction)
                self._transaction_ended(writes, Outcome.ABORTED if aborts else Outcome.ACKNOWLEDGED)
            except KafkaException as failure:
                error = failure.args[0]
                self.write_errors.append(f"{name}: {error}")
                if error.txn_requires_abort() and self._aborted(producer):
                    self._transaction_ended(writes, Outcome.ABORTED)
                else:
                    # What became of the transaction is known to nobody but the coordinator; the
                    # next life of the producer ends it, one way or the other.
                    producer = self._transactional_producer(name)

    def _transactional_producer(self, name: str) -> Producer:
        producer = Producer(
            {
                **_COMMON,
                "bootstrap.servers": self.bootstrap,
                "client.id": name,
                "transactional.id": name,
                "transaction.timeout.ms": 60_000,
                "linger.ms": 2,
            }
        )
        self._until_done(producer.init_transactions)
        return producer

    def _aborted(self, producer: Producer) -> bool:
        try:
            self._until_done(producer.abort_transaction)
        except KafkaException as failure:
            self.write_errors.append(f"abort: {failure.args[0]}")
            return False
        return True

    def _until_done(self, call: Callable[[float], None]) -> None:
        """Calls again what may be called again."""
        deadline = time.monotonic() + PROGRESS_TIMEOUT
        while True:
            try:
                call(5.0)
                return
            except KafkaException as failure:
                if not failure.args[0].retriable() or time.monotonic() > deadline:
                    raise

    def _transaction_ended(self, writes: list[Write], outcome: Outcome) -> None:
        with self._changed:
            for write in writes:
                write.outcome = outcome
                if outcome is Outcome.ACKNOWLEDGED:
                    self._acknowledged[write.partition] += 1
            self._changed.notify_all()

    def _ended(self, write: Write, error: KafkaError | None, offset: int) -> None:
        with self._changed:
            if error is None:
                write.offset = offset
                write.outcome = Outcome.ACKNOWLEDGED
                self._acknowledged[write.partition] += 1
            else:
                write.error = str(error)
                self.write_errors.append(f"{write.value}: {error}")
            self._changed.notify_all()

    # Reading

    def _consumer(self, name: str) -> Consumer:
        consumer = Consumer(
            {
                **_COMMON,
                "bootstrap.servers": self.bootstrap,
                "client.id": name,
                "group.id": name,
                "enable.auto.commit": False,
                # A position outside the log is no matter of course here.
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": name == "final",
                "fetch.wait.max.ms": 100,
            }
        )
        consumer.assign(
            [
                TopicPartition(self.topic, partition, OFFSET_BEGINNING)
                for partition in self.partitions
            ]
        )
        return consumer

    def _consume(self, name: str) -> None:
        reading = Reading(name)
        self.history.readings.append(reading)
        consumer = self._consumer(name)
        try:
            while not self._reading_ends.is_set():
                for message in consumer.consume(200, 0.1):
                    self._polled(reading, message)
        finally:
            consumer.close()

    def _polled(self, reading: Reading, message: Message) -> None:
        error = message.error()
        if error is None:
            record = Polled(message.partition(), message.offset(), message.value().decode())
            with self._changed:
                reading.polled.append(record)
                self._changed.notify_all()
        elif error.code() not in _PASSING:
            where = f"partition {message.partition()} at {message.offset()}"
            raise AssertionError(f"{reading.consumer} was told of {where}: {error}")

    def _read_everything(self) -> None:
        """Reads from the first offset to the last, now that nobody writes any more."""
        consumer = self._consumer("final")
        final = self.history.final
        reached = self.history.ends
        deadline = time.monotonic() + _READ_TIMEOUT
        try:
            ends = self._ends(deadline)
            # A commit is acknowledged before its markers are written: then there is more to read.
            while any(reached.get(partition, -1) < end for partition, end in ends.items()):
                if time.monotonic() > deadline:
                    raise AssertionError(f"the topic was read up to {reached}, and ends at {ends}")
                for message in consumer.consume(500, 0.2):
                    error = message.error()
                    if error is not None and error.code() == KafkaError._PARTITION_EOF:
                        reached[message.partition()] = message.offset()
                    else:
                        self._polled(final, message)
        finally:
            consumer.close()

    def _ends(self, deadline: float) -> dict[int, int]:
        """The high watermarks, open transactions or not."""
        consumer = Consumer(
            {
                **_COMMON,
                "bootstrap.servers": self.bootstrap,
                "group.id": "ends",
                "isolation.level": "read_uncommitted",
            }
        )
        ends: dict[int, int] = {}
        try:
            while len(ends) < len(self.partitions):
                place = TopicPartition(self.topic, self.partitions[len(ends)])
                try:
                    ends[place.partition] = consumer.get_watermark_offsets(place, timeout=5.0)[1]
                except KafkaException:
                    if time.monotonic() > deadline:
                        raise
        finally:
            consumer.close()
        return ends

    def _wait_for_readers(self) -> None:
        """Those that read all the while get to the end as well."""
        last: dict[int, int] = {}
        for polled in self.history.final.polled:
            last[polled.partition] = polled.offset

        def arrived() -> bool:
            for reading in self.history.readings:
                reached = {polled.partition: polled.offset for polled in reading.polled}
                if any(reached.get(each, -1) < offset for each, offset in last.items()):
                    return False
            return True

        with self._changed:
            if not self._changed.wait_for(lambda: bool(self.problems) or arrived(), _READ_TIMEOUT):
                self.problems.append("a consumer does not get to the end of the topic")


def _note_offset(write: Write) -> Callable[[KafkaError | None, Message], None]:
    def deliver(error: KafkaError | None, message: Message) -> None:
        if error is None:
            write.offset = message.offset()

    return deliver
