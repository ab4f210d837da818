"""Resident memory of all processes of a broker: idle after its start, and the most under load."""

from __future__ import annotations

import time

from bench.harness.batch import Shape
from bench.harness.bench import Bench, Row
from bench.harness.broker import ManagedBroker
from bench.harness.load.fetch import fetch_load, session_fetch_load
from bench.harness.load.produce import DEFAULTS, PRODUCTION, produce_load, requests_for
from bench.harness.process import PeakMemory
from bench.harness.results import Measurement, Target

LOADS = ((Shape(1, 100), 64, 1), (Shape(100, 100), 8, 5), (Shape(64, 1000), 4, 5))


def _under_load(bench: Bench, broker: ManagedBroker, seconds: float) -> float:
    """The most it holds while it serves every shape of load, first the one setting, then the other."""
    address = broker.address
    with PeakMemory(broker.pid) as memory:
        for setting in (DEFAULTS, PRODUCTION):
            with bench.topic(broker, setting.partitions) as topic:
                for shape, connections, depth in LOADS:
                    supplies = requests_for(address, topic, shape, setting, connections)
                    produce_load(address, supplies, depth, seconds=seconds, max_bytes=512 << 20)
            filled = bench.filled_topic(broker, Shape(64, 1000), setting, 64 << 20)
            fetch = fetch_load if setting.partitions == 1 else session_fetch_load
            fetch(address, filled, 1 << 20, seconds)
    return memory.peak / 1e6


def _run(bench: Bench) -> list[Measurement]:
    bench.drop_pairs()
    idle_for = bench.seconds(full=4.0, quick=1.0)
    seconds = bench.seconds(full=2.0, quick=0.5)
    idle: dict[str, list[float]] = {}
    loaded: dict[str, list[float]] = {}
    after: dict[str, list[float]] = {}
    # Memory hardly differs from run to run, and each needs a new process.
    for _ in range(1 if bench.quick else 3):
        for broker in bench.new_managed("tmpfs"):
            broker.start()
            time.sleep(idle_for)
            idle.setdefault(broker.name, []).append(broker.resident_bytes() / 1e6)
            with broker.blamed():
                load = _under_load(bench, broker, seconds)
            loaded.setdefault(broker.name, []).append(load)
            after.setdefault(broker.name, []).append(broker.resident_bytes() / 1e6)
            bench.discard(broker)
    target = Target(0.25, 0.1)
    return [
        Measurement("memory", "", "resident, idle", "MB", False, idle, target),
        Measurement("memory", "", "resident, the most under load", "MB", False, loaded, target),
        Measurement("memory", "", "resident, after the load", "MB", False, after),
    ]


ROWS = (Row("memory", "resident memory, idle and under load", _run),)
