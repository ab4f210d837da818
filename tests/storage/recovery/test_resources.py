"""Out of descriptors, out of memory, a full disk: nothing is lost, nothing goes offline for it."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from storage_kit.faulty_files import Disk, FaultyFiles
from storage_kit.logs import NOW, a_batch, stored_batches
from storage_kit.memory import verify_log

from ottla.record.deletion import build_mark
from ottla.storage.config import LogConfig
from ottla.storage.errors import LogOffline, OutOfResources
from ottla.storage.files import Reserve
from ottla.storage.folders import CheckpointJob
from ottla.storage.log.log import COORDINATOR, Log
from ottla.storage.logs import RETRY_MS, Logs
from ottla.storage.segments.file import (
    FEWEST_OPEN_FILES,
    MOST_OPEN_FILES,
    open_files_budget,
)

ID = b"0123456789abcdef"
CONFIG = LogConfig(
    segment_bytes=600,
    index_interval_bytes=0,
    retention_bytes=1500,
    file_delete_delay_ms=0,
    flush_messages=4,
)


def test_the_budget_follows_the_limit_of_descriptors() -> None:
    assert open_files_budget(1024) == 512
    assert open_files_budget(10) == FEWEST_OPEN_FILES
    assert open_files_budget(1 << 30) == open_files_budget(resource.RLIM_INFINITY)
    assert open_files_budget(1 << 30) == MOST_OPEN_FILES
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert open_files_budget() == open_files_budget(soft)


def test_a_reserve_lends_what_it_holds() -> None:
    reserve = Reserve(4)
    held = _descriptors()
    attempts: list[int] = []

    def work() -> str:
        attempts.append(_descriptors())
        if len(attempts) == 1:
            raise OSError(errno.EMFILE, "none left")
        return "done"

    assert reserve.use(work) == "done"
    assert attempts == [held, held - 4]
    assert _descriptors() == held
    with reserve.lent():
        assert _descriptors() == held - 4
        with reserve.lent():
            assert _descriptors() == held - 4
        assert _descriptors() == held - 4
    assert _descriptors() == held
    with pytest.raises(OSError, match="broken"):
        reserve.use(lambda: _raise(OSError(errno.EIO, "broken")))
    reserve.give_back()
    assert _descriptors() == held - 4


def _descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def _raise(error: OSError) -> None:
    raise error


READS = ("open", "pread", "map", "stat", "list")


class Fault:
    """Fails one call, reads among them."""

    def __init__(self, number: int, error: int) -> None:
        self.number = number
        self.error = error
        self.calls = 0
        self.failed = ""

    def __call__(self, kind: str, path: str) -> int:
        self.calls += 1
        needs_room = self.error in (errno.ENOSPC, errno.EDQUOT)
        if self.calls != self.number or (needs_room and kind in READS):
            return 0
        self.failed = f"{kind} {path}"
        return self.error


def live(fault: Fault) -> tuple[Logs, FaultyFiles, int]:
    """Appends that roll, flushes, checkpoints, retention; how many batches were acknowledged."""
    disk = Disk()
    disk.make_durable_folder("/data")
    files = FaultyFiles(disk)
    clock = [NOW]
    logs = Logs(["/data"], lambda _: CONFIG, files=files, clock=lambda: clock[0])
    logs.open()
    log = logs.create("topic", 0, ID)
    files.fault = fault
    acknowledged = 0

    def work() -> None:
        clock[0] += RETRY_MS
        for job in logs.due(clock[0]):
            job.run()
            logs.finish(job)

    def retain() -> None:
        for job in logs.retention(clock[0]):
            if job is not None:
                job.run()
                logs.finish(job)

    for round_number in range(4):
        for number in range(3):
            try:
                log.append(a_batch(b"%d" % number * 100), 0, clock[0])
                acknowledged += 1
            except (OutOfResources, LogOffline):
                pass
        log.advance_high_watermark(log.log_end_offset)
        work()
        if round_number % 2:
            retain()
    for _ in range(4):
        work()
        retain()
    return logs, files, acknowledged


@pytest.mark.parametrize(
    "error",
    [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.ENOSPC, errno.EDQUOT],
    ids=lambda error: errno.errorcode[error],
)
def test_what_passes_takes_neither_a_log_nor_a_folder_offline(error: int) -> None:
    counting = Fault(0, 0)
    live(counting)
    assert counting.calls > 100
    kinds = set()
    for number in range(1, counting.calls + 1):
        fault = Fault(number, error)
        logs, files, acknowledged = live(fault)
        files.fault = None
        kind = fault.failed.partition(" ")[0]
        kinds.add(kind)
        (log,) = logs.loaded()
        synced = fault.failed.startswith("fsync ") and fault.failed.endswith((".log", "index"))
        if synced and error in (errno.ENOSPC, errno.EDQUOT):
            # What the disk had taken before may be gone: not to be tried again.
            assert log.offline is not None
            continue
        what = f"call {number}, {fault.failed}"
        assert logs.folders[0].offline is None, what
        assert log.offline is None, what
        assert log.log_end_offset == acknowledged, what
        assert log.recovery_point == acknowledged, what
        assert not log.retiring or all(each.done for each in log.retiring), what
        assert list(verify_log(log)) == [], what
        log.append(a_batch(b"later"), 0, NOW)
        assert [last for _, last, _ in stored_batches(log)][-1] == acknowledged
        logs.close(threads=1)
        assert "/data/.kafka_cleanshutdown".rpartition("/")[2] in files.names("/data"), what
    assert {"create", "pwrite", "fsync", "rename"} <= kinds


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOSPC])
def test_a_checkpoint_that_failed_is_stored_the_next_time(error: int) -> None:
    disk = Disk()
    disk.make_durable_folder("/data")
    files = FaultyFiles(disk)
    logs = Logs(["/data"], lambda _: CONFIG, files=files, clock=lambda: NOW)
    logs.open()
    log = logs.create("topic", 0, ID)
    log.append(a_batch(), 0, NOW)
    log.flush(NOW)
    (job,) = logs.checkpoint(NOW)
    files.fault = lambda _kind, path: error if "checkpoint" in path else 0
    job.run()
    files.fault = None
    assert isinstance(job, CheckpointJob)
    assert job.error is not None
    logs.finish(job)
    assert logs.folders[0].offline is None
    assert logs.synced_end(log) == 0
    for later in logs.due(NOW + 60_000):
        later.run()
        logs.finish(later)
    assert logs.synced_end(log) == 1


def test_a_roll_without_room_leaves_no_segment_behind() -> None:
    """Its file would be found in the middle of what the active one gets next."""
    disk = Disk()
    disk.make_durable_folder("/data")
    files = FaultyFiles(disk)
    logs = Logs(["/data"], lambda _: CONFIG, files=files, clock=lambda: NOW)
    logs.open()
    log = logs.create("topic", 0, ID)
    log.append(a_batch(b"x" * 300), 0, NOW)
    files.fault = lambda kind, _: errno.ENOSPC if kind == "pwrite" else 0
    with pytest.raises(OutOfResources):
        log.append(a_batch(b"y" * 400), 0, NOW)
    files.fault = lambda kind, path: errno.EMFILE if (kind, path) == ("fsync", log.folder) else 0
    with pytest.raises(OutOfResources):
        log.roll(NOW)
    files.fault = None
    assert [name for name in files.names(log.folder) if name.endswith(".log")] == [
        "00000000000000000000.log"
    ]
    assert log.append(a_batch(b"small"), 0, NOW).base_offset == 1
    logs.close(threads=1)
    again = Logs(["/data"], lambda _: CONFIG, files=files, clock=lambda: NOW)
    again.open()
    assert again.get("topic", 0).log_end_offset == 2


class NoRoom:
    """Fails what needs room on the disk: one call, or all of them."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.calls = 0

    def __call__(self, kind: str, _path: str) -> int:
        if kind not in ("create", "pwrite"):
            return 0
        self.calls += 1
        return errno.ENOSPC if self.number in (0, self.calls) else 0


