"""The same promises on the logs alone, without a broker around them, where the file layer can be
looked at or the moment of a crash chosen."""

from __future__ import annotations

import errno
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from durability_kit.disk import batch_positions, cut, segments, stored_recovery_point
from storage_kit.logs import NOW, a_batch, stored_batches
from storage_kit.memory import verify_log

from ottla.logfiles.names import (
    LOG_START_CHECKPOINT,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
)
from ottla.storage.config import LogConfig
from ottla.storage.errors import LogOffline, OutOfResources
from ottla.storage.files import OS_FILES, READ_ONLY, Files
from ottla.storage.log.log import Log
from ottla.storage.logs import Logs

TOPIC_ID = b"0123456789abcdef"
SMALL = LogConfig(segment_index_bytes=24, index_interval_bytes=0)
PREALLOCATED = LogConfig(segment_bytes=1 << 20, preallocate=True)


class CountingFiles(Files):
    """Counts the bytes that are read of log files."""

    def __init__(self) -> None:
        self.read = 0

    def pread(self, fd: int, size: int, position: int) -> bytes:  # type: ignore[override]
        data = os.pread(fd, size, position)
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".log"):
            self.read += len(data)
        return data


def open_logs(data: Path, config: LogConfig = SMALL, files: Files = OS_FILES) -> Logs:
    logs = Logs([str(data)], lambda _: config, files=files, clock=lambda: NOW)
    logs.open()
    return logs


def crash(logs: Logs) -> None:
    """As a killed process leaves them: no flush, no marker, and the locks are free."""
    for log in logs.loaded():
        for segment in log.segments:
            segment.close()
    for folder in logs.folders:
        folder.unlock()


def write(log: Log, count: int, size: int = 10) -> None:
    for number in range(log.log_end_offset, log.log_end_offset + count):
        log.append(a_batch(b"%d" % number + bytes(size), timestamp=NOW + number), 0, NOW)


def flush(logs: Logs, log: Log) -> None:
    flushing = logs.flush_now(log, NOW)
    assert flushing is not None
    flushing.run()
    logs.finish(flushing)
    for job in logs.checkpoint(NOW):
        job.run()
        logs.finish(job)


def offsets_in(log: Log) -> list[int]:
    return [first for first, _, _ in stored_batches(log)]


def fill_with_zeros(path: Path, number: int) -> None:
    """From the batch with that number to the end of the file."""
    data = path.read_bytes()
    position = batch_positions(path)[number]
    path.write_bytes(data[:position] + bytes(len(data) - position))


def test_recovery_reads_the_tail_and_not_the_log(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=4 << 20)
    logs = open_logs(tmp_path, config)
    log = logs.create("orders", 0, TOPIC_ID)
    write(log, 200, size=100_000)
    flush(logs, log)
    write(log, 10, size=100_000)
    assert len(log.segments) > 3
    crash(logs)
    stored = sum(path.stat().st_size for path in segments(tmp_path / "orders-0"))
    assert stored > 20_000_000

    files = CountingFiles()
    recovered = open_logs(tmp_path, config, files).get("orders", 0)
    assert recovered.log_end_offset == 210
    tail = 10 * 100_100
    # The tail once, and what is between the last index entry before it and the recovery point; the
    # producers are read anew from the last snapshot on, at most a segment.
    assert tail < files.read < tail + config.segment_bytes + 500_000
    assert offsets_in(recovered) == list(range(210))


def test_after_a_clean_shutdown_next_to_nothing_is_read(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=4 << 20)
    logs = open_logs(tmp_path, config)
    write(logs.create("orders", 0, TOPIC_ID), 200, size=100_000)
    logs.close()
    files = CountingFiles()
    log = open_logs(tmp_path, config, files).get("orders", 0)
    assert log.log_end_offset == 200
    assert files.read < 500_000


def test_preallocated_segments_survive_a_crash(tmp_path: Path) -> None:
    logs = open_logs(tmp_path, PREALLOCATED)
    write(logs.create("orders", 0, TOPIC_ID), 30, size=100_000)
    assert len(segments(tmp_path / "orders-0")) == 3
    crash(logs)
    log = open_logs(tmp_path, PREALLOCATED).get("orders", 0)
    assert log.log_end_offset == 30
    assert offsets_in(log) == list(range(30))


