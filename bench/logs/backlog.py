"""Speed with much stored, against the speed of the same broker on a log that holds little.

One topic gets millions of records of 100 B first. Then 20 rounds (3 with --quick) alternate between it
and a small one: producing and fetching at the end, fetching at random old offsets, finding offsets by
time. The old offsets and times lie in a stretch of 128 MB, in the middle of the large log. Both logs
are dropped from the page cache and the stretches read through beforehand: what is compared is finding
the place, neither the disk nor how the kernel keeps what was written a moment ago. Each figure is the
large log's divided by the small one's, with the interval in which their mean lies with a confidence of
95 %.

The long mode, `--gigabytes 40`, stores as many records as so much disk holds: batches of 1,000 texts
like JSON events, compressed with zstd. The notes say how many records that were, and how large.
"""

from __future__ import annotations

import random
import shutil
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import crc32c

from bench.harness import wire
from bench.harness.batch import COVERED_FROM, CRC_AT, Shape, record_batch
from bench.harness.bench import Bench, Row
from bench.harness.broker import Broker, ManagedBroker
from bench.harness.load.fetch import Filled, fetch_load
from bench.harness.load.paced import percentile
from bench.harness.load.produce import DEFAULTS, PlainRequests, produce_load
from bench.harness.process import evict, settle_disk
from bench.harness.results import Measurement, Target, confidence
from bench.harness.results import number as number_text
from ottla.record.compression.codecs import Codec

SHAPE = Shape(100, 100)
# Of the long mode.
PACKED = Shape(1000, 100, Codec.ZSTD)
ROUNDS = 20
STRETCH = 128 << 20
FETCH_SIZE = 64 << 10
BATCHES_IN_A_MILLISECOND = 20
TARGET = Target(0.95, 1.0, "figure")
LATENCY_TARGET = Target(1.05, 1.0, "figure")
SPARE_BYTES = 8 << 30

_TIMESTAMPS_AT = 27  # base and highest timestamp of a batch


class ClockedRequests:
    """Requests whose batches carry a time that moves on by a millisecond every 20 batches.

    Not the time of sending: then how many batches share a millisecond, and so how far a search by
    time has to scan, would depend on how fast they were written.
    """

    def __init__(self, topic: str, batches: int, shape: Shape = SHAPE) -> None:
        batch = record_batch(shape)
        self._one = bytearray(produce_request(topic, batch))
        self._batch_at = len(self._one) - len(batch)
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


class Backlog(NamedTuple):
    """What is to be stored."""

    records: int
    shape: Shape

    @property
    def batches(self) -> int:
        return self.records // self.shape.records

    @property
    def stored_bytes(self) -> int:
        return self.batches * len(record_batch(self.shape))

    def __str__(self) -> str:
        size = self.records * self.shape.size
        packed = f", {self.shape.codec.name.lower()}" if self.shape.codec else ""
        return (
            f"{self.records:,} records of {self.shape.size} B ({size / 1e9:,.1f} GB) in "
            f"{self.stored_bytes / 1e9:,.1f} GB{packed}"
        )