def to_be_cut(flushed: bool) -> tuple[Logs, FaultyFiles, Log]:
    """A log of two epochs, and, if it was flushed, a deleted record with its mark in each of them."""
    disk = Disk()
    disk.make_durable_folder("/data")
    files = FaultyFiles(disk)
    logs = Logs(["/data"], lambda _: CONFIG, files=files, clock=lambda: NOW)
    logs.open()
    log = logs.create("topic", 0, ID)
    for epoch in (1, 2):
        for _ in range(5):
            log.append(a_batch(b"v" * 100), epoch, NOW)
        log.advance_high_watermark(log.log_end_offset)
        if flushed:
            mark = build_mark([(log.log_end_offset - 2, log.log_end_offset - 1)])
            log.append(bytearray(mark), epoch, NOW, COORDINATOR)
    if flushed:
        log.flush(NOW)
        for job in logs.checkpoint(NOW):
            job.run()
            logs.finish(job)
    return logs, files, log


def state_of(log: Log) -> object:
    hidden = None if log.deletions is None else list(log.deletions.invisible)
    ends = (log.log_start_offset, log.high_watermark, log.log_end_offset, log.recovery_point)
    return ends, hidden, [*log.epochs.entries()], [each for _, _, each in stored_batches(log)]


def test_a_log_is_cut_without_room_or_stays_as_it_is() -> None:
    """A leader whose disk is full follows another, and has to let go of what that one has not."""
    outcomes = []
    for number in range(1, 100):
        logs, files, log = to_be_cut(flushed=True)
        before = state_of(log)
        files.fault = fault = NoRoom(number)
        try:
            log.truncate_to(6, NOW)
            outcomes.append("cut")
        except OutOfResources:
            outcomes.append("as it was")
            assert state_of(log) == before
        files.fault = None
        assert log.offline is None
        log.truncate_to(6, NOW)
        log.append(a_batch(b"new"), 3, NOW)
        log.advance_high_watermark(7)
        log.flush(NOW)
        after = state_of(log)
        assert [*log.epochs.entries()] == [(1, 0), (3, 6)]
        assert log.deletions is not None
        assert list(log.deletions.invisible) == [(3, 4), (5, 6)]
        for folder in logs.folders:
            folder.unlock()
        again = Logs(["/data"], lambda _: CONFIG, files=files, clock=lambda: NOW)
        again.open()
        found = again.get("topic", 0)
        found.advance_high_watermark(7)
        found.flush(NOW)
        assert state_of(found) == after
        if fault.calls < number:
            break
    assert outcomes[0] == "as it was"
    assert outcomes[-3:] == ["cut"] * 3  # the epochs are written later