def test_a_preallocated_segment_that_was_flushed_before_it_was_sealed(tmp_path: Path) -> None:
    logs = open_logs(tmp_path, PREALLOCATED)
    log = logs.create("orders", 0, TOPIC_ID)
    write(log, 10, size=100_000)
    flush(logs, log)
    write(log, 3, size=100_000)
    first, second = segments(tmp_path / "orders-0")
    assert stored_recovery_point(tmp_path, "orders") == int(second.stem) == 10
    size = log.segments[0].size
    crash(logs)
    assert first.stat().st_size > size
    log = open_logs(tmp_path, PREALLOCATED).get("orders", 0)
    assert first.stat().st_size == log.segments[0].size == size
    assert offsets_in(log) == list(range(13))
    found = log.offset_for_time(NOW + 9)
    assert found is not None
    assert found.offset == 9
    assert not list(verify_log(log))


@pytest.mark.parametrize("rolls", [True, False])
def test_padding_goes_though_the_topic_is_preallocated_no_more(tmp_path: Path, rolls: bool) -> None:
    logs = open_logs(tmp_path, PREALLOCATED)
    log = logs.create("orders", 0, TOPIC_ID)
    write(log, 10, size=100_000 if rolls else 10)
    flush(logs, log)
    log.reconfigure(LogConfig(segment_bytes=PREALLOCATED.segment_bytes))
    if rolls:
        write(log, 1, size=100_000)
        flush(logs, log)
    # Otherwise there is nothing left to flush when the broker stops.
    size = log.segments[0].size
    logs.close()
    assert segments(tmp_path / "orders-0")[0].stat().st_size == size


def test_records_that_became_zeros_end_an_unflushed_log(tmp_path: Path) -> None:
    logs = open_logs(tmp_path, PREALLOCATED)
    write(logs.create("orders", 0, TOPIC_ID), 30, size=100_000)
    crash(logs)
    first = segments(tmp_path / "orders-0")[0]
    fill_with_zeros(first, 7)
    log = open_logs(tmp_path, PREALLOCATED).get("orders", 0)
    # Not with a gap, and what follows on it.
    assert offsets_in(log) == list(range(7))
    assert segments(tmp_path / "orders-0") == [first]


@pytest.mark.parametrize("count", [8, 10, 12])
@pytest.mark.parametrize("indexed", [True, False])
def test_flushed_records_that_became_zeros_are_missed(
    tmp_path: Path, count: int, indexed: bool
) -> None:
    logs = open_logs(tmp_path, PREALLOCATED)
    log = logs.create("orders", 0, TOPIC_ID)
    write(log, count, size=100_000)
    flush(logs, log)
    write(log, 1, size=100_000)
    crash(logs)
    first = segments(tmp_path / "orders-0")[0]
    fill_with_zeros(first, 7)
    if not indexed:
        for path in (tmp_path / "orders-0").glob("*.*index"):
            path.unlink()
    before = first.read_bytes()
    logs = open_logs(tmp_path, PREALLOCATED)
    with pytest.raises(LogOffline):
        logs.get("orders", 0).read(7, 1000, count)
    assert first.read_bytes() == before


@pytest.mark.parametrize("size", [100_000, 10])
@pytest.mark.parametrize("torn", [bytes(12), struct.pack(">qi", NOW + 1_000_000, 9)])
def test_the_last_index_entry_of_a_segment_that_was_just_sealed_may_be_torn(
    tmp_path: Path, size: int, torn: bytes
) -> None:
    config = LogConfig(segment_bytes=1 << 20)
    logs = open_logs(tmp_path, config)
    log = logs.create("orders", 0, TOPIC_ID)
    write(log, 10, size)
    flush(logs, log)
    log.roll(NOW)
    write(log, 1)
    first, second = segments(tmp_path / "orders-0")
    assert stored_recovery_point(tmp_path, "orders") == int(second.stem) == 10
    crash(logs)
    # Written by a flush that did not come to its end.
    times = first.with_suffix(".timeindex")
    times.write_bytes((times.read_bytes() if times.exists() else b"") + torn)
    log = open_logs(tmp_path, config).get("orders", 0)
    assert log.segments[0].max_timestamp == NOW + 9
    assert not list(verify_log(log))


def test_a_log_with_a_gap_in_its_flushed_part_keeps_what_lies_behind_it(tmp_path: Path) -> None:
    config = LogConfig(segment_index_bytes=48, index_interval_bytes=0)
    logs = open_logs(tmp_path, config)
    log = logs.create("orders", 0, TOPIC_ID)
    write(log, 3)
    flush(logs, log)
    write(log, 9)
    crash(logs)
    before = segments(tmp_path / "orders-0")
    assert len(before) >= 3
    assert stored_recovery_point(tmp_path, "orders") == 3
    # All but the first batch, at a boundary: no torn batch tells of it.
    cut(before[0], batch_positions(before[0])[1])
    with pytest.raises(LogOffline):
        open_logs(tmp_path, config).get("orders", 0)
    assert segments(tmp_path / "orders-0") == before


