"""A log moves to another data folder: whatever is cut off or lost on the way, one whole log is left."""

from __future__ import annotations

import errno
import random

import pytest
from storage_kit.faulty_files import Disk, FaultyFiles

from ottla.logfiles.names import DELETIONS_SNAPSHOT
from ottla.record.batch import Record, build_batch
from ottla.record.deletion import build_mark
from ottla.storage.compaction.rewrite import run_over
from ottla.storage.compaction.swap import Compaction, dirt_of
from ottla.storage.config import LogConfig
from ottla.storage.errors import LogOffline, OutOfResources
from ottla.storage.log.log import COORDINATOR, Log
from ottla.storage.logs import Logs
from ottla.storage.relocation import Relocation

FOLDERS = ["/a", "/b"]
TOPIC_ID = b"t" * 16


def opened(disk: Disk) -> Logs:
    logs = Logs(
        FOLDERS,
        lambda _: LogConfig(segment_bytes=1000),
        files=FaultyFiles(disk),
        clock=lambda: 1000,
        recovery_threads=1,
    )
    logs.open()
    return logs


def append(log: Log, count: int, epoch: int = 0) -> None:
    for _ in range(count):
        record = Record(0, 1000, b"k", b"%d in epoch %d" % (log.log_end_offset, epoch), ())
        log.append(bytearray(build_batch([record])), epoch, 1000)
    log.advance_high_watermark(log.log_end_offset)


def copy_all(relocation: Relocation) -> None:
    while True:
        relocation.agree(1000)
        if not relocation.lag:
            return
        piece = relocation.source.read(
            relocation.copy.log_end_offset, 1, relocation.source.log_end_offset
        )
        assert piece is not None
        relocation.copy.append_replicated(piece.read(), 1000)


def content(log: Log) -> bytes:
    found = b""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        piece = log.read(offset, 1, log.log_end_offset)
        assert piece is not None
        found += piece.read()
        offset += 1
    return found


def new_disk() -> Disk:
    disk = Disk()
    for folder in FOLDERS:
        disk.make_durable_folder(folder)
    return disk


def begun(logs: Logs, records: int = 50) -> Relocation:
    log = logs.create("t", 0, TOPIC_ID)
    append(log, records)
    target = next(each for each in logs.folders if each is not logs.folder_of("t", 0))
    return logs.begin_relocation(log, target)


def test_the_copy_takes_the_place_of_the_log() -> None:
    logs = opened(new_disk())
    relocation = begun(logs)
    wanted = content(relocation.source)
    copy_all(relocation)
    relocation.sync(1000)
    log = logs.end_relocation(relocation)
    assert content(log) == wanted
    assert logs.folder_of("t", 0) is relocation.target
    assert log.high_watermark == 50
    append(log, 5)
    assert log.log_end_offset == 55
    assert logs.get("t", 0) is log


def test_the_log_is_cut_off_and_grows_again_meanwhile() -> None:
    logs = opened(new_disk())
    relocation = begun(logs)
    source = relocation.source
    copy_all(relocation)
    source.truncate_to(20, 1000)
    append(source, 40, epoch=3)
    copy_all(relocation)
    source.truncate_to(30, 1000)
    append(source, 3, epoch=5)
    source.advance_start(10)
    copy_all(relocation)
    assert (relocation.copy.log_start_offset, relocation.copy.log_end_offset) == (10, 33)
    assert content(relocation.copy) == content(source)


def test_a_pass_of_compaction_ends_when_its_log_is_copied() -> None:
    logs = opened(new_disk())
    log = logs.create("t", 0, TOPIC_ID)
    append(log, 50)
    log.flush(1000)
    compaction = Compaction(log, dirt_of(log, log.recovery_point, 1000), 1000, 1 << 20, 1e308)
    outcome = run_over(compaction.job, log.files)
    assert outcome.replacements
    target = next(each for each in logs.folders if each is not logs.folder_of("t", 0))
    relocation = logs.begin_relocation(log, target)
    assert logs.relocating == {log}
    assert [compaction.swap(each) for each in outcome.replacements] == [None] * len(
        outcome.replacements
    )
    logs.give_up_relocation(relocation)
    assert logs.relocating == set()
    relocation = logs.begin_relocation(log, target)
    copy_all(relocation)
    relocation.sync(1000)
    logs.end_relocation(relocation)
    assert logs.relocating == set()


