"""Does a topic from which single records were deleted read as fast as one from which none was?

Two topics of the same broker hold the same records. In one of them one record in a million (with
--quick: in 50,000) is deleted, so that nearly all batches are sent from the page cache as they are, and
a few as copies. Both are read from start to end, 1 MiB at a time, in 20 rounds (3 with --quick) that
begin with the one and with the other in turn. The figure is the speed of the one divided by that of the
other, with the interval in which the mean lies with a confidence of 95 %. A second row deletes every
tenth record: what it costs where every batch is a copy. Ottla alone: no Kafka deletes single records.
"""

from __future__ import annotations

import statistics
import time

from bench.harness import wire
from bench.harness.batch import HEADER_SIZE, LAST_OFFSET_DELTA_AT, Shape
from bench.harness.bench import Bench, Row
from bench.harness.broker import Broker, OttlaBroker
from bench.harness.client import open_socket, receive_exactly
from bench.harness.errors import BenchError
from bench.harness.load.fetch import SPARE, Filled
from bench.harness.load.produce import DEFAULTS
from bench.harness.results import Measurement, Target, confidence
from bench.logs.backlog import rounds_of
from ottla import Admin
from ottla.client.positions import TopicPartition

SHAPE = Shape(100, 100)
FETCH_SIZE = 1 << 20
TARGET = Target(0.95, 1.0, "figure")
_OVERHEAD = 12  # base offset and length of a batch, which the length does not count


def read_through(broker: Broker, filled: Filled, end: int) -> float:
    """MB/s of a reader that goes through partition 0, to the offset `end`."""
    buffer = memoryview(bytearray(FETCH_SIZE + SPARE))
    offset = received = 0
    connection = open_socket(broker.address)
    try:
        began = time.perf_counter()
        while offset < end:
            connection.sendall(wire.fetch_request(filled.topic, 0, offset, FETCH_SIZE))
            receive_exactly(connection, buffer[:4])
            body = buffer[: int.from_bytes(buffer[:4], "big")]
            receive_exactly(connection, body)
            received += len(body)
            answer = wire.fetch_answer(body)
            following = _end(body[answer.start : answer.end], offset)
            if answer.error or following <= offset:
                raise BenchError(f"fetch at {offset} of {end}: error {answer.error}, no progress")
            offset = following
        took = time.perf_counter() - began
    finally:
        connection.close()
    return received / took / 1e6


def _end(records: memoryview, offset: int) -> int:
    """The offset after the last whole batch."""
    at = 0
    while len(records) - at >= HEADER_SIZE:
        size = int.from_bytes(records[at + 8 : at + _OVERHEAD], "big") + _OVERHEAD
        if at + size > len(records):
            break
        delta = records[at + LAST_OFFSET_DELTA_AT : at + LAST_OFFSET_DELTA_AT + 4]
        offset = int.from_bytes(records[at : at + 8], "big") + int.from_bytes(delta, "big") + 1
        at += size
    return offset


def _measure(bench: Bench, broker: Broker, size: int, every: int) -> tuple[list[float], str]:
    whole = bench.filled_topic(broker, SHAPE, DEFAULTS, size)
    thinned = bench.filled_topic(broker, SHAPE, DEFAULTS, size)
    place = TopicPartition(thinned.topic, 0)
    host, port = broker.address
    with Admin(f"{host}:{port}") as admin:
        began = time.perf_counter()
        deleted = admin.delete_records_at({place: range(every // 2, thinned.end, every)})[place]
        took = time.perf_counter() - began
    speeds: dict[str, list[float]] = {"whole": [], "thinned": []}
    both = [("whole", whole), ("thinned", thinned)]
    for number in range(rounds_of(bench) + 1):
        for name, filled in both if number % 2 else reversed(both):
            speed = read_through(broker, filled, filled.end)
            if number:  # the first warms up
                speeds[name].append(speed)
    for filled in (whole, thinned):
        broker.forget(filled.topic)
    ratios = [b / a for a, b in zip(speeds["whole"], speeds["thinned"], strict=True)]
    low, high = confidence(ratios)
    note = (
        f"mean {statistics.fmean(ratios):.3f} ({low:.3f}–{high:.3f} with 95 %), "
        f"{statistics.median(speeds['whole']):,.0f} MB/s with none deleted, "
        f"{statistics.median(speeds['thinned']):,.0f} MB/s with {deleted:,} of {thinned.end:,} records "
        f"deleted, which took {took:.2f} s"
    )
    return ratios, note


def _run(bench: Bench) -> list[Measurement]:
    broker = bench.pair("tmpfs")[0]
    assert isinstance(broker, OttlaBroker)
    size = (50 << 20) if bench.quick else (1 << 30)
    rows = ((50_000 if bench.quick else 1_000_000, TARGET), (10, None))
    found = []
    for every, target in rows:
        with broker.blamed():
            ratios, note = _measure(bench, broker, size if every > 10 else size // 10, every)
        found.append(
            Measurement(
                "deletions",
                f"one in {every:,}",
                "reading, against none deleted",
                "×",
                True,
                {broker.name: ratios},
                target,
                [note],
            )
        )
    return found


ROWS = (Row("deletions", "reading is as fast where one record in a million is deleted", _run),)