@pytest.mark.parametrize("name", ["orders-00", "backup-01", "orders-2147483648"])
def test_a_folder_named_almost_like_a_log_is_none(tmp_path: Path, name: str) -> None:
    logs = open_logs(tmp_path)
    write(logs.create("orders", 0, TOPIC_ID), 3)
    logs.close()
    (tmp_path / name).mkdir()
    (tmp_path / name / "notes.txt").write_text("nothing of yours")
    logs = open_logs(tmp_path)
    assert logs.keys() == [("orders", 0)]


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch])
def test_what_is_in_the_way_of_a_new_log_costs_that_log_only(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    logs = open_logs(tmp_path)
    healthy = logs.create("healthy", 0, TOPIC_ID)
    write(healthy, 3)
    # Put there while the broker runs: a backup, say, that is being restored.
    make(tmp_path / "orders-0")
    with pytest.raises(LogOffline):
        logs.create("orders", 0, TOPIC_ID)
    write(healthy, 3)
    assert offsets_in(healthy) == list(range(6))
    # Once it is out of the way, the log is made.
    (tmp_path / "orders-0").rename(tmp_path / "elsewhere")
    write(logs.create("orders", 0, TOPIC_ID), 3)


class NoMetadata(Files):
    """Fails when a log's metadata is written, once."""

    def __init__(self, error: int) -> None:
        self.error = error

    def open(self, path: str, flags: int = READ_ONLY) -> int:
        if path.endswith(PARTITION_METADATA) and self.error:
            error, self.error = self.error, 0
            raise OSError(error, os.strerror(error))
        return super().open(path, flags)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE])
def test_a_log_that_could_not_be_made_can_be_later(tmp_path: Path, error: int) -> None:
    logs = open_logs(tmp_path, files=NoMetadata(error))
    with pytest.raises((LogOffline, OutOfResources)):
        logs.create("orders", 0, TOPIC_ID)
    log = logs.create("orders", 0, TOPIC_ID)
    write(log, 3)
    assert offsets_in(log) == [0, 1, 2]


def test_a_name_that_is_too_long_costs_that_log_only(tmp_path: Path) -> None:
    logs = open_logs(tmp_path)
    with pytest.raises(LogOffline):
        logs.create("t" * 249, 1_000_000, TOPIC_ID)
    write(logs.create("orders", 0, TOPIC_ID), 3)


def garbage(path: Path) -> None:
    path.write_bytes(random.Random(path.name).randbytes(100))


@pytest.mark.parametrize("damage", [garbage, Path.unlink, lambda path: cut(path, -1)])
@pytest.mark.parametrize("clean", [True, False])
def test_lost_checkpoints_cost_a_recovery_and_nothing_else(
    tmp_path: Path, damage: Callable[[Path], None], clean: bool
) -> None:
    logs = open_logs(tmp_path)
    log = logs.create("orders", 0, TOPIC_ID)
    write(log, 10)
    log.advance_high_watermark(10)
    log.advance_start(3)
    flush(logs, log)
    write(log, 2)
    if clean:
        logs.close()
    else:
        crash(logs)
    for name in (RECOVERY_POINT_CHECKPOINT, REPLICATION_CHECKPOINT, LOG_START_CHECKPOINT):
        damage(tmp_path / name)
    logs = open_logs(tmp_path)
    log = logs.get("orders", 0)
    # Where the log started is forgotten: records that were deleted but not yet removed come back.
    assert offsets_in(log) == list(range(12))
    write(log, 2)
    logs.close()
    assert offsets_in(open_logs(tmp_path).get("orders", 0)) == list(range(14))


def test_a_corrupt_checkpoint_costs_one_recovery(tmp_path: Path) -> None:
    logs = open_logs(tmp_path)
    write(logs.create("orders", 0, TOPIC_ID), 3)
    logs.close()
    (tmp_path / LOG_START_CHECKPOINT).write_bytes(b"no checkpoint")
    logs = open_logs(tmp_path)
    assert not logs.was_clean
    assert offsets_in(logs.get("orders", 0)) == [0, 1, 2]
    logs.close()
    logs = open_logs(tmp_path)
    assert logs.was_clean
    assert stored_recovery_point(tmp_path, "orders") == 3
