"""Starting and memory with much stored, against the same broker with nothing stored.

A broker of its own gets so many records of 100 B; another has an empty topic. In turn each is stopped
and started, killed with -9 and started: seconds until the first acknowledged record, and the memory that
it holds then. A figure is that of the full broker minus that of the empty one. `--gigabytes` as in
backlog.py.
"""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple

from bench.harness.batch import Shape, record_batch
from bench.harness.bench import Bench, Row
from bench.harness.broker import ManagedBroker
from bench.harness.load.produce import produce_load
from bench.harness.results import Measurement, confidence
from bench.logs.backlog import Backlog, ClockedRequests, backlog_of, rounds_of

TOPIC = "backlog"


class _Life(NamedTuple):
    after_stop: float  # seconds until the first acknowledged record
    after_kill: float
    megabytes: float


def _prepare(broker: ManagedBroker, backlog: Backlog | None) -> None:
    broker.start()
    with broker.client() as client:
        client.create_topic(TOPIC, 1)
        client.produce_when_ready(TOPIC, 0, record_batch(Shape(1, 100)))
    if backlog is not None:
        supply = ClockedRequests(TOPIC, backlog.batches, backlog.shape)
        produce_load(broker.address, [supply] * 8, 5, requests=backlog.batches)
    broker.stop()


def _start(broker: ManagedBroker) -> float:
    began = time.perf_counter()
    broker.start()
    with broker.client() as client:
        client.produce_when_ready(TOPIC, 0, record_batch(Shape(1, 100)))
    return time.perf_counter() - began


def _measure(broker: ManagedBroker) -> _Life:
    after_stop = _start(broker)
    megabytes = broker.resident_bytes() / 1e6
    broker.kill()
    after_kill = _start(broker)
    broker.stop()
    return _Life(after_stop, after_kill, megabytes)


def _run(bench: Bench) -> list[Measurement]:
    bench.drop_pairs()
    backlog = backlog_of(bench)
    values: dict[str, dict[str, list[float]]] = {field: {} for field in _Life._fields}
    notes: dict[str, list[str]] = {field: [] for field in _Life._fields}
    for full, empty in zip(bench.new_managed("disk"), bench.new_managed("disk"), strict=True):
        with full.blamed():
            _prepare(full, backlog)
            _prepare(empty, None)
            lives = [(_measure(full), _measure(empty)) for _ in range(rounds_of(bench))]
        for field in _Life._fields:
            of_full = [float(getattr(each, field)) for each, _ in lives]
            of_empty = [float(getattr(each, field)) for _, each in lives]
            more = [a - b for a, b in zip(of_full, of_empty, strict=True)]
            values[field][full.name] = more
            low, high = confidence(more)
            notes[field].append(
                f"{full.name}: {statistics.median(of_full):.3g} with {backlog}, "
                f"{statistics.median(of_empty):.3g} with none; mean of the differences between "
                f"{low:.3g} and {high:.3g} (95 %)"
            )
        bench.discard(full)
        bench.discard(empty)
    whats = {
        "after_stop": ("start after a clean stop, more than with nothing stored", "s"),
        "after_kill": ("start after kill -9, more than with nothing stored", "s"),
        "megabytes": ("memory after the start, more than with nothing stored", "MB"),
    }
    return [
        Measurement(
            "life with a backlog",
            f"{backlog.records // 1_000_000} million",
            what,
            unit,
            False,
            values[field],
            None,
            notes[field],
        )
        for field, (what, unit) in whats.items()
    ]


ROWS = (Row("life with a backlog", "starting is as fast with 100 million records stored", _run),)