def test_a_copy_that_was_given_up_is_gone() -> None:
    disk = new_disk()
    logs = opened(disk)
    relocation = begun(logs)
    copy_all(relocation)
    logs.give_up_relocation(relocation)
    for job in logs.due(2000):
        job.run()
        logs.finish(job)
    assert not [name for name in FaultyFiles(disk).folders("/b") if name.endswith("-future")]
    assert len(content(logs.get("t", 0))) > 0


def test_a_copy_for_whose_note_there_is_no_room_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = new_disk()
    logs = opened(disk)
    relocation = begun(logs)
    wanted = content(relocation.source)
    copy_all(relocation)
    relocation.sync(1000)

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(logs.files, "replace_file", no_room)
    with pytest.raises(OutOfResources):
        logs.end_relocation(relocation)
    monkeypatch.undo()
    for job in logs.due(2000):
        job.run()
        logs.finish(job)
    assert not [name for name in FaultyFiles(disk).folders("/b") if name.endswith("-future")]
    log = logs.get("t", 0)
    assert content(log) == wanted
    append(log, 5)
    assert log.log_end_offset == 55


def test_a_disk_that_fails_in_between_takes_neither_the_log_nor_others_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = new_disk()
    logs = opened(disk)
    relocation = begun(logs)
    wanted = content(relocation.source)
    copy_all(relocation)
    relocation.sync(1000)
    rename = logs.files.rename

    def fails_in_the_target(source: str, target: str) -> None:
        if source == relocation.path:
            raise OSError(errno.EIO, "broken")
        rename(source, target)

    monkeypatch.setattr(logs.files, "rename", fails_in_the_target)
    with pytest.raises(LogOffline):
        logs.end_relocation(relocation)
    assert [each.offline is None for each in logs.folders] == [True, False]
    assert relocation.source.offline is not None

    class WithoutTarget(FaultyFiles):
        def make_folders(self, path: str) -> None:
            if path == "/b":
                raise OSError(errno.EIO, "broken")
            super().make_folders(path)

    # As long as the disk with the copy is away, what was copied stays where it is.
    again = Logs(FOLDERS, lambda _: LogConfig(), files=WithoutTarget(disk), clock=lambda: 1000)
    again.open()
    assert again.keys() == []
    for job in again.due(2000):
        job.run()
    (left,) = FaultyFiles(disk).folders("/a")
    assert left.endswith("-delete")
    assert content(opened(disk).get("t", 0)) == wanted


def test_deleted_records_stay_deleted_and_a_snapshot_without_room_ends_the_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logs = opened(new_disk())
    relocation = begun(logs)
    source = relocation.source
    source.append(bytearray(build_mark([(3, 5)])), 0, 1000, COORDINATOR)
    source.advance_high_watermark(source.log_end_offset)
    copy_all(relocation)
    replace_file = logs.files.replace_file

    def no_room_for_marks(path: str, *parts: bytes) -> None:
        if path.endswith(DELETIONS_SNAPSHOT):
            raise OSError(errno.ENOSPC, "no room")
        replace_file(path, *parts)

    with monkeypatch.context() as full:
        full.setattr(logs.files, "replace_file", no_room_for_marks)
        with pytest.raises(OutOfResources, match="no room"):
            relocation.sync(1000)
    relocation.sync(1000)
    log = logs.end_relocation(relocation)
    assert log.deletions is not None
    assert log.deletions.invisible.between(0, 100) == [(3, 5), (50, 51)]


