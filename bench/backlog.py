"""Speed with much stored, against the speed of the same broker on a log that holds little.

One topic gets millions of records of 100 B first. Then rounds alternate between it and a small one:
producing at the end, fetching at random offsets, finding offsets by time. The offsets and times lie in
a stretch of 128 MB, in the middle of the large log, read through beforehand: what is compared is
finding the place, not the disk. Each figure is the large log's speed divided by the small one's.
"""

from __future__ import annotations

import random
import shutil
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import crc32c

from bench.harness import wire
from bench.harness.batch import COVERED_FROM, CRC_AT, Shape, record_batch
from bench.harness.bench import Bench, Row
from bench.harness.broker import Broker
from bench.harness.fetch_load import Filled, fetch_load
from bench.harness.process import settle_disk
from bench.harness.produce_load import DEFAULTS, PlainRequests, produce_load
from bench.harness.results import Measurement, Target

SHAPE = Shape(100, 100)
STRETCH = 128 << 20
FETCH_SIZE = 64 << 10
BATCHES_IN_A_MILLISECOND = 20
TARGET = Target(0.95, 1.0, "figure")

_TIMESTAMPS_AT = 27  # base and highest timestamp of a batch


class ClockedRequests:
    """Requests whose batches carry a time that moves on by a millisecond every 20 batches.

    Not the time of sending: then how many batches share a millisecond, and so how far a search by
    time has to scan, would depend on how fast they were written.
    """

    def __init__(self, topic: str, batches: int) -> None:
        self._one = bytearray(produce_request(topic, record_batch(SHAPE)))
        self._batch_at = len(self._one) - len(record_batch(SHAPE))
        self._sendable = bytes(self._one)
        self._sent = 0
        self.size = len(self._one)
        self.answer = wire.produce_answer(DEFAULTS.version, topic)
        self._first_time = int(time.time() * 1000) - batches // BATCHES_IN_A_MILLISECOND - 1
        self._stamped = 0

    @property
    def time(self) -> int:
        """Of the next batch, in milliseconds."""
        return self._first_time + self._sent // BATCHES_IN_A_MILLISECOND

    def take(self, count: int) -> list[bytes]:
        if self._stamped != self.time:
            self._stamped = self.time
            at = self._batch_at
            struct.pack_into(">qq", self._one, at + _TIMESTAMPS_AT, self._stamped, self._stamped)
            checksum = crc32c.crc32c(bytes(self._one[at + COVERED_FROM :]))
            struct.pack_into(">I", self._one, at + CRC_AT, checksum)
            self._sendable = bytes(self._one)
        self._sent += count
        return [self._sendable] * count


def produce_request(topic: str, batch: bytes) -> bytes:
    return wire.produce_request(DEFAULTS.version, DEFAULTS.acks, topic, 0, batch)


class _Log(NamedTuple):
    """One of the two logs; `first` and `last` bound the stretch that is read."""

    filled: Filled
    first: int
    last: int
    from_time: int  # of the stretch, in milliseconds
    to_time: int


