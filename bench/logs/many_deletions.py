"""What ten million deletions of single records cost: bytes in the log, on disk beside it, and in memory.

A topic holds 100 million records of 10 B (with --quick a tenth of that). Every tenth of them is deleted,
a million in one call: scattered ones, each of which is a range by itself, are the worst case. In another
topic as many are deleted as one range. Measured are the memory that the broker holds more than before,
at most and in the end; what the marks add to the log; the snapshot of what is deleted; how long the
calls took; and memory once more after a restart, against that of a broker with the same records and no
deletion. Ottla alone: no Kafka deletes single records.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from bench.harness.batch import Shape, record_batch
from bench.harness.bench import Bench, Row
from bench.harness.broker import OttlaBroker
from bench.harness.load.fetch import Filled
from bench.harness.load.produce import DEFAULTS
from bench.harness.process import PeakMemory, settle_disk
from bench.harness.results import Measurement, Target
from ottla import Admin
from ottla.client.positions import TopicPartition
from ottla.logfiles.names import DELETIONS_SNAPSHOT

SHAPE = Shape(1000, 10)
EVERY = 10
DELETIONS = 10_000_000
IN_A_CALL = 1_000_000


class _Cost(NamedTuple):
    """In millions: of bytes, of deletions a second."""

    most_memory: float
    memory: float
    memory_after_restart: float
    log: float
    snapshot: float
    speed: float


WHATS = {
    "most_memory": "memory more than before, at most",
    "memory": "memory more than before, in the end",
    "memory_after_restart": "memory more than without deletions, after a restart",
    "log": "marks in the log",
    "snapshot": "snapshot beside the log",
}


def _log_bytes(broker: OttlaBroker, topic: str) -> int:
    return sum(path.stat().st_size for path in broker.segments(topic))


def _restarted(broker: OttlaBroker, filled: Filled) -> int:
    """The memory that it holds once the log is loaded."""
    broker.stop()
    broker.start()
    with broker.client() as client:
        client.produce_when_ready(filled.topic, 0, record_batch(Shape(1, 10)))
    return broker.resident_bytes()


def _measure(bench: Bench, deletions: int, scattered: bool) -> _Cost:
    broker = bench.new_ottla("disk")
    broker.start()
    size = deletions * EVERY // SHAPE.records * len(record_batch(SHAPE))
    filled = bench.filled_topic(broker, SHAPE, DEFAULTS, size)
    settle_disk()
    without = _restarted(broker, filled)
    log_before = _log_bytes(broker, filled.topic)
    place = TopicPartition(filled.topic, 0)
    host, port = broker.address
    began = time.perf_counter()
    deleted = 0
    with PeakMemory(broker.pid) as memory, Admin(f"{host}:{port}") as admin:
        if scattered:
            step = IN_A_CALL * EVERY
            for first in range(0, filled.end, step):
                offsets = range(first, min(first + step, filled.end), EVERY)
                deleted += admin.delete_records_at({place: offsets})[place]
        else:
            deleted = admin.delete_records_at({place: range(deletions)})[place]
    took = time.perf_counter() - began
    bench.say(f"{deleted:,} records deleted in {took:.1f} s")
    after = broker.resident_bytes()
    log_after = _log_bytes(broker, filled.topic)
    again = _restarted(broker, filled)
    snapshot = sum(
        path.stat().st_size for path in broker.data.glob(f"{filled.topic}-*/{DELETIONS_SNAPSHOT}")
    )
    bench.discard(broker)
    return _Cost(
        (memory.peak - without) / 1e6,
        (after - without) / 1e6,
        (again - without) / 1e6,
        (log_after - log_before) / 1e6,
        snapshot / 1e6,
        deleted / took / 1e6,
    )


def _run(bench: Bench) -> list[Measurement]:
    deletions = DELETIONS // 10 if bench.quick else DELETIONS
    bench.drop_pairs()
    found = []
    for scattered in (True, False):
        costs = [_measure(bench, deletions, scattered) for _ in range(bench.rounds_wanted or 1)]
        setting = f"{deletions:,} " + ("scattered" if scattered else "in one range")
        # Two sets of 8 bytes a range, and some room for what a call takes while it is under way.
        target = None
        if scattered:
            target = Target(deletions * 32 / 1e6 + 20, deletions * 16 / 1e6 + 10, "figure")
        for field, what in WHATS.items():
            values = [float(getattr(each, field)) for each in costs]
            is_memory = field.startswith(("most", "memory"))
            found.append(
                Measurement(
                    "many deletions",
                    setting,
                    what,
                    "MB",
                    False,
                    {"Ottla": values},
                    target if is_memory else None,
                )
            )
        speeds = [each.speed * 1e6 for each in costs]
        found.append(
            Measurement(
                "many deletions", setting, "deletions", "records/s", True, {"Ottla": speeds}
            )
        )
    return found


ROWS = (
    Row(
        "many deletions", "memory and log stay bounded with ten million deletions", _run, heavy=True
    ),
)