def test_a_log_that_was_deleted_meanwhile_takes_nobodys_place() -> None:
    """Nor that of another which has its name since."""
    disk = new_disk()
    logs = opened(disk)
    relocation = begun(logs)
    copy_all(relocation)
    relocation.sync(1000)
    logs.delete("t", 0)
    other = logs.create("t", 0, b"u" * 16)
    append(other, 3, epoch=1)
    wanted = content(other)
    with pytest.raises(LogOffline, match="the topic was deleted"):
        logs.end_relocation(relocation)
    for job in logs.due(2000):
        job.run()
        logs.finish(job)
    assert logs.get("t", 0) is other
    append(other, 1, epoch=1)
    assert content(other).startswith(wanted)
    assert not [name for name in FaultyFiles(disk).folders("/b") if name.endswith("-future")]


@pytest.mark.parametrize("before", [0, 20])
def test_the_copy_is_no_cleaner_than_the_log_was_at_first(before: int) -> None:
    """Of what was copied before a pass over the log, older records of a key are still there."""
    logs = opened(new_disk())
    source = logs.create("t", 0, TOPIC_ID)
    append(source, 50)
    source.compaction_ended(before)
    relocation = logs.begin_relocation(source, logs.folders[1])
    copy_all(relocation)
    source.compaction_ended(40)
    relocation.sync(1000)
    assert logs.end_relocation(relocation).first_dirty_offset == before


class Stopped(Exception):
    pass


class Stopping(FaultyFiles):
    """Ends the process before one of its renames, unlinks or syncs of folders."""

    left = -1

    def _count(self) -> None:
        if self.left == 0:
            raise Stopped
        self.left -= 1

    def rename(self, source: str, target: str) -> None:
        self._count()
        super().rename(source, target)

    def fsync_folder(self, path: str) -> None:
        self._count()
        super().fsync_folder(path)

    def unlink(self, path: str) -> None:
        self._count()
        super().unlink(path)


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_crash_at_any_point_leaves_one_whole_log(power: bool, seed: int) -> None:
    stops = 0
    while True:
        disk = new_disk()
        files = Stopping(disk)
        logs = Logs(
            FOLDERS,
            lambda _: LogConfig(segment_bytes=1000),
            files=files,
            clock=lambda: 1000,
            recovery_threads=1,
        )
        logs.open()
        relocation = begun(logs)
        copy_all(relocation)
        relocation.source.advance_start(7)  # in the middle of a segment
        relocation.source.flush(1000)
        for job in logs.checkpoint(1000):
            job.run()
            logs.finish(job)
        for folder in FOLDERS:
            files.fsync_folder(folder)
        wanted = content(relocation.source)
        copy_all(relocation)
        relocation.sync(1000)
        files.left = stops
        try:
            logs.end_relocation(relocation)
            ended = True
        except Stopped:
            ended = False
        if power:
            disk.lose_power(random.Random(seed))
        again = opened(disk)
        assert again.get("t", 0).log_start_offset == 7, stops
        assert content(again.get("t", 0)) == wanted, stops
        assert again.keys() == [("t", 0)]
        if ended:
            break
        stops += 1
    assert stops > 5


def test_a_log_that_was_set_aside_comes_back_without_the_offsets_of_another() -> None:
    """Of one that had its name meanwhile, and was deleted."""
    disk = new_disk()
    logs = opened(disk)
    first = logs.create("t", 0, TOPIC_ID)
    append(first, 13)
    first.flush(1000)
    wanted = content(first)
    folder = logs.folder_of("t", 0)
    name = logs.set_aside("t", 0).rpartition("/")[2]
    logs.preferred["t", 0] = folder
    second = logs.create("t", 0, TOPIC_ID)
    append(second, 55)
    second.flush(1000)
    for job in logs.checkpoint(1000):
        job.run()
        logs.finish(job)
    logs.delete("t", 0)
    logs.take_back(folder, name, "t", 0)
    assert content(logs.get("t", 0)) == wanted
