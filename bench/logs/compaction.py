"""Does compaction slow down others? Latency of a producer and its consumer while 5 GB are compacted.

A topic is filled with keyed records under `cleanup.policy=delete`; then it is told to compact, and as
soon as the broker writes its first `.cleaned` file, 1,000 records a second are sent to another topic,
on time, and followed by a consumer, until the compaction is over. The factors are the latencies
during it divided by those before it, of the same broker.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import NamedTuple

from bench.harness import wire
from bench.harness.batch import Shape, record_batch
from bench.harness.bench import Bench, Row
from bench.harness.broker import ManagedBroker
from bench.harness.errors import BenchError
from bench.harness.load.paced import Latencies
from bench.harness.load.produce import DEFAULTS
from bench.harness.process import settle_disk
from bench.harness.results import Measurement
from bench.latency import Course

SHAPE = Shape(64, 1000)
BATCHES = 1000  # different ones; their keys come again every 64 MB
IN_FLIGHT = 8
FULL_BYTES = 5_000_000_000
QUICK_BYTES = 600_000_000
SEGMENT_BYTES = 256 << 20
BEGIN_TIMEOUT = 90.0  # the cleaners of both brokers look for work every 15 s
END_TIMEOUT = 600.0


class _Found(NamedTuple):
    """End to end and until the acknowledgement, of each round before and during; and the compaction."""

    before: list[tuple[Latencies, Latencies]]
    during: list[tuple[Latencies, Latencies]]
    seconds: float
    megabytes: float
    megabytes_left: float


def _keyed_batches() -> list[bytes]:
    return [
        record_batch(SHAPE, keys=(b"key-%08d" % (first + at) for at in range(SHAPE.records)))
        for first in range(0, BATCHES * SHAPE.records, SHAPE.records)
    ]


def _fill(broker: ManagedBroker, topic: str, size: int) -> None:
    requests = [wire.produce_request(7, 1, topic, 0, batch) for batch in _keyed_batches()]
    error_at = wire.produce_answer(7, topic).errors_at[0] - 4
    count = size // len(requests[0])
    with broker.client() as client:
        for number in range(count + IN_FLIGHT):
            if number < count:
                client.send(requests[number % len(requests)])
            if number >= IN_FLIGHT:
                answer = client.receive()
                if any(answer[error_at : error_at + 2]):
                    raise BenchError("a batch to compact was refused")


def _size(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.glob("*.log")) / 1e6


def _is_compacting(folder: Path) -> bool:
    return any(folder.glob("*.cleaned")) or any(folder.glob("*.swap"))


def _measure(bench: Bench, broker: ManagedBroker) -> _Found:
    seconds = bench.seconds(full=3.0, quick=1.0)
    topic = bench.new_topic(broker, 1, {"segment.bytes": str(SEGMENT_BYTES)})
    _fill(broker, topic, QUICK_BYTES if bench.quick else FULL_BYTES)
    settle_disk()
    course = Course(bench, broker, DEFAULTS)
    course.run(seconds)  # does not count
    before = [course.run(seconds) for _ in range(bench.rounds)]
    folder = broker.data / f"{topic}-0"
    size = _size(folder)
    with broker.client() as client:
        client.alter_topic(
            topic, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        )
    deadline = time.monotonic() + BEGIN_TIMEOUT
    while not _is_compacting(folder):
        if time.monotonic() > deadline:
            raise BenchError(f"{broker.name} does not compact")
        time.sleep(0.01)
    began = time.monotonic()
    during: list[tuple[Latencies, Latencies]] = []
    while True:
        latencies = course.run(seconds)
        over = not _is_compacting(folder)
        # A round in which it ended counts only if there is no other.
        if not over or not during:
            during.append(latencies)
        if over:
            break
        if time.monotonic() - began > END_TIMEOUT:
            raise BenchError(f"{broker.name} does not end its compaction")
    took = time.monotonic() - began
    left = _size(folder)
    broker.forget(course.topic, wait=False)
    broker.forget(topic)
    return _Found(before, during, took, size, left)


def _run(bench: Bench) -> list[Measurement]:
    found: dict[str, _Found] = {}
    for broker in bench.pair("disk"):
        if isinstance(broker, ManagedBroker):  # whose files can be looked at
            with broker.blamed():
                found[broker.name] = _measure(bench, broker)
    measured = []
    for at, what in enumerate(("end to end", "acknowledgement")):
        for which in ("p50", "p99"):

            def median(each: list[tuple[Latencies, Latencies]]) -> float:
                return statistics.median(float(getattr(pair[at], which)) for pair in each)  # noqa: B023

            values = {
                name: [getattr(pair[at], which) / median(each.before) for pair in each.during]
                for name, each in found.items()
            }
            label = f"{what}, {which}, against without"
            figure = Measurement("compaction", "defaults", label, "×", False, values)
            figure.notes = [
                f"{name}: {what} {which} {median(each.before):.2f} → {median(each.during):.2f} ms"
                for name, each in found.items()
            ]
            measured.append(figure)
    measured[-1].notes += [
        f"{name}: {each.megabytes:,.0f} MB to {each.megabytes_left:,.0f} MB in {each.seconds:.0f} s"
        for name, each in found.items()
    ]
    return measured


ROWS = (Row("compaction", "the latency of others while 5 GB are compacted (0.6: --quick)", _run),)
