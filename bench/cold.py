"""Consumers that read a whole backlog from the disk while producers write. Claim: p99 within twice.

Each of four topics holds a part of the backlog, and nothing of it is in the page cache. A producer
sends 1,000 requests a second of ten records of 100 B, and every request is timed: for a while alone,
then while four consumers read the backlog from its start to its end, 1 MiB at a time, as fast as the
disk gives it. When one is at the end its topic is dropped from the cache and it begins anew. The factor
is the producer's latency beside the consumers divided by that of the same round without them.

Ottla is measured as it is: a thread has the kernel read each range, and asks the disk for the 4 MiB that
follow; then it is sent, 64 KiB in a turn of the loop; and readers of old data have a fifth of the loop's
time while somebody produces. And, to see whether that is worth it, with brokers that do otherwise:

- not ahead: what follows is read when it is asked for
- copied: the thread reads each range into a buffer that nobody looks at
- all at once: a range is sent as far as its socket takes it, whoever waits
- unbounded: readers get as much as they can take
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path

from bench.harness import wire
from bench.harness.batch import Shape, next_offset
from bench.harness.bench import Bench, Row
from bench.harness.broker import ManagedBroker, OttlaBroker
from bench.harness.client import Client
from bench.harness.fetch_load import Filled
from bench.harness.paced_load import Latencies, paced_load
from bench.harness.process import cached_fraction, evict, settle_disk
from bench.harness.produce_load import DEFAULTS, requests_for
from bench.harness.results import Measurement, Target
from bench.isolation import Disturbance

RATE = 1000.0
READERS = 4
PRODUCED = Shape(10, 100)
STORED = Shape(64, 1000)
STORED_BYTES = 16 << 30
QUICK_BYTES = 1 << 30
FETCH_SIZE = 1 << 20
TARGET = Target(2.0, 1.0, "figure")

# What other brokers do in place of what Ottla does.
VARIANTS = {
    "not ahead": """
from ottla.server.disk import reads
reads.AHEAD_BYTES = 0
""",
    "copied": """
from ottla.storage.files import Files
Files._send_nowhere = staticmethod(lambda fd, position, size: position)
""",
    "all at once": """
from ottla.server.disk.old_data import OldData
from ottla.server.network import connection
connection.PIECE_BYTES = connection.SEND_QUANTUM
OldData.may_send = lambda self: True
""",
    "unbounded": """
from ottla.server.disk.old_data import OldData
OldData.delay = lambda self, size: 0.0
""",
}
_PROGRAM = """
{variant}
from ottla.cli.main import main
main()
"""


class Variant(OttlaBroker):
    """`ottla serve`, with something done otherwise."""

    def __init__(self, folder: Path, settings: Mapping[str, str], variant: str) -> None:
        super().__init__(folder, settings)
        self._program = _PROGRAM.format(variant=variant)

    def command(self) -> Sequence[str]:
        python, _, _, *words = super().command()
        return [python, "-c", self._program, *words]


class ColdConsumers(Disturbance):
    """Each reads one topic from start to end, again and again, from the disk."""

    name = "cold"
    unit = "MB/s read"

    def __init__(self, broker: ManagedBroker, backlog: list[Filled]) -> None:
        super().__init__(broker)
        self._backlog = backlog
        self.cached = 0.0

    def prepare(self) -> None:
        paths = [path for each in self._backlog for path in self.broker.segments(each.topic)]
        evict(paths)
        self.cached = cached_fraction(paths)
        evict(paths)  # what the samples brought in

    def disturb(self, stop: Event, begun: Event, done: Synchronized[float]) -> None:
        clients = [Client(self.broker.address) for _ in self._backlog]
        offsets = [0] * len(clients)

        def ask(number: int) -> None:
            topic = self._backlog[number].topic
            clients[number].send(wire.fetch_request(topic, 0, offsets[number], FETCH_SIZE))

        for number in range(len(clients)):
            ask(number)
        while not stop.is_set():
            for number, filled in enumerate(self._backlog):
                body = memoryview(clients[number].receive())
                answer = wire.fetch_answer(body)
                offset, _ = next_offset(body, answer.start, answer.end, offsets[number])
                if offset >= filled.end:
                    offset = 0
                    evict(self.broker.segments(filled.topic))
                offsets[number] = offset
                done.value += len(body) / 1e6
                ask(number)
            begun.set()


def _produce(broker: ManagedBroker, topic: str, seconds: float) -> Latencies:
    (requests,) = requests_for(broker.address, topic, PRODUCED, DEFAULTS, 1)
    return Latencies.of(
        paced_load(broker.address, requests, rate=RATE, seconds=seconds).acknowledged
    )


def _measure(
    bench: Bench, broker: ManagedBroker, size: int
) -> tuple[list[float], list[float], str]:
    """The factors of the p99, the consumers' speeds, and a note."""
    seconds = bench.seconds(full=10.0, quick=1.5)
    target = bench.new_topic(broker)
    backlog = [
        bench.filled_topic(broker, STORED, DEFAULTS, size // READERS) for _ in range(READERS)
    ]
    settle_disk()
    consumers = ColdConsumers(broker, backlog)
    _produce(broker, target, seconds)
    alone: list[Latencies] = []
    beside: list[Latencies] = []
    for _ in range(bench.rounds):
        consumers.prepare()
        alone.append(_produce(broker, target, seconds))
        with consumers:
            beside.append(_produce(broker, target, seconds))
    for topic in (target, *(each.topic for each in backlog)):
        broker.forget(topic)
    factors = [b.p99 / a.p99 for a, b in zip(alone, beside, strict=True)]

    def median(which: str, of: list[Latencies]) -> float:
        return statistics.median(float(getattr(each, which)) for each in of)

    note = "; ".join(
        f"{which} {median(which, alone):.2f} → {median(which, beside):.2f} ms"
        for which in ("p50", "p99", "p999", "worst")
    )
    note = (
        f"{broker.name}: {note}; {statistics.median(consumers.amount):.0f} MB/s read, "
        f"{consumers.cached:.0%} of it cached beforehand"
    )
    return factors, consumers.amount, note


def _run(bench: Bench) -> list[Measurement]:
    size = QUICK_BYTES if bench.quick else STORED_BYTES
    bench.drop_pairs()
    found = []
    subjects = {"as it is": bench.new_managed("disk")}
    for name, variant in VARIANTS.items():
        subjects[name] = [bench.own(Variant(bench.folder("disk"), bench.settings, variant))]
    for setting, brokers in subjects.items():
        factors: dict[str, list[float]] = {}
        speeds: dict[str, list[float]] = {}
        notes = []
        for broker in brokers:
            with broker.blamed():
                broker.start()
                bench.warm_up(broker)
                factors[broker.name], speeds[broker.name], note = _measure(bench, broker, size)
            notes.append(note)
            bench.discard(broker)
        found += [
            Measurement(
                "cold",
                setting,
                f"p99 of a producer beside {READERS} readers of {size >> 30} GiB, against without",
                "×",
                False,
                factors,
                TARGET,
                notes,
            ),
            Measurement("cold", setting, "what the readers get", "MB/s", True, speeds),
        ]
    return found


ROWS = (Row("cold", "the p99 of producers while a backlog is read from disk, at most twice", _run),)