def test_what_no_flush_covered_is_cut_on_a_full_disk() -> None:
    _, files, log = to_be_cut(flushed=False)
    files.fault = NoRoom()
    log.truncate_to(7, NOW)
    assert (log.log_end_offset, log.offline) == (7, None)


def test_a_log_begins_anew_once_there_is_room() -> None:
    _, files, log = to_be_cut(flushed=True)
    before = state_of(log)
    files.fault = NoRoom()
    with pytest.raises(OutOfResources):
        log.truncate_fully_and_start_at(20, NOW)
    files.fault = None
    assert log.offline is None
    assert state_of(log) == before
    log.truncate_fully_and_start_at(20, NOW)
    assert (log.log_start_offset, log.log_end_offset, log.deletions) == (20, 20, None)


def test_who_keeps_the_logs_is_told_that_an_append_was_refused() -> None:
    """So that a replica on another disk can lead, if it was for want of room."""
    disk = Disk()
    disk.make_durable_folder("/data")
    files = FaultyFiles(disk)
    logs = Logs(["/data"], lambda _: CONFIG, files=files, clock=lambda: NOW)
    logs.open()
    told: list[tuple[Log, int | None]] = []
    logs.on_refused = lambda log, error: told.append((log, error.errno))
    log = logs.create("topic", 0, ID)
    for error in (errno.ENOSPC, errno.EMFILE):
        told.clear()
        files.fault = lambda kind, _, error=error: error if kind == "pwrite" else 0
        with pytest.raises(OutOfResources):
            log.append(a_batch(b"value"), 0, NOW)
        assert told == [(log, error)]
    files.fault = None
    assert log.append(a_batch(b"value"), 0, NOW).base_offset == 0


