"""Which segments go, and how."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from storage_kit.logs import NOW, LogMaker, a_batch, close_cleanly, stored_batches
from storage_kit.memory import verify_log

from ottla.storage.config import LogConfig
from ottla.storage.log.log import Log
from ottla.storage.log.retention import SegmentFacts, count_to_delete

NEVER = LogConfig(retention_ms=-1, retention_bytes=-1)
FOUR = [SegmentFacts(100, 10 * (slot + 1), NOW + slot * 1000) for slot in range(4)]


def count(
    config: LogConfig,
    *,
    start: int = 0,
    high_watermark: int = 40,
    now: int = NOW,
    facts: list[SegmentFacts] = FOUR,
) -> int:
    return count_to_delete(facts, config, start, high_watermark, now)


def test_nothing_goes_without_a_reason() -> None:
    assert count(NEVER, now=NOW + 10**12) == 0


def test_by_age_of_the_youngest_record() -> None:
    week = replace(NEVER, retention_ms=500)
    assert count(week, now=NOW + 500) == 0
    assert count(week, now=NOW + 501) == 1
    assert count(week, now=NOW + 2501) == 3
    assert count(week, now=NOW + 9999) == 4
    assert count(replace(NEVER, retention_ms=0), now=NOW + 1) == 1


def test_an_old_segment_behind_a_young_one_stays() -> None:
    facts = [FOUR[0]._replace(newest_ms=NOW + 10**6), *FOUR[1:]]
    assert count(replace(NEVER, retention_ms=500), now=NOW + 9999, facts=facts) == 0


def test_by_size_only_what_is_too_much_in_full() -> None:
    for limit, expected in ((400, 0), (399, 0), (301, 0), (300, 1), (299, 1), (100, 3), (0, 4)):
        assert count(replace(NEVER, retention_bytes=limit)) == expected


def test_below_the_log_start() -> None:
    for start, expected in ((9, 0), (10, 1), (39, 3), (40, 4)):
        assert count(NEVER, start=start) == expected


def test_never_above_the_high_watermark() -> None:
    everything = replace(NEVER, retention_bytes=0, retention_ms=0)
    for high_watermark, expected in ((0, 0), (9, 0), (10, 1), (25, 2), (40, 4)):
        assert count(everything, high_watermark=high_watermark, now=NOW + 10**9) == expected


def test_compacted_topics_lose_only_what_is_below_the_start() -> None:
    compact = LogConfig(cleanup_policy=("compact",), retention_ms=0, retention_bytes=0)
    assert count(compact, now=NOW + 10**9) == 0
    assert count(compact, now=NOW + 10**9, start=20) == 2
    assert count(replace(compact, cleanup_policy=("compact", "delete")), now=NOW + 10**9) == 4


def test_an_empty_active_segment_is_kept() -> None:
    facts = [*FOUR[:3], SegmentFacts(0, 30, -1)]
    assert count(replace(NEVER, retention_bytes=0), facts=facts) == 3


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5), st.integers(0, 1000)), max_size=8),
    st.integers(-1, 300),
    st.integers(-1, 1000),
    st.integers(0, 40),
    st.integers(0, 40),
)
def test_what_stays_is_never_less_than_asked_for(
    sizes: list[tuple[int, int, int]], by_bytes: int, by_ms: int, start: int, high_watermark: int
) -> None:
    facts, end = [], 0
    for size, records, newest in sizes:
        end += records
        facts.append(SegmentFacts(size, end, NOW + newest))
    gone = count(
        replace(NEVER, retention_bytes=by_bytes, retention_ms=by_ms),
        start=start,
        high_watermark=high_watermark,
        now=NOW + 1000,
        facts=facts,
    )
    left = sum(fact.size for fact in facts[gone:])
    for position, fact in enumerate(facts[:gone]):
        assert fact.end_offset <= high_watermark
        without = sum(other.size for other in facts[position + 1 :])
        assert (
            fact.end_offset <= start
            or (by_ms >= 0 and NOW + 1000 - fact.newest_ms > by_ms)
            or (by_bytes >= 0 and without >= by_bytes)
        )
    assert left >= 0


@pytest.fixture
def maker(tmp_path: Path) -> LogMaker:
    return LogMaker(str(tmp_path), LogConfig(segment_bytes=1000, retention_ms=-1))


def filled(maker: LogMaker) -> Log:
    log = maker.create()
    for number in range(12):
        log.append(a_batch(b"x" * 300, timestamp=NOW + number), number, NOW)
    log.advance_high_watermark(12)
    log.flush(NOW)
    return log


def test_segments_leave_the_log_at_once_and_the_disk_later(maker: LogMaker) -> None:
    log = filled(maker)
    kept = list(stored_batches(log))[4:]
    reader = log.read(0, 1000, 12)
    assert reader is not None
    content = reader.read()
    log.reconfigure(replace(maker.config, retention_bytes=log.size - 2 * log.segments[0].size))
    retired = log.delete_old_segments(NOW)
    assert retired is not None
    assert log.log_start_offset == 4
    assert list(stored_batches(log)) == kept
    assert log.epochs.epoch_for_offset(3) == -1
    retired.rename()
    names = os.listdir(log.folder)
    assert sorted(name for name in names if name.startswith(f"{0:020d}")) == [
        f"{0:020d}.index.deleted",
        f"{0:020d}.log.deleted",
        f"{0:020d}.timeindex.deleted",
    ]
    assert f"{2:020d}.snapshot.deleted" in names
    retired.remove()
    assert not any(name.endswith(".deleted") for name in os.listdir(log.folder))
    assert reader.read() == content  # who holds the file goes on
    assert log.delete_old_segments(NOW) is None
    assert list(verify_log(log)) == []


def test_when_all_goes_the_end_is_kept(maker: LogMaker) -> None:
    log = filled(maker)
    log.reconfigure(replace(maker.config, retention_ms=1000))
    for now in (NOW + 1010, NOW + 10**6):
        retired = log.delete_old_segments(now)
        assert retired is not None
        retired.rename()
        retired.remove()
    assert (log.log_start_offset, log.log_end_offset, log.size) == (12, 12, 0)
    assert log.delete_old_segments(NOW + 10**9) is None
    # Without any checkpoint: by the name of the empty segment alone.
    again = maker.load()
    assert (again.log_start_offset, again.log_end_offset) == (12, 12)
    assert log.append(a_batch(), 99, NOW).base_offset == 12


def test_deleted_records_take_their_segments_with_them(maker: LogMaker) -> None:
    log = filled(maker)
    log.advance_start(5)
    retired = log.delete_old_segments(NOW)
    assert retired is not None
    assert log.log_start_offset == 5
    assert log.segments[0].base_offset == 4


def test_segments_without_times_go_by_the_files(maker: LogMaker) -> None:
    log = maker.create()
    for _ in range(6):
        log.append(a_batch(b"x" * 300, timestamp=-1), 0, NOW)
    log.advance_high_watermark(6)
    log.reconfigure(replace(maker.config, retention_ms=10_000))
    written = os.path.getmtime(log.segments[0].path) * 1000
    assert log.delete_old_segments(int(written) + 9_000) is None
    os.utime(log.segments[0].path, (written / 1000 - 100, written / 1000 - 100))
    assert log.delete_old_segments(int(written) + 9_000) is not None
    assert log.log_start_offset == 2


def test_what_a_flush_holds_stays_until_it_is_done(maker: LogMaker) -> None:
    log = maker.create()
    for _ in range(6):
        log.append(a_batch(b"x" * 300), 0, NOW)
    log.advance_high_watermark(6)
    job = log.flush_begin(NOW)
    assert job is not None
    log.reconfigure(replace(maker.config, retention_bytes=0))
    assert log.delete_old_segments(NOW) is None
    job.run()
    log.flush_end(job)
    assert log.delete_old_segments(NOW) is not None
    close_cleanly(log)


def test_files_of_a_new_log_are_not_taken_for_retired_ones(maker: LogMaker) -> None:
    """A job that comes late must not rename what has got the old names since."""
    log = filled(maker)
    log.reconfigure(replace(maker.config, retention_bytes=0))
    retired = log.delete_old_segments(NOW)
    assert retired is not None
    log.close()  # the topic is deleted, and made again
    os.rename(log.folder, log.folder + ".gone")
    again = maker.create()
    again.append(a_batch(), 0, NOW)
    retired.rename()
    retired.remove()
    assert os.path.exists(again.active.path)


def test_a_log_that_starts_anew_settles_what_was_retired(maker: LogMaker) -> None:
    log = filled(maker)
    log.reconfigure(replace(maker.config, retention_bytes=0))
    retired = log.delete_old_segments(NOW)
    assert retired is not None
    log.truncate_fully_and_start_at(0, NOW)
    log.append(a_batch(), 0, NOW)
    retired.rename()
    retired.remove()
    assert os.path.getsize(log.active.path) == log.size > 0
