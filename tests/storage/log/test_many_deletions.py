"""Very many deletions: bytes in the log, in the snapshot and in memory for each of them.

A hundred thousand stand for ten million: a bound for each deletion, not a time. (The row
`many deletions` of the benchmarks has ten million on a broker.)
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from storage_kit.logs import NOW, LogMaker, a_batch

from ottla.logfiles.names import DELETIONS_SNAPSHOT
from ottla.record.deletion import build_mark
from ottla.storage.compaction.erasing import erasable_now, must_roll
from ottla.storage.log.log import COORDINATOR, Log

T = TypeVar("T")

RECORDS_IN_A_BATCH = 1000
BATCHES = 2000
EVERY = 20
DELETED = RECORDS_IN_A_BATCH * BATCHES // EVERY
RANGES_IN_A_MARK = 512
# Two sets of 8 bytes for each range; arrays grow in steps.
BYTES_FOR_EACH = 18
MEGABYTE = 1 << 20


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = LogMaker(str(tmp_path)).create()
    batch = bytes(a_batch(b"v", count=RECORDS_IN_A_BATCH))
    for _ in range(BATCHES):
        log.append(bytearray(batch), 0, NOW)
    log.advance_high_watermark(log.log_end_offset)
    return log


@pytest.fixture
def traced() -> Iterator[Callable[[Callable[[], T]], tuple[T, int, int]]]:
    """Calls something; what it returned, the bytes that it left in memory, and most of them at once."""

    def call(work: Callable[[], T]) -> tuple[T, int, int]:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        result = work()
        after, peak = tracemalloc.get_traced_memory()
        return result, after - before, peak - before

    tracemalloc.start()
    yield call
    tracemalloc.stop()


Traced = Callable[[Callable[[], object]], tuple[object, int, int]]


def append(log: Log, marks: Iterable[bytes]) -> None:
    for mark in marks:
        log.append(bytearray(mark), 0, NOW, COORDINATOR)
        log.advance_high_watermark(log.log_end_offset)


@pytest.fixture(scope="module")
def scattered() -> list[bytes]:
    """Marks of many single records."""
    offsets = range(0, RECORDS_IN_A_BATCH * BATCHES, EVERY)
    return [
        build_mark([(each, each + 1) for each in offsets[first : first + RANGES_IN_A_MARK]])
        for first in range(0, len(offsets), RANGES_IN_A_MARK)
    ]


def test_scattered_ones(log: Log, scattered: list[bytes], traced: Traced) -> None:
    size = log.size
    _, kept, most = traced(lambda: append(log, scattered))
    assert log.deletions is not None
    assert log.deletions.unerased.count == DELETED
    assert log.size - size < 4 * DELETED
    assert kept < BYTES_FOR_EACH * DELETED
    assert most < BYTES_FOR_EACH * DELETED + MEGABYTE
    # Neither a flush nor a look for what may be erased makes an object, or a copy, of each.
    _, _, most = traced(lambda: log.flush(NOW))
    assert most < MEGABYTE
    snapshot = Path(log.folder) / DELETIONS_SNAPSHOT
    assert snapshot.stat().st_size < BYTES_FOR_EACH * DELETED
    log.roll(NOW)
    log.flush(NOW)
    (erasable, is_all), _, most = traced(lambda: erasable_now(log, log.recovery_point))  # type: ignore[misc]
    assert (erasable.count, is_all) == (DELETED, True)
    assert most < MEGABYTE
    _, kept, most = traced(lambda: log.deletions and log.deletions.erased(erasable, 0))
    assert most < MEGABYTE
    assert log.deletions.unerased.count == 0
    assert not must_roll(log)


def test_a_range(log: Log, traced: Traced) -> None:
    """Costs the same, whatever its length."""
    size = log.size
    mark = build_mark([(0, RECORDS_IN_A_BATCH * BATCHES)])
    _, kept, _ = traced(lambda: append(log, [mark]))
    assert log.deletions is not None
    assert log.deletions.unerased.count == RECORDS_IN_A_BATCH * BATCHES
    assert log.size - size < 120
    assert kept < 10_000
