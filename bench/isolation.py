"""Does one client's behaviour slow down another? Claim: p99 within twice of what it was.

A producer sends 1,000 records a second, one request each, and every request is timed. Beside it, in a
process of its own, one of these goes on:

- cold: a consumer reads a log that the page cache does not hold, as fast as the disk gives it
- stalled: consumers ask for much and read nothing of it
- half a frame: connections that send half of a large request, then a byte now and then
- large requests: requests of 90 MB, more than any topic takes, one after the other
- garbage: connections that send something that is no request, as fast as they are closed
- recompression: batches of 0.9 MB into a topic that wants them as gzip
- long requests: one with 100,000 entries after the other (or one topic named a thousand times), a row
  for each API; and a thousand topics that are created by one request and deleted by the next

The factor is the latency during the disturbance divided by the same round's latency without any.
The disturbing client has the lowest priority: it stands for another machine, and only what the broker
does for it is meant to count.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import socket
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from types import TracebackType

from bench.harness import wire
from bench.harness.batch import Shape, next_offset, record_batch
from bench.harness.bench import Bench, Row
from bench.harness.broker import ManagedBroker
from bench.harness.client import SMALL_RECEIVE, Client, open_socket
from bench.harness.errors import BenchError
from bench.harness.load.fetch import Filled
from bench.harness.load.paced import Latencies, paced_load
from bench.harness.load.produce import DEFAULTS, PlainRequests, requests_for
from bench.harness.long_requests import long_requests, topic_turnover
from bench.harness.process import cached_fraction, evict, let_in_at_once, settle_disk, step_aside
from bench.harness.results import Measurement, Target

RATE = 1000.0
MEGABYTE = 1 << 20

processes = multiprocessing.get_context("fork")


class Disturbance(ABC):
    """Something unpleasant that a client does until it is told to stop."""

    name: str
    unit: str = "times"

    def __init__(self, broker: ManagedBroker) -> None:
        self.broker = broker
        self.amount: list[float] = []  # of what it did, for each round
        self._stop: Event = processes.Event()
        self._begun: Event = processes.Event()
        self._done: Synchronized[float] = processes.Value("d", 0.0)

    def prepare(self) -> None:
        """Before every round, while nothing is timed."""
        return

    @abstractmethod
    def disturb(self, stop: Event, begun: Event, done: Synchronized[float]) -> None:
        """In a process of its own: set `begun` once it is going on, count in `done`."""

    def _main(self) -> None:
        step_aside()
        with contextlib.suppress(KeyboardInterrupt, BrokenPipeError, ConnectionResetError):
            self.disturb(self._stop, self._begun, self._done)

    def __enter__(self) -> Disturbance:
        self._stop.clear()
        self._begun.clear()
        self._done.value = 0.0
        self._process = processes.Process(target=self._main, daemon=True)
        self._process.start()
        if not self._begun.wait(30):
            raise BenchError(f"{self.name}: the disturbance did not come about")
        self._since = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.amount.append(self._done.value / (time.perf_counter() - self._since))
        self._stop.set()
        self._process.join(10)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()


class ColdConsumer(Disturbance):
    """Reads from start to end what was evicted from the page cache, then evicts it again."""

    name = "cold"
    unit = "MB/s read"

    def __init__(self, broker: ManagedBroker, filled: Filled) -> None:
        super().__init__(broker)
        self._filled = filled
        self.cached = 0.0

    def prepare(self) -> None:
        paths = self.broker.segments(self._filled.topic)
        evict(paths)
        self.cached = cached_fraction(paths)
        evict(paths)  # what the samples brought in

    def disturb(self, stop: Event, begun: Event, done: Synchronized[float]) -> None:
        offset = 0
        with Client(self.broker.address) as client:
            while not stop.is_set():
                request = wire.fetch_request(self._filled.topic, 0, offset, MEGABYTE)
                client.send(request)
                body = memoryview(client.receive(SMALL_RECEIVE))
                answer = wire.fetch_answer(body)
                offset, _ = next_offset(body, answer.start, answer.end, offset)
                done.value += len(body) / 1e6
                begun.set()
                if offset >= self._filled.end:
                    offset = 0
                    evict(self.broker.segments(self._filled.topic))


class StalledConsumers(Disturbance):
    """Each asks for 20 × 1 MiB of data that is there, and never reads."""

    name = "stalled"
    unit = "connections"
    connections = 4

    def __init__(self, broker: ManagedBroker, filled: Filled) -> None:
        super().__init__(broker)
        self._filled = filled

    def disturb(self, stop: Event, begun: Event, done: Synchronized[float]) -> None:
        held: list[socket.socket] = []
        for _ in range(self.connections):
            connection = open_socket(self.broker.address)
            connection.sendall(wire.fetch_request(self._filled.topic, 0, 0, MEGABYTE) * 20)
            held.append(connection)
        time.sleep(0.2)
        begun.set()
        done.value = self.connections
        stop.wait()
        for connection in held:
            connection.close()


class HalfFrames(Disturbance):
    """Each sends half of a request of 0.9 MB, then a byte of it every 10 ms."""

    name = "half a frame"
    unit = "connections"
    connections = 4

    def __init__(self, broker: ManagedBroker, topic: str) -> None:
        super().__init__(broker)
        self._topic = topic

    def disturb(self, stop: Event, begun: Event, done: Synchronized[float]) -> None:
        (request,) = PlainRequests(self._topic, Shape(900, 1000), DEFAULTS).take(1)
        at = len(request) // 2
        held: list[socket.socket] = []
        for _ in range(self.connections):
            connection = open_socket(self.broker.address)
            connection.sendall(request[:at])
            held.append(connection)
        begun.set()
        done.value = self.connections
        while not stop.wait(0.01) and at + 1 < len(request):
            for connection in held:
                connection.sendall(request[at : at + 1])
            at += 1
        stop.wait()
        for connection in held:
            connection.close()


class LargeRequests(Disturbance):
    """Sends requests of 90 MB, which are received whole and then refused."""

    name = "large requests"
    unit = "MB/s received"
    size = 90 << 20

    def __init__(self, broker: ManagedBroker, topic: str) -> None:
        super().__init__(broker)
        self._topic = topic

    def disturb(self, stop: Event, begun: Event, done: Synchronized[float]) -> None:
        request = wire.produce_request(7, 1, self._topic, 0, bytes(self.size))
        with Client(self.broker.address) as client:
            while not stop.is_set():
                client.send(request)
                begun.set()
                client.receive()
                done.value += len(request) / 1e6


class Garbage(Disturbance):
    """Connects, sends a length that no request has, and waits to be closed."""

    name = "garbage"
    unit = "connections/s"

    def disturb(self, stop: Event, begun: Event, done: Synchronized[float]) -> None:
        while not stop.is_set():
            connection = open_socket(self.broker.address)
            try:
                connection.sendall(b"\xff\xff\xff\xff")
                connection.recv(1)
            except ConnectionResetError:
                pass  # closed, which is what was waited for
            finally:
                connection.close()
            done.value += 1
            begun.set()


class Recompression(Disturbance):
    """Feeds uncompressed batches of 0.9 MB to a topic that stores gzip, two connections at a time."""

    name = "recompression"
    unit = "MB/s recompressed"
    connections = 2

    def __init__(self, broker: ManagedBroker, topic: str) -> None:
        super().__init__(broker)
        self._topic = topic
        # Words, so that the compressor has about the work that text gives it.
        words = random.Random(7)
        text = (b" ".join(b"%x" % words.getrandbits(20) for _ in range(250)) for _ in range(900))
        batch = record_batch(Shape(900, 1000), values=(value[:1000] for value in text))
        self._request = wire.produce_request(7, 1, topic, 0, batch)
        self._error_at = wire.produce_answer(7, topic).errors_at[0] - 4

    def disturb(self, stop: Event, begun: Event, done: Synchronized[float]) -> None:
        clients = [Client(self.broker.address) for _ in range(self.connections)]
        while not stop.is_set():
            for client in clients:
                client.send(self._request)
            for client in clients:
                answer = client.receive()
                if any(answer[self._error_at : self._error_at + 2]):
                    raise BenchError("a batch to recompress was refused")
                done.value += len(self._request) / 1e6
            begun.set()


class LongRequests(Disturbance):
    """Sends one long request after the other, on one connection."""

    unit = "requests/s"

    def __init__(self, broker: ManagedBroker, name: str, request: bytes) -> None:
        super().__init__(broker)
        self.name = name
        self._request = request

    def disturb(self, stop: Event, begun: Event, done: Synchronized[float]) -> None:
        with Client(self.broker.address) as client:
            while not stop.is_set():
                client.send(self._request)
                begun.set()
                client.receive()
                done.value += 1


class TopicTurnover(Disturbance):
    """Creates many topics by one request, deletes them by the next."""

    name = "topics that come and go"
    unit = "topics/s"

    def __init__(self, broker: ManagedBroker, count: int) -> None:
        super().__init__(broker)
        self._count = count

    def disturb(self, stop: Event, begun: Event, done: Synchronized[float]) -> None:
        create, delete = topic_turnover(self._count)
        with Client(self.broker.address) as client:
            while not stop.is_set():
                for request in (create, delete):
                    client.send(request)
                    begun.set()
                    client.receive()
                done.value += self._count


def baseline(broker: ManagedBroker, topic: str, seconds: float) -> Latencies:
    (requests,) = requests_for(broker.address, topic, Shape(1, 100), DEFAULTS, 1)
    with let_in_at_once():
        paced = paced_load(broker.address, requests, rate=RATE, seconds=seconds)
    return Latencies.of(paced.acknowledged)


class Series:
    """Of one broker and one disturbance: latencies of each round, without and with it."""

    def __init__(self) -> None:
        self.quiet: list[Latencies] = []
        self.disturbed: list[Latencies] = []

    def factors(self, which: str) -> list[float]:
        return [
            getattr(disturbed, which) / getattr(quiet, which)
            for quiet, disturbed in zip(self.quiet, self.disturbed, strict=True)
        ]

    def note(self, broker: str, disturbance: Disturbance) -> str:
        def median(each: list[Latencies], which: str) -> float:
            return statistics.median(float(getattr(latency, which)) for latency in each)

        text = (
            f"{broker}: p50 {median(self.quiet, 'p50'):.2f} → {median(self.disturbed, 'p50'):.2f}"
            f" ms, p99 {median(self.quiet, 'p99'):.2f} → {median(self.disturbed, 'p99'):.2f} ms"
        )
        text += f", worst {max(each.worst for each in self.disturbed):.1f} ms"
        if disturbance.unit != "connections":
            text += f"; {statistics.median(disturbance.amount):.0f} {disturbance.unit}"
        if isinstance(disturbance, ColdConsumer):
            text += f", {disturbance.cached:.0%} of it cached beforehand"
        return text


def _one_broker(
    bench: Bench, broker: ManagedBroker, seconds: float
) -> dict[str, tuple[Series, str]]:
    size = (1 if bench.quick else 3) << 30
    victim = bench.new_topic(broker)
    gzipped = bench.new_topic(broker, 1, {"compression.type": "gzip"})
    cold = bench.filled_topic(broker, Shape(64, 1000), DEFAULTS, size)
    hot = bench.filled_topic(broker, Shape(64, 1000), DEFAULTS, 64 << 20)
    settle_disk()
    disturbances: list[Disturbance] = [
        ColdConsumer(broker, cold),
        StalledConsumers(broker, hot),
        HalfFrames(broker, victim),
        LargeRequests(broker, victim),
        Garbage(broker),
        Recompression(broker, gzipped),
    ]
    found = disturbed(bench, broker, victim, disturbances, seconds)
    for topic in (cold.topic, hot.topic, gzipped, victim):
        broker.forget(topic)
    return found


def _one_broker_with_long_requests(
    bench: Bench, broker: ManagedBroker, seconds: float
) -> dict[str, tuple[Series, str]]:
    victim = bench.new_topic(broker)
    named = bench.new_topic(broker)
    entries = 10_000 if bench.quick else 100_000
    disturbances: list[Disturbance] = [
        LongRequests(broker, name, request)
        for name, request in long_requests(named, entries).items()
    ]
    disturbances.append(TopicTurnover(broker, entries // 100))
    found = disturbed(bench, broker, victim, disturbances, seconds)
    for topic in (victim, named):
        broker.forget(topic)
    return found


def disturbed(
    bench: Bench,
    broker: ManagedBroker,
    victim: str,
    disturbances: list[Disturbance],
    seconds: float,
) -> dict[str, tuple[Series, str]]:
    series = {each.name: Series() for each in disturbances}
    baseline(broker, victim, seconds)
    for _ in range(bench.rounds):
        for disturbance in disturbances:
            disturbance.prepare()
            series[disturbance.name].quiet.append(baseline(broker, victim, seconds))
            with disturbance:
                series[disturbance.name].disturbed.append(baseline(broker, victim, seconds))
            time.sleep(0.2)
    return {
        each.name: (series[each.name], series[each.name].note(broker.name, each))
        for each in disturbances
    }


OneBroker = Callable[[Bench, ManagedBroker, float], dict[str, tuple[Series, str]]]


def _run(bench: Bench) -> list[Measurement]:
    return _measured(bench, "isolation", _one_broker)


def _run_long_requests(bench: Bench) -> list[Measurement]:
    return _measured(bench, "long-requests", _one_broker_with_long_requests)


def _measured(bench: Bench, row: str, one_broker: OneBroker) -> list[Measurement]:
    seconds = bench.seconds(full=2.5, quick=0.8)
    measured = {}
    for broker in bench.pair("disk"):
        if isinstance(broker, ManagedBroker):  # whose files can be evicted
            with broker.blamed():
                measured[broker.name] = one_broker(bench, broker, seconds)
    found = []
    names = next(iter(measured.values())).keys()
    for name in names:
        for which, target in (("p50", None), ("p99", Target(2.0, 1.0, "figure"))):
            values = {broker: each[name][0].factors(which) for broker, each in measured.items()}
            figure = Measurement(
                row,
                name,
                f"{which} of another producer, against without",
                "×",
                False,
                values,
                target,
            )
            if target is not None:
                figure.notes = [each[name][1] for each in measured.values()]
            found.append(figure)
    return found


ROWS = (
    Row("isolation", "the p99 of others while one client misbehaves, at most twice", _run),
    Row(
        "long-requests",
        "the p99 of others while one client names 100,000 things, at most twice",
        _run_long_requests,
    ),
)
