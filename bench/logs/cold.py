"""Consumers that read a whole backlog from the disk while producers write. Claim: p99 within twice.

Each of four topics holds a part of the backlog, and nothing of it is in the page cache. A producer
sends 1,000 requests a second of ten records of 100 B, and every request is timed: for a while alone,
then while four consumers read the backlog from its start to its end, 1 MiB at a time, as fast as the
disk gives it. When one is at the end its topic is dropped from the cache and it begins anew. The factor
is the producer's latency beside the consumers divided by that of the same round without them. While
other programs use the machine, up to twice as many rounds are measured, and the quietest count.

Consumers and producer stand for other machines, but share the processors with the broker. So the
consumers' process has the lowest priority, and takes 64 KiB by one call, and the producer has a
processor as soon as its answer is there (harness/process.py and harness/client.py). What is left of
their work disturbs a producer whatever the broker does. That is measured, too: in *no broker* the same
consumers get the same files at the same speed from a thread of their own process.

Ottla is measured as it is: a process of the lowest priority has the kernel read each range, and asks the
disk for the 4 MiB that follow; then it is sent, 64 KiB in a turn of the loop; who reads old data is
served after all others, one of them in a turn; and together they have an eighth of the loop's time while
somebody produces. And, to see whether that is worth it, the row *done-otherwise* has brokers that do
otherwise:

- threads: threads of the broker have the ranges read
- not ahead: what follows is read when it is asked for
- all at once: a range is sent as far as its socket takes it, whoever waits
- among others: a reader of old data is served in its turn, as all others are
- unbounded: readers get as much as they can take
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import statistics
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import NamedTuple

from bench.harness import wire
from bench.harness.batch import Shape, next_offset
from bench.harness.bench import Bench, Row
from bench.harness.broker import ManagedBroker, OttlaBroker
from bench.harness.client import SMALL_RECEIVE, Client, open_socket, receive_exactly
from bench.harness.load.fetch import Filled
from bench.harness.load.paced import Latencies, paced_load
from bench.harness.load.produce import DEFAULTS, requests_for
from bench.harness.process import (
    Others,
    cached_fraction,
    evict,
    let_in_at_once,
    settle_disk,
)
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
# Cores: while other programs take more, a round counts only if there is no better one.
QUIET = 0.1

# What other brokers do in place of what Ottla does.
VARIANTS = {
    "threads": """
from ottla.server.disk import warming
warming.PORTABLE = True
""",
    "not ahead": """
from ottla.server.disk import reads
reads.AHEAD_BYTES = 0
""",
    "all at once": """
from ottla.server.disk.old_data import OldData
from ottla.server.network import connection
connection.PIECE_BYTES = connection.SEND_QUANTUM
OldData.may_send = lambda self: True
""",
    "among others": """
from ottla.server.network.loop import BrokerLoop
BrokerLoop.serve_after_others = lambda *_: None
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
                body = memoryview(clients[number].receive(SMALL_RECEIVE))
                answer = wire.fetch_answer(body)
                offset, _ = next_offset(body, answer.start, answer.end, offsets[number])
                if offset >= filled.end:
                    offset = 0
                    evict(self.broker.segments(filled.topic))
                offsets[number] = offset
                done.value += len(body) / 1e6
                ask(number)
            begun.set()


