"""From starting the process to the first answer, to the first acknowledged record; and stopping.

The data folder holds one topic with a little data and was left by a clean stop.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from bench.harness.batch import Shape, record_batch
from bench.harness.bench import Bench, Row
from bench.harness.broker import ManagedBroker
from bench.harness.results import Measurement, Target

TOPIC = "start"


class _Times(NamedTuple):
    first_answer: float
    first_record: float
    stop: float


def _prepare(broker: ManagedBroker) -> None:
    broker.start()
    with broker.client() as client:
        client.create_topic(TOPIC, 1)
        for _ in range(100):
            client.produce_when_ready(TOPIC, 0, record_batch(Shape(10, 100)))
    broker.stop()


def _measure(broker: ManagedBroker) -> _Times:
    batch = record_batch(Shape(1, 100))
    began = time.perf_counter()
    first_answer = broker.start()
    with broker.client() as client:
        client.produce_when_ready(TOPIC, 0, batch)
    first_record = time.perf_counter() - began
    return _Times(first_answer, first_record, broker.stop())


def _run(bench: Bench) -> list[Measurement]:
    bench.drop_pairs()
    brokers = bench.new_managed("disk")
    for broker in brokers:
        _prepare(broker)
    times: dict[str, list[_Times]] = {broker.name: [] for broker in brokers}
    for _ in range(bench.rounds):
        for broker in brokers:
            with broker.blamed():
                times[broker.name].append(_measure(broker))
    for broker in brokers:
        bench.discard(broker)

    def of(field: str, what: str, target: Target | None) -> Measurement:
        values = {
            name: [float(getattr(each, field)) for each in rounds] for name, rounds in times.items()
        }
        return Measurement("start", "", what, "s", False, values, target)

    return [
        of("first_answer", "start to the first answered request", Target(0.2, 0.08)),
        of("first_record", "start to the first acknowledged record", None),
        of("stop", "stop on SIGTERM", None),
    ]


ROWS = (Row("start", "start to the first answered request", _run),)