def test_more_logs_are_written_to_than_files_may_be_open(tmp_path: Path) -> None:
    """In a process of its own: it has few descriptors. No append fails, no flush, no checkpoint."""
    program = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from storage_kit.logs import NOW, a_batch
from ottla.record.deletion import build_mark
from ottla.storage.config import LogConfig
from ottla.storage.log.log import COORDINATOR, Log
from ottla.storage.logs import Logs
logs = Logs([{str(tmp_path)!r}], lambda _: LogConfig())
logs.open()
for partition in range(300):
    logs.create("topic", partition, b"0123456789abcdef")
# Connections and whatever else a broker has: no more than its half.
others = [open("/dev/null") for _ in range(25)]
for round in range(3):
    for partition in range(300):
        log = logs.get("topic", partition)
        assert log.append(a_batch(b"x" * 100), 0, NOW).base_offset == round
    if round == 1:
        taken = []
        try:
            while True:
                taken.append(open("/dev/null"))
        except OSError:
            pass
        jobs = logs.due(NOW + 10**6) + logs.checkpoint(NOW)
        assert jobs
        for job in jobs:
            job.run()
            assert job.error is None, job.error
            logs.finish(job)
        assert logs.get("topic", 7).append(a_batch(b"more"), 0, NOW).base_offset == 2
        logs.get("topic", 7).truncate_to(2, NOW)
        del taken
logs.close()
assert logs.folders[0].offline is None
again = Logs([{str(tmp_path)!r}], lambda _: LogConfig())
again.open()
assert again.was_clean
assert all(again.get("topic", partition).log_end_offset == 3 for partition in range(300))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_an_fsync_that_fails_while_a_file_is_closed_takes_that_log_offline(tmp_path: Path) -> None:
    """Not the log that needed the descriptor, and the next flush does not forget it."""

    class Failing(FaultyFiles):
        pass

    disk = Disk()
    disk.make_durable_folder("/data")
    files = Failing(disk)
    logs = Logs(["/data"], lambda _: LogConfig(), files=files, clock=lambda: NOW, max_open_files=4)
    logs.open()
    for partition in range(6):
        logs.create("topic", partition, ID)
    failed: list[str] = []

    def fault(kind: str, path: str) -> int:
        if kind == "fsync" and path.endswith(".log") and not failed:
            failed.append(path)
            return errno.EIO
        return 0

    files.fault = fault
    for partition in range(6):
        assert logs.get("topic", partition).append(a_batch(), 0, NOW).base_offset == 0
    assert failed == ["/data/topic-0/00000000000000000000.log"]
    work: Callable[[], list[object]] = lambda: [  # noqa: E731
        (job.run(), logs.finish(job)) for job in logs.due(NOW + 10**6)
    ]
    work()
    offline = [log.partition for log in logs.loaded() if log.offline is not None]
    assert offline == [0]


def test_a_log_that_could_not_be_made_is_made_later(tmp_path: Path) -> None:
    """Without a descriptor for its first file no folder is left, which the next attempt would not take
    for its own. In a process of its own, which has no descriptors left."""
    program = f"""
import resource
from ottla.record.deletion import build_mark
from ottla.storage.config import LogConfig
from ottla.storage.errors import OutOfResources
from ottla.storage.logs import Logs
logs = Logs([{str(tmp_path)!r}], lambda _: LogConfig())
logs.open()
before = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
try:
    logs.create("topic", 0, b"0123456789abcdef")
except OutOfResources as error:
    print(error)
resource.setrlimit(resource.RLIMIT_NOFILE, before)
print(logs.create("topic", 0, b"0123456789abcdef").topic_id)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    refusal, made = done.stdout.splitlines()
    assert "Too many open files" in refusal
    assert made == "b'0123456789abcdef'"
