"""Producers that write through crashes, and remember what they were promised.

Every record says who wrote it and its number among those that this writer sent to this partition:
0, 1, 2, … A writer that is finished has had every record acknowledged, so the log must hold all of
them, once each, in the order of their numbers, and each at the offset that was acknowledged.
"""

from __future__ import annotations

import random
import struct
import threading
import time
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from durability_kit.wire import Wire, a_batch
from ottla.protocol.errors import ErrorCode
from ottla.record.compression.codecs import Codec

# Writer, number.
STAMP = struct.Struct(">iq")
UNKNOWN = -1
# A producer may have so many batches on the way to one partition; the broker remembers as many.
IN_FLIGHT = 5
PAUSE = 0.02
FINISH_TIMEOUT = 60.0


class Target(NamedTuple):
    topic: str
    partition: int


def value_of(writer: int, number: int, size: int) -> bytes:
    """The value of a record. Its filling follows from its stamp, so that a mix-up shows."""
    return STAMP.pack(writer, number) + bytes([(writer * 31 + number) & 0xFF]) * size


def stamp_of(value: bytes) -> tuple[int, int]:
    """Writer and number; AssertionError if the filling belongs to another record."""
    writer, number = STAMP.unpack_from(value)
    size = len(value) - STAMP.size
    assert value == value_of(writer, number, size), f"record {number} of writer {writer} is torn"
    return writer, number


class Account:
    """What one writer sent to one partition: how many records, and where each was acknowledged."""

    def __init__(self) -> None:
        self.sent = 0
        # By number: the acknowledged offset, UNKNOWN until then.
        self.offsets = array("q")
        self.acknowledged = 0
        self.last_acknowledged_offset = UNKNOWN

    def next_numbers(self, count: int) -> range:
        first = self.sent
        self.sent += count
        self.offsets.extend([UNKNOWN] * count)
        return range(first, self.sent)

    def acknowledge(self, number: int, offset: int) -> None:
        assert self.offsets[number] == UNKNOWN, f"record {number} was acknowledged twice"
        self.offsets[number] = offset
        self.acknowledged += 1
        if offset > self.last_acknowledged_offset:
            self.last_acknowledged_offset = offset


class Writer(threading.Thread, ABC):
    """A producer in a thread of its own, that never gives up before everything is acknowledged."""

    def __init__(self, number: int, bootstrap: str, targets: Sequence[Target], seed: int) -> None:
        super().__init__(name=f"writer {number}", daemon=True)
        self.number = number
        self.bootstrap = bootstrap
        self.targets = targets
        self.accounts = {target: Account() for target in targets}
        self.chance = random.Random(f"{seed} writer {number}")
        self.failures: list[str] = []
        self._finishing = threading.Event()

    @property
    def acknowledged(self) -> int:
        return sum(account.acknowledged for account in self.accounts.values())

    def run(self) -> None:
        try:
            self.write()
        except BaseException as error:
            self.failures.append(f"{self.name}: {error!r}")
            raise

    def finish(self) -> None:
        """No new records; returns when those that were sent are acknowledged."""
        self._finishing.set()
        self.join(FINISH_TIMEOUT)
        if self.is_alive():
            self.failures.append(f"{self.name} is not done after {FINISH_TIMEOUT:.0f} s")

    @abstractmethod
    def write(self) -> None:
        """Sends until `_finishing` is set, then sees to the rest."""


class ConfluentWriter(Writer):
    """confluent-kafka's idempotent producer. It repeats by itself what was not answered."""

    def __init__(self, *arguments: Any, codec: str = "none") -> None:
        super().__init__(*arguments)
        self.codec = codec

    def write(self) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "compression.type": self.codec,
                "linger.ms": 5,
                "batch.size": 450_000,
                "message.max.bytes": 480_000,
                "queue.buffering.max.messages": 2_000,
                "message.timeout.ms": 0,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 10,
                "retry.backoff.max.ms": 50,
                # Refused connections are what this is about.
                "log_level": 0,
            }
        )
        while not self._finishing.is_set() and not self.failures:
            # Bursts to one partition make batches large: a kill may fall between two pages of a write.
            target = self.chance.choice(self.targets)
            for number in self.accounts[target].next_numbers(self.chance.randint(1, 300)):
                value = value_of(self.number, number, self.chance.randint(0, 1_000))
                self._produce(producer, target, value)
            producer.poll(0)
        left = producer.flush(FINISH_TIMEOUT)
        if left:
            self.failures.append(f"{self.name}: {left} records are not acknowledged")

    def _produce(self, producer: Any, target: Target, value: bytes) -> None:
        while True:
            try:
                producer.produce(
                    target.topic, value, partition=target.partition, on_delivery=self._delivered
                )
            except BufferError:
                producer.poll(PAUSE)
            else:
                return

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(f"{self.name}: {error}")
            return
        _, number = STAMP.unpack_from(message.value())
        account = self.accounts[Target(message.topic(), message.partition())]
        account.acknowledge(number, message.offset())