class NoBroker(ColdConsumers):
    """The same consumers get the same files, at a given speed, from a thread that only sends."""

    # So much more than was sent is asked for.
    ahead = 4 << 20

    def __init__(self, broker: ManagedBroker, backlog: list[Filled], speed: float) -> None:
        super().__init__(broker, backlog)
        self._speed = speed

    def disturb(self, stop: Event, begun: Event, done: Synchronized[float]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            connections = [open_socket(listener.getsockname()) for _ in self._backlog]
            peers = [listener.accept()[0] for _ in connections]
        threading.Thread(target=self._send, args=(peers,), daemon=True).start()
        room = memoryview(bytearray(FETCH_SIZE))
        while not stop.is_set():
            for connection in connections:
                receive_exactly(connection, room, SMALL_RECEIVE)
                done.value += FETCH_SIZE / 1e6
            begun.set()

    def _send(self, peers: list[socket.socket]) -> None:
        files = [itertools.cycle(self.broker.segments(each.topic)) for each in self._backlog]
        ranges = [self._ranges(each) for each in files]
        due = time.perf_counter()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it is over
            for peer, each in itertools.cycle(zip(peers, ranges, strict=True)):
                time.sleep(max(0.0, due - time.perf_counter()))
                due = max(due, time.perf_counter() - 0.1) + FETCH_SIZE / self._speed / 1e6
                left = FETCH_SIZE
                while left:
                    fd, position, size = next(each)
                    left -= os.sendfile(peer.fileno(), fd, position, size)

    def _ranges(self, paths: Iterable[Path]) -> Iterator[tuple[int, int, int]]:
        """The files from start to end, 64 KiB at a time; the end of one, which is less, is left out."""
        for path in paths:
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            for position in range(0, os.fstat(fd).st_size - SMALL_RECEIVE, SMALL_RECEIVE):
                os.posix_fadvise(fd, position + self.ahead, SMALL_RECEIVE, os.POSIX_FADV_WILLNEED)
                yield fd, position, SMALL_RECEIVE
            os.close(fd)


def _produce(broker: ManagedBroker, topic: str, seconds: float) -> Latencies:
    (requests,) = requests_for(broker.address, topic, PRODUCED, DEFAULTS, 1)
    with let_in_at_once():
        paced = paced_load(broker.address, requests, rate=RATE, seconds=seconds)
    return Latencies.of(paced.acknowledged)


class _Round(NamedTuple):
    others: float
    alone: Latencies
    beside: Latencies
    speed: float


def _measure(
    bench: Bench, broker: ManagedBroker, size: int, speed: float | None = None
) -> tuple[list[float], list[float], str]:
    """The factors of the p99, the consumers' speeds, and a note. `speed`, in MB/s, for consumers that
    get their data elsewhere."""
    seconds = bench.seconds(full=10.0, quick=1.5)
    target = bench.new_topic(broker)
    backlog = [
        bench.filled_topic(broker, STORED, DEFAULTS, size // READERS) for _ in range(READERS)
    ]
    settle_disk()
    consumers = (
        ColdConsumers(broker, backlog) if speed is None else NoBroker(broker, backlog, speed)
    )
    _produce(broker, target, seconds)
    measured: list[_Round] = []
    for _ in range(2 * bench.rounds):
        consumers.prepare()
        others = Others()
        alone = _produce(broker, target, seconds)
        with consumers:
            beside = _produce(broker, target, seconds)
        measured.append(_Round(others.cores(), alone, beside, consumers.amount.pop()))
        if sum(each.others < QUIET for each in measured) == bench.rounds:
            break
    quietest = sorted(measured, key=lambda each: each.others)[: bench.rounds]
    for topic in (target, *(each.topic for each in backlog)):
        broker.forget(topic)
    factors = [each.beside.p99 / each.alone.p99 for each in quietest]
    speeds = [each.speed for each in quietest]

    def medians(which: str) -> str:
        alone, beside = (
            statistics.median(float(getattr(latencies, which)) for latencies in series)
            for series in zip(*((each.alone, each.beside) for each in quietest), strict=True)
        )
        return f"{which} {alone:.2f} → {beside:.2f} ms"

    note = "; ".join(medians(which) for which in ("p50", "p99", "p999", "worst"))
    note = (
        f"{broker.name}: {note}; {statistics.median(speeds):.0f} MB/s read, "
        f"{consumers.cached:.0%} of it cached beforehand; others took up to "
        f"{max(0.0, quietest[-1].others):.2f} cores"
    )
    return factors, speeds, note


def _run(bench: Bench) -> list[Measurement]:
    bench.drop_pairs()
    as_it_is = _measured(bench, "cold", "as it is", bench.new_managed("disk"))
    speed = statistics.median(as_it_is[1].values["Ottla"])
    return as_it_is + _measured(bench, "cold", "no broker", [bench.new_ottla("disk")], speed)


def _run_otherwise(bench: Bench) -> list[Measurement]:
    bench.drop_pairs()
    found = []
    for name, variant in VARIANTS.items():
        broker = bench.own(Variant(bench.folder("disk"), bench.settings, variant))
        found += _measured(bench, "done-otherwise", name, [broker])
    return found


def _measured(
    bench: Bench,
    row: str,
    setting: str,
    brokers: list[ManagedBroker],
    speed: float | None = None,
) -> list[Measurement]:
    size = QUICK_BYTES if bench.quick else STORED_BYTES
    factors: dict[str, list[float]] = {}
    speeds: dict[str, list[float]] = {}
    notes = []
    for broker in brokers:
        with broker.blamed():
            broker.start()
            bench.warm_up(broker)
            factors[broker.name], speeds[broker.name], note = _measure(bench, broker, size, speed)
        notes.append(note)
        bench.say(f"{setting}: {note}")
        bench.discard(broker)
    what = f"p99 of a producer beside {READERS} readers of {size >> 30} GiB, against without"
    target = TARGET if speed is None else None
    return [
        Measurement(row, setting, what, "×", False, factors, target, notes),
        Measurement(row, setting, "what the readers get", "MB/s", True, speeds),
    ]


ROWS = (
    Row("cold", "the p99 of producers while a backlog is read from disk, at most twice", _run),
    Row("done-otherwise", "the same, with brokers that read old data otherwise", _run_otherwise),
)
