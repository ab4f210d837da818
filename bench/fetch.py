"""Fetch at full speed from data that the page cache holds, one connection, one request at a time.

As defaults: one partition by name, no session. As production: a fetch session over 100 partitions,
topics by id, as a consumer of today does it.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from bench.harness.batch import Shape
from bench.harness.bench import Bench, Row, alternate
from bench.harness.broker import Broker
from bench.harness.load.fetch import fetch_load, session_fetch_load
from bench.harness.load.produce import SETTINGS, Load, Setting
from bench.harness.results import Measurement, Target
from bench.produce import busy


class Case(NamedTuple):
    name: str
    claim: str
    shape: Shape
    max_bytes: int
    in_requests: bool
    target: Target | None


CASES = (
    Case(
        "fetch-1MiB",
        "1 MiB, batches of 64 × 1 kB",
        Shape(64, 1000),
        1 << 20,
        False,
        Target(1.0, 1.3),
    ),
    Case(
        "fetch-4KiB",
        "4 KiB, batches of 10 × 100 B",
        Shape(10, 100),
        1 << 12,
        True,
        None,
    ),
)


def _one_setting(bench: Bench, case: Case, setting: Setting) -> Measurement:
    seconds = bench.seconds(full=2.0, quick=0.4)
    brokers = bench.pair("tmpfs")
    # Small batches take long to write and the row reads few of them in its time.
    large = (64 if bench.quick else 256) << 20
    size = large if case.max_bytes >= 1 << 20 else large // 16
    topics = {
        broker.name: bench.filled_topic(broker, case.shape, setting, size) for broker in brokers
    }
    load = fetch_load if setting.partitions == 1 else session_fetch_load

    def measure(broker: Broker) -> Load:
        return load(
            broker.address,
            topics[broker.name],
            case.max_bytes,
            seconds,
            broker_cpu=broker.cpu_seconds,
        )

    loads = alternate(brokers, bench.rounds, measure)
    for broker in brokers:
        broker.forget(topics[broker.name].topic, wait=False)
    figures = {
        name: [
            each.requests_per_second if case.in_requests else each.megabytes_per_second
            for each in rounds
        ]
        for name, rounds in loads.items()
    }
    return Measurement(
        row=case.name,
        setting=setting.name,
        what=case.claim,
        unit="requests/s" if case.in_requests else "MB/s",
        higher_is_better=True,
        values=figures,
        target=case.target,
        notes=[busy(name, rounds) for name, rounds in loads.items()],
    )


def _run(case: Case, bench: Bench) -> list[Measurement]:
    return [_one_setting(bench, case, setting) for setting in SETTINGS]


ROWS = tuple(Row(case.name, case.claim, functools.partial(_run, case)) for case in CASES)