def _store(bench: Bench, broker: Broker, records: int) -> _Log:
    """A topic with so many records, written through 8 connections × 5 in flight."""
    topic = bench.new_topic(broker)
    with broker.client() as client:
        topic_id = client.topic(topic).topic_id
    batch_size = len(record_batch(SHAPE))
    batches = records // SHAPE.records
    supply = ClockedRequests(topic, batches)
    stretch = min(batches, STRETCH // batch_size)
    before = (batches - stretch) // 2
    times = []
    for count in (before, stretch, batches - stretch - before):
        times.append(supply.time)
        if count:
            produce_load(broker.address, [supply] * 8, 5, requests=count)
    first = before * SHAPE.records
    last = first + (stretch - FETCH_SIZE // batch_size - 1) * SHAPE.records
    filled = Filled(topic, topic_id, 1, SHAPE, batch_size, batches)
    return _Log(filled, first, last, times[1], times[2])


def _warm(broker: Broker, log: _Log) -> None:
    step = FETCH_SIZE // log.filled.batch_size * SHAPE.records
    with broker.client() as client:
        for offset in range(log.first, log.last, step):
            client.ask(wire.fetch_request(log.filled.topic, 0, offset, FETCH_SIZE))


def _random_numbers(first: int, last: int) -> Iterator[int]:
    numbers = random.Random(7)
    while True:
        yield numbers.randint(first, last)


class _Speed(NamedTuple):
    """How fast, and what a request cost the broker in microseconds of processor time."""

    speed: float
    cost: float


def _produce(broker: Broker, log: _Log, seconds: float) -> _Speed:
    supply = PlainRequests(log.filled.topic, SHAPE, DEFAULTS)
    load = produce_load(
        broker.address,
        [supply] * 8,
        5,
        seconds=seconds,
        max_bytes=1 << 30,
        broker_cpu=broker.cpu_seconds,
    )
    return _Speed(load.megabytes_per_second, load.broker_cost)


def _fetch(broker: Broker, log: _Log, seconds: float) -> _Speed:
    load = fetch_load(
        broker.address,
        log.filled,
        FETCH_SIZE,
        seconds,
        offsets=_random_numbers(log.first, log.last),
        broker_cpu=broker.cpu_seconds,
    )
    return _Speed(load.requests_per_second, load.broker_cost)


def _find_by_time(broker: Broker, log: _Log, seconds: float) -> _Speed:
    found = 0
    with broker.client() as client:
        cpu_before = broker.cpu_seconds()
        began = time.perf_counter()
        for timestamp in _random_numbers(log.from_time, log.to_time):
            client.offset(log.filled.topic, 0, timestamp)
            found += 1
            took = time.perf_counter() - began
            if took >= seconds:
                break
        cpu = broker.cpu_seconds() - cpu_before
    return _Speed(found / took, cpu / found * 1e6)


class _Figure(NamedTuple):
    what: str
    unit: str
    measure: Callable[[Broker, _Log, float], _Speed]
    target: Target | None


FIGURES = (
    _Figure("produce, 100 × 100 B, 8 × 5 in flight", "MB/s", _produce, TARGET),
    _Figure("fetch of 64 KiB at random offsets", "requests/s", _fetch, TARGET),
    _Figure("offsets by time", "requests/s", _find_by_time, None),
)


def _one_broker(
    bench: Bench, broker: Broker, records: int, seconds: float
) -> list[tuple[list[float], str]]:
    """For each figure the ratios of the rounds, and a note on the speeds behind them."""
    small_records = STRETCH // SHAPE.size
    small = _store(bench, broker, small_records)
    began = time.perf_counter()
    large = _store(bench, broker, records)
    bench.say(f"{records:,} records on {broker.name} after {time.perf_counter() - began:.0f} s")
    settle_disk()
    results = []
    for figure in FIGURES:
        rounds: dict[str, list[_Speed]] = {"small": [], "large": []}
        for _ in range(bench.rounds):
            for name, log in (("small", small), ("large", large)):
                if figure.measure is _produce:
                    # What is produced makes a log larger, so the small one is new every time.
                    if name == "small":
                        log = _store(bench, broker, 100_000)
                    settle_disk()
                else:
                    _warm(broker, log)
                rounds[name].append(figure.measure(broker, log, seconds))
                if log not in (small, large):
                    broker.forget(log.filled.topic, wait=False)
        ratios = [large.speed / small.speed for small, large in zip(*rounds.values(), strict=True)]
        stored = {"small": "little", "large": f"{records:,} records"}
        notes = [
            f"{statistics.median(each.speed for each in speeds):,.0f} {figure.unit}"
            f" and {statistics.median(each.cost for each in speeds):.1f} µs of processor time"
            f" for a request with {stored[name]}"
            for name, speeds in rounds.items()
        ]
        results.append((ratios, f"{broker.name}: " + "; ".join(notes)))
    for topic in (small.filled.topic, large.filled.topic):
        broker.forget(topic)
    return results


def _run(bench: Bench) -> list[Measurement]:
    records = bench.backlog_records or (5_000_000 if bench.quick else 100_000_000)
    seconds = bench.seconds(full=1.5, quick=0.5)
    needed = records * 110 + (8 << 30)
    bench.disk.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(bench.disk).free) < needed:
        records = max(1_000_000, (free - (8 << 30)) // 110)
        bench.note(f"the disk has room for {records:,} records only")
    values: list[dict[str, list[float]]] = [{} for _ in FIGURES]
    notes: list[list[str]] = [[] for _ in FIGURES]
    for broker in bench.pair("disk"):
        with broker.blamed():
            results = _one_broker(bench, broker, records, seconds)
        for index, (ratios, note) in enumerate(results):
            values[index][broker.name] = ratios
            notes[index].append(note)
    return [
        Measurement(
            "backlog",
            f"{records // 1_000_000} million",
            f"{figure.what}, against little",
            "×",
            True,
            values[index],
            figure.target,
            notes[index],
        )
        for index, figure in enumerate(FIGURES)
    ]


ROWS = (Row("backlog", "100 million records stored (5 million with --quick)", _run),)