class _Unanswered(NamedTuple):
    target: Target
    numbers: range
    batch: bytes


class RawWriter(Writer):
    """An idempotent producer made of a socket: it keeps what was not answered and, connected again,
    sends the same bytes with the same sequences. Some were stored before the crash; for those the
    broker must answer with the offset that they have."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.producer_id = -1
        self.epoch = -1
        self.sequences = dict.fromkeys(self.targets, 0)
        self.unanswered: deque[_Unanswered] = deque()
        self.repeated = 0

    def write(self) -> None:
        while not (self._finishing.is_set() and not self.unanswered) and not self.failures:
            try:
                with Wire(self.bootstrap) as wire:
                    self._write(wire)
            except OSError:
                # The broker is away, or went away: that is what this is about.
                time.sleep(PAUSE)

    def _write(self, wire: Wire) -> None:
        if self.producer_id < 0:
            self.producer_id, self.epoch = wire.producer_id()
        self.repeated += len(self.unanswered)
        sent = deque(wire.send_batch(*each.target, each.batch) for each in self.unanswered)
        while self.unanswered or not self._finishing.is_set():
            while len(self.unanswered) < IN_FLIGHT and not self._finishing.is_set():
                new = self._next()
                self.unanswered.append(new)
                sent.append(wire.send_batch(*new.target, new.batch))
            if not self.unanswered:
                return
            answer = wire.receive_produced(sent[0])
            if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                # What a broker may answer on its way down: as if it were gone already.
                raise ConnectionError("no leader")
            if answer.error_code:
                self.failures.append(
                    f"{self.name}: {ErrorCode(answer.error_code).name} {answer.error_message} "
                    f"for records {self.unanswered[0].numbers} to {self.unanswered[0].target}"
                )
                return
            sent.popleft()
            done = self.unanswered.popleft()
            account = self.accounts[done.target]
            for at, number in enumerate(done.numbers):
                account.acknowledge(number, answer.base_offset + at)

    def _next(self) -> _Unanswered:
        target = self.chance.choice(self.targets)
        numbers = self.accounts[target].next_numbers(self.chance.choice((1, 1, 2, 20, 100)))
        size = self.chance.choice((0, 100, 300, 4_000))
        batch = a_batch(
            [value_of(self.number, number, size) for number in numbers],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequences[target],
            codec=self.chance.choice((Codec.NONE, Codec.NONE, Codec.LZ4)),
        )
        self.sequences[target] = (self.sequences[target] + len(numbers)) % 2**31
        return _Unanswered(target, numbers, batch)


def await_progress(writers: Sequence[Writer]) -> None:
    """Returns when each writer has had something acknowledged from now on."""
    before = [writer.acknowledged for writer in writers]
    deadline = time.monotonic() + FINISH_TIMEOUT
    while not all(writer.acknowledged > was for writer, was in zip(writers, before, strict=True)):
        failures = [failure for writer in writers for failure in writer.failures]
        assert not failures, failures
        assert time.monotonic() < deadline, "a producer gets no answers"
        time.sleep(PAUSE / 2)


class Tail(threading.Thread):
    """A consumer at the end of one partition, through all crashes. What it was given must be in the
    log at the end: nothing that was served is taken back."""

    def __init__(self, bootstrap: str, target: Target) -> None:
        super().__init__(name=f"tail of {target}", daemon=True)
        self.bootstrap = bootstrap
        self.target = target
        # Checksum by base offset.
        self.seen: dict[int, bytes] = {}
        self.failures: list[str] = []
        self._finishing = threading.Event()

    def run(self) -> None:
        offset = 0
        try:
            while not self._finishing.is_set():
                try:
                    with Wire(self.bootstrap) as wire:
                        while not self._finishing.is_set():
                            batches = wire.batches(*self.target, offset)
                            for batch in batches:
                                self.seen[batch.base_offset] = checksum(batch.data)
                                offset = batch.last_offset + 1
                            self._finishing.wait(PAUSE)
                except OSError:
                    time.sleep(PAUSE)
        except BaseException as error:
            self.failures.append(f"{self.name}: {error!r}")
            raise

    def finish(self) -> None:
        self._finishing.set()
        self.join(FINISH_TIMEOUT)


def checksum(batch: bytes) -> bytes:
    return batch[17:21]
