"""A course: relays carry an input to an output, exactly once, while a test breaks what it can.

Two relays share a topic. A feeder writes to it without a pause. After a random number of transactions
something is broken; who derives from Course says what there is to break. Under read_committed the
output must be the input: each record once, in order, in each partition.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from interop_kit.feeder import Feeder
from interop_kit.relay import COMMON, FENCED
from interop_kit.workers import CHANGED, PATIENCE, Worker, WorkerFailed, java_worker, python_worker

INPUT, OUTPUT = "input", "output"
GROUP = "relays"
PARTITIONS = 4
RELAYS = 2
RATE = 400.0  # records a second
FAULTS_IN_A_ROUND = 3
MOST_TRANSACTIONS_BEFORE_A_FAULT = 12
MOST_SECONDS_INTO_A_TRANSACTION = 0.03
OPEN_MS = 15

# Dead members are missed soon.
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "2000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
}

# librdkafka speaks the first transaction protocol, Java's client the second.
COMMANDS: dict[str, Callable[[], list[str]]] = {
    "confluent-kafka": lambda: python_worker("relay"),
    "java": lambda: java_worker("Relay"),
}
KINDS = [
    pytest.param(
        (client, protocol),
        marks=[] if (client, protocol) == ("confluent-kafka", "consumer") else [pytest.mark.long],
    )
    for client in COMMANDS
    for protocol in ("classic", "consumer")
]

Fault = Callable[[int], None]


class Course(ABC):
    """The relays, the input and what became of it. The topics have to be there."""

    relay_settings: ClassVar[Mapping[str, Any]] = {}

    def __init__(
        self, bootstrap: str, command: list[str], protocol: str, folder: Path, seed: int
    ) -> None:
        self.bootstrap = bootstrap
        self._protocol = protocol
        self.chance = random.Random(seed)
        self.done: Counter[str] = Counter()  # faults, and ends of relays that were none
        self._command = command
        self._folder = folder
        self._started = 0
        self._zombies: list[Worker] = []
        self.feeder = Feeder(bootstrap, INPUT, PARTITIONS, RATE)
        self.output = Output(bootstrap)
        self._past = Counter[str]()  # events of relays that are gone
        self.relays = [self.start_relay(number) for number in range(RELAYS)]

    def start_relay(self, number: int) -> Worker:
        self._started += 1
        settings = {
            "bootstrap": self.bootstrap,
            "group": GROUP,
            "input": INPUT,
            "output": OUTPUT,
            "id": f"relay-{number}",
            "open_ms": OPEN_MS,
            "protocol": self._protocol,
            **self.relay_settings,
        }
        name = f"relay-{number}-{self._started}"
        return Worker(name, self._command, settings, self._folder)

    def bury(self, relay: Worker) -> None:
        relay.kill()
        self._past.update(event["event"] for event in relay.events)

    def _replace(self, number: int) -> None:
        self.bury(self.relays[number])
        self.relays[number] = self.start_relay(number)

    def transactions(self, outcome: str = "committed") -> int:
        living = [*self.relays, *self._zombies]
        return self._past[outcome] + sum(relay.count(outcome) for relay in living)

    def _see_to_relays(self) -> None:
        """Start anew those that ended: fenced, or at a loss after a crash of the broker."""
        for number, relay in enumerate(self.relays):
            if not relay.running:
                self.done[f"relay ended with status {relay.process.returncode}"] += 1
                print(relay.story("ended by itself"))
                self._replace(number)

    def await_transactions(self, more: int) -> None:
        goal = self.transactions() + more
        deadline = time.monotonic() + PATIENCE
        while self.transactions() < goal:
            self._see_to_relays()
            if time.monotonic() > deadline:
                raise WorkerFailed("\n".join(each.story("was to go on") for each in self.relays))
            with CHANGED:
                CHANGED.wait(0.5)

    # Faults

    @abstractmethod
    def faults(self) -> list[Fault]:
        """What may happen; each is told the number of a relay."""

    def fault(self) -> None:
        self.await_transactions(self.chance.randint(1, MOST_TRANSACTIONS_BEFORE_A_FAULT))
        # Somewhere within the next transaction.
        time.sleep(self.chance.uniform(0, MOST_SECONDS_INTO_A_TRANSACTION))
        kind = self.chance.choice(self.faults())
        self.done[kind.__name__] += 1
        kind(self.chance.randrange(RELAYS))

    def kill_a_relay(self, number: int) -> None:
        self._replace(number)

    def replace_a_living_relay(self, number: int) -> None:
        """It is paused in the middle of what it does; when it goes on, its name has a new owner."""
        zombie = self.relays[number]
        # One that has no name yet would take it from its successor.
        zombie.wait(lambda: zombie.count("ready") > 0, "be ready")
        zombie.pause()
        self.relays[number] = successor = self.start_relay(number)
        self._zombies.append(zombie)
        successor.wait(lambda: successor.count("ready") > 0, "take over")
        self.await_transactions(1)
        zombie.resume()

    def end_zombies(self) -> None:
        """They end by themselves once they try to write."""
        for zombie in self._zombies:
            deadline = time.monotonic() + PATIENCE
            while zombie.running:
                self._see_to_relays()
                assert time.monotonic() < deadline, zombie.story("was to be fenced")
                with CHANGED:
                    CHANGED.wait(0.1)
            self.done[f"zombie ended with status {zombie.process.returncode}"] += 1
            if zombie.process.returncode != FENCED:
                print(zombie.story("was to be fenced"))
            self.bury(zombie)
        self._zombies.clear()

    def round(self) -> None:
        self.feeder.start()
        for _ in range(FAULTS_IN_A_ROUND):
            self.fault()
        self.end_zombies()
        self.catch_up()

    def catch_up(self) -> None:
        """The input ends, and the relays carry what is left of it."""
        self.feeder.stop()
        deadline = time.monotonic() + PATIENCE
        while not self.output.has(self.feeder.total):
            self._see_to_relays()
            assert time.monotonic() < deadline, (
                f"{self.output.total} of {self.feeder.total} records\n"
                + "\n".join(each.story("was to finish") for each in self.relays)
            )
        assert_same(self.output.seen, self.feeder.sent)

    def finish(self) -> None:
        """Nothing may be left that shows up later."""
        for relay in self.relays:
            self.bury(relay)
        everything = Output(self.bootstrap)
        everything.read_to_the_end()
        assert_same(everything.seen, self.feeder.sent)
        everything.close()

    def close(self) -> None:
        for worker in [*self.relays, *self._zombies]:
            worker.kill()
        self.output.close()

    def figures(self) -> str:
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.done.items()))
        return (
            f"{self.feeder.total} records, {self.transactions()} transactions, "
            f"{self.transactions('aborted')} aborted; {faults}"
        )


class Output:
    """Follows the output under read_committed."""

    def __init__(self, bootstrap: str) -> None:
        self.seen: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self._at_end: set[int] = set()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "the test itself",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "log_level": 0,
                **COMMON,
            }
        )
        self._consumer.assign(
            [TopicPartition(OUTPUT, number, OFFSET_BEGINNING) for number in range(PARTITIONS)]
        )

    @property
    def total(self) -> int:
        return sum(map(len, self.seen))

    def has(self, count: int) -> bool:
        """Read for a moment; whether there are so many now, or more."""
        self._read()
        return self.total >= count

    def read_to_the_end(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while len(self._at_end) < PARTITIONS:
            self._read()
            assert time.monotonic() < deadline, f"the ends of {self._at_end} only"

    def _read(self) -> None:
        for message in self._consumer.consume(1_000, 0.2):
            error = message.error()
            if error is None:
                self.seen[message.partition()].append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                self._at_end.add(message.partition())

    def close(self) -> None:
        self._consumer.close()


def assert_same(seen: list[list[bytes]], sent: list[list[bytes]]) -> None:
    for partition, (found, given) in enumerate(zip(seen, sent, strict=True)):
        wanted = [value[::-1] for value in given]
        for at, (one, other) in enumerate(zip(found, wanted, strict=False)):
            assert one == other, f"partition {partition}, record {at}: {one!r}, not {other!r}"
        assert len(found) == len(wanted), f"partition {partition}: {len(found)}, not {len(wanted)}"
