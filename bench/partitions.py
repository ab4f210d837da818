"""Thousands of partitions on one broker: creating them, a record into each, a restart, the memory.

They are made in topics of at most 3,000 partitions: Kafka refuses more than 10,000 in a request.
A broker may put off work until a partition is used; so a record goes into each of them, timed, before
the restart.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from bench.harness.batch import Shape, record_batch
from bench.harness.bench import Bench, Row
from bench.harness.broker import ManagedBroker
from bench.harness.load.produce import DEFAULTS, PlainRequests, Requests, produce_load
from bench.harness.results import Measurement, Target
from bench.harness.wire import ProduceAnswer

AT_ONCE = 3000


class _Each:
    """One request for each partition of a topic, in turn."""

    def __init__(self, topic: str, partitions: int) -> None:
        requests = [
            PlainRequests(topic, Shape(1, 100), DEFAULTS, partition=partition)
            for partition in range(partitions)
        ]
        self._pieces = [piece for each in requests for piece in each.take(1)]
        self._at = 0
        self.size = requests[0].size
        self.answer: ProduceAnswer = requests[0].answer

    def take(self, count: int) -> list[bytes]:
        self._at += count
        return self._pieces[self._at - count : self._at]


class _Figures(NamedTuple):
    created: float
    written: float
    stopped: float
    restarted: float
    memory_created: float
    memory_written: float
    memory_restarted: float


def _measure(broker: ManagedBroker, topics: dict[str, int]) -> _Figures:
    batch = record_batch(Shape(1, 100))
    broker.start()
    with broker.client() as client:
        client.create_topic("before", 1)  # wakes up what a first topic needs
        began = time.perf_counter()
        for topic, partitions in topics.items():
            client.create_topic(topic, partitions)
        for topic, partitions in topics.items():
            for partition in (0, partitions - 1):
                client.produce_when_ready(topic, partition, batch)
        created = time.perf_counter() - began
    memory_created = broker.resident_bytes()
    supplies: list[tuple[Requests, int]] = [
        (_Each(topic, partitions), partitions) for topic, partitions in topics.items()
    ]
    began = time.perf_counter()
    for supply, partitions in supplies:
        produce_load(broker.address, [supply], 20, requests=partitions)
    written = time.perf_counter() - began
    memory_written = broker.resident_bytes()
    stopped = broker.stop()
    began = time.perf_counter()
    broker.start()
    with broker.client() as client:
        for topic, partitions in topics.items():
            for partition in (0, partitions - 1):
                client.produce_when_ready(topic, partition, batch)
    restarted = time.perf_counter() - began
    memory = [memory_created, memory_written, broker.resident_bytes()]
    return _Figures(created, written, stopped, restarted, *(each / 1e6 for each in memory))


def _run(bench: Bench) -> list[Measurement]:
    bench.drop_pairs()
    total = 1500 if bench.quick else 9000
    topics = {
        f"many-{index}": min(AT_ONCE, total - index * AT_ONCE)
        for index in range(-(-total // AT_ONCE))
    }
    figures: dict[str, list[_Figures]] = {}
    for number in range(bench.rounds_wanted or (1 if bench.quick else 3)):
        for broker in bench.new_managed("disk"):
            bench.say(f"{total:,} partitions, {broker.name}, round {number + 1}")
            with broker.blamed():
                figures.setdefault(broker.name, []).append(_measure(broker, topics))
            bench.discard(broker)

    def of(field: str, what: str, unit: str, target: Target | None) -> Measurement:
        values = {
            name: [float(getattr(each, field)) for each in rounds]
            for name, rounds in figures.items()
        }
        return Measurement("partitions", f"{total:,}", what, unit, False, values, target)

    target = Target(0.5, 0.2)
    return [
        of("created", "created, first and last of each topic written to", "s", target),
        of("written", "one record into each, 20 in flight", "s", None),
        of("restarted", "restart until records are acknowledged", "s", target),
        of("stopped", "stop on SIGTERM", "s", None),
        of("memory_created", "resident, created", "MB", None),
        of("memory_written", "resident, a record in each", "MB", target),
        of("memory_restarted", "resident, restarted", "MB", target),
    ]


ROWS = (Row("partitions", "9,000 partitions on one broker (1,500 with --quick)", _run),)