def backlog_of(bench: Bench) -> Backlog:
    """What was asked for, as far as the disk has room for it."""
    bench.disk.mkdir(parents=True, exist_ok=True)
    shape = SHAPE if bench.backlog_gigabytes is None else PACKED
    size = len(record_batch(shape))
    if bench.backlog_gigabytes is not None:
        batches = int(bench.backlog_gigabytes * 1e9) // size
    else:
        records = bench.backlog_records or (5_000_000 if bench.quick else 100_000_000)
        batches = records // shape.records
    free = shutil.disk_usage(bench.disk).free
    if batches * size + SPARE_BYTES > free:
        batches = max(1_000_000 // shape.records, (free - SPARE_BYTES) // size)
        bench.note(f"the disk has room for {batches * shape.records:,} records only")
    return Backlog(batches * shape.records, shape)


def _store(bench: Bench, broker: Broker, records: int, shape: Shape) -> _Log:
    """A topic with so many records, written through 8 connections × 5 in flight."""
    topic = bench.new_topic(broker)
    with broker.client() as client:
        topic_id = client.topic(topic).topic_id
    batch_size = len(record_batch(shape))
    batches = records // shape.records
    supply = ClockedRequests(topic, batches, shape)
    stretch = min(batches, STRETCH // batch_size)
    before = (batches - stretch) // 2
    times = []
    for count in (before, stretch, batches - stretch - before):
        times.append(supply.time)
        if count:
            produce_load(broker.address, [supply] * 8, 5, requests=count)
    first = before * shape.records
    last = first + (stretch - FETCH_SIZE // batch_size - 1) * shape.records
    filled = Filled(topic, topic_id, 1, shape, batch_size, batches)
    return _Log(filled, first, last, times[1], times[2])


def _warm(broker: Broker, log: _Log) -> None:
    step = FETCH_SIZE // log.filled.batch_size * log.filled.shape.records
    with broker.client() as client:
        for offset in range(log.first, log.last, step):
            client.ask(wire.fetch_request(log.filled.topic, 0, offset, FETCH_SIZE))


def _drop_from_memory(broker: Broker, *logs: _Log) -> None:
    """Drops both logs from the page cache. By now the middle of the large one is not in it any more, and
    what is read again lies in other pieces of memory than what was just written."""
    settle_disk()
    if isinstance(broker, ManagedBroker):
        for log in logs:
            evict(broker.segments(log.filled.topic))


def _random_numbers(first: int, last: int) -> Iterator[int]:
    numbers = random.Random(7)
    while True:
        yield numbers.randint(first, last)


class _Speed(NamedTuple):
    """How fast, and what a request cost the broker in microseconds of processor time."""

    speed: float
    cost: float


def _produce(broker: Broker, log: _Log, seconds: float) -> _Speed:
    supply = PlainRequests(log.filled.topic, log.filled.shape, DEFAULTS)
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


def _fetch_at_the_end(broker: Broker, log: _Log, seconds: float) -> _Speed:
    reach = STRETCH // 16 // log.filled.batch_size * log.filled.shape.records
    spare = (FETCH_SIZE // log.filled.batch_size + 1) * log.filled.shape.records
    with broker.client() as client:
        # Not `filled.end`: the large log has grown by what was produced in the rounds before.
        end = client.offset(log.filled.topic, 0)
    load = fetch_load(
        broker.address,
        log.filled,
        FETCH_SIZE,
        seconds,
        offsets=_random_numbers(max(0, end - reach), end - spare),
        broker_cpu=broker.cpu_seconds,
    )
    return _Speed(load.requests_per_second, load.broker_cost)


def _fetch_latency(fraction: float, broker: Broker, log: _Log, seconds: float) -> _Speed:
    """Milliseconds that a fetch at a random old offset takes, one after the other."""
    took: list[float] = []
    with broker.client() as client:
        cpu_before = broker.cpu_seconds()
        deadline = time.perf_counter() + seconds
        for offset in _random_numbers(log.first, log.last):
            began = time.perf_counter()
            if began >= deadline:
                break
            client.ask(wire.fetch_request(log.filled.topic, 0, offset, FETCH_SIZE))
            took.append(time.perf_counter() - began)
        cpu = broker.cpu_seconds() - cpu_before
    return _Speed(percentile(sorted(took), fraction) * 1e3, cpu / len(took) * 1e6)


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


def rounds_of(bench: Bench) -> int:
    return bench.rounds_wanted or (bench.rounds if bench.quick else ROUNDS)


class _Figure(NamedTuple):
    what: str
    unit: str
    measure: Callable[[Broker, _Log, float], _Speed]
    target: Target | None
    reads_old: bool
    higher_is_better: bool = True


FIGURES = (
    _Figure("produce, 8 × 5 in flight", "MB/s", _produce, TARGET, reads_old=False),
    _Figure("fetch of 64 KiB at the end", "requests/s", _fetch_at_the_end, TARGET, reads_old=False),
    _Figure("fetch of 64 KiB at random offsets", "requests/s", _fetch, TARGET, reads_old=True),
    _Figure(
        "fetch at a random offset, p50",
        "ms",
        partial(_fetch_latency, 0.5),
        LATENCY_TARGET,
        reads_old=True,
        higher_is_better=False,
    ),
    _Figure(
        "fetch at a random offset, p99",
        "ms",
        partial(_fetch_latency, 0.99),
        LATENCY_TARGET,
        reads_old=True,
        higher_is_better=False,
    ),
    _Figure("offsets by time", "requests/s", _find_by_time, TARGET, reads_old=True),
)


def _one_broker(
    bench: Bench, broker: Broker, backlog: Backlog, seconds: float
) -> list[tuple[list[float], str]]:
    """For each figure the ratios of the rounds, and a note on the speeds behind them."""
    records, shape = backlog
    small_records = STRETCH // len(record_batch(shape)) * shape.records
    small = _store(bench, broker, small_records, shape)
    began = time.perf_counter()
    large = _store(bench, broker, records, shape)
    bench.say(f"{backlog} on {broker.name} after {time.perf_counter() - began:.0f} s")
    settle_disk()
    results = []
    for figure in FIGURES:
        rounds: dict[str, list[_Speed]] = {"small": [], "large": []}
        if figure.reads_old:
            _drop_from_memory(broker, small, large)
        for number in range(rounds_of(bench)):
            logs = [("small", small), ("large", large)]
            for name, log in logs if number % 2 == 0 else reversed(logs):
                if figure.measure is _produce:
                    # What is produced makes a log larger, so the small one is new every time.
                    if name == "small":
                        log = _store(bench, broker, 100_000, shape)
                    settle_disk()
                else:
                    _warm(broker, log)
                rounds[name].append(figure.measure(broker, log, seconds))
                if log not in (small, large):
                    broker.forget(log.filled.topic, wait=False)
        ratios = [large.speed / small.speed for small, large in zip(*rounds.values(), strict=True)]
        stored = {"small": "little", "large": str(backlog)}
        notes = [
            f"{number_text(statistics.median(each.speed for each in speeds))} {figure.unit}"
            f" and {statistics.median(each.cost for each in speeds):.1f} µs of processor time"
            f" for a request with {stored[name]}"
            for name, speeds in rounds.items()
        ]
        low, high = confidence(ratios)
        notes.append(f"mean of the ratios between {low:.3f} and {high:.3f} (95 %)")
        results.append((ratios, f"{broker.name}: " + "; ".join(notes)))
    for topic in (small.filled.topic, large.filled.topic):
        broker.forget(topic)
    return results


def _run(bench: Bench) -> list[Measurement]:
    backlog = backlog_of(bench)
    seconds = bench.seconds(full=1.5, quick=0.5)
    values: list[dict[str, list[float]]] = [{} for _ in FIGURES]
    notes: list[list[str]] = [[] for _ in FIGURES]
    for broker in bench.pair("disk"):
        with broker.blamed():
            results = _one_broker(bench, broker, backlog, seconds)
        for index, (ratios, note) in enumerate(results):
            values[index][broker.name] = ratios
            notes[index].append(note)
    return [
        Measurement(
            "backlog",
            f"{backlog.records // 1_000_000} million",
            f"{figure.what}, against little",
            "×",
            figure.higher_is_better,
            values[index],
            figure.target,
            notes[index],
        )
        for index, figure in enumerate(FIGURES)
    ]


ROWS = (Row("backlog", "100 million records stored (5 million with --quick)", _run),)
