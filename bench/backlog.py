"""Speed with much stored, against the speed of the same broker on a log that holds little.

One topic gets millions of records of 100 B first. Then rounds alternate between it and a small topic:
producing at the end, fetching at random offsets, and finding offsets by time. The random offsets lie in
a stretch of 128 MB in the middle, read once beforehand: what is compared is finding the place, not the
disk. Each figure is the large log's speed divided by the small one's.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

from bench.harness.batch import Shape, record_batch
from bench.harness.bench import Bench, Row
from bench.harness.broker import ManagedBroker
from bench.harness.fetch_load import Filled, fetch_load
from bench.harness.process import settle_disk
from bench.harness.produce_load import DEFAULTS, PlainRequests, produce_load
from bench.harness.results import Measurement, Target

SHAPE = Shape(100, 100)
STRETCH = 128 << 20
FETCH_SIZE = 64 << 10
LOAD_STEPS = 50  # the records' timestamps move on with every step


def _load(bench: Bench, broker: ManagedBroker, records: int) -> Filled:
    """A topic with so many records, 8 connections × 5 in flight."""
    topic = bench.topic_name()
    with broker.client() as client:
        client.create_topic(topic, 1)
        topic_id = client.topic(topic).topic_id
    batches = records // SHAPE.records
    began = time.perf_counter()
    for step in range(LOAD_STEPS):
        count = batches * (step + 1) // LOAD_STEPS - batches * step // LOAD_STEPS
        if count:
            supply = PlainRequests(topic, SHAPE, DEFAULTS)
            produce_load(broker.address, [supply] * 8, 5, requests=count)
    took = time.perf_counter() - began
    if records > 2_000_000:
        bench.say(f"{records:,} records stored on {broker.name} in {took:.0f} s")
    return Filled(topic, topic_id, 1, SHAPE, len(record_batch(SHAPE)), batches)


class _Log:
    """One of the two topics, and the three things that are measured on it."""

    def __init__(self, broker: ManagedBroker, filled: Filled, seconds: float) -> None:
        self._broker = broker
        self._filled = filled
        self._seconds = seconds
        self._random = random.Random(7)
        stretch = min(filled.batches, STRETCH // filled.batch_size)
        middle = (filled.batches - stretch) // 2
        self._first = middle * SHAPE.records
        self._last = (middle + stretch) * SHAPE.records - 1 - FETCH_SIZE // SHAPE.size
        with broker.client() as client:
            self._times = (client_time(filled), int(time.time() * 1000))
            client.offset(filled.topic, 0)

    def warm(self) -> None:
        """Read the stretch once through."""
        step = (FETCH_SIZE // self._filled.batch_size) * SHAPE.records
        offsets = range(self._first, self._last, step)
        for _ in offsets:
            break
        fetch_load(
            self._broker.address,
            self._filled,
            FETCH_SIZE,
            float("inf") if False else 2.0,
            offsets=_cycle(offsets),
        )

    def _anywhere(self) -> Iterator[int]:
        while True:
            yield self._random.randint(self._first, self._last)


def client_time(filled: Filled) -> int:
    return 0


def _cycle(offsets: range) -> Iterator[int]:
    while True:
        yield from offsets


ROWS: tuple[Row, ...] = ()
_ = (Bench, Callable, settle_disk, Measurement, Target)
