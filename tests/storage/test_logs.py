"""All logs of a broker: folders, checkpoints, lazy loading, background work."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from storage_kit.logs import NOW, a_batch, stored_batches

from ottla.storage.checkpoints import read_offsets
from ottla.storage.config import LogConfig
from ottla.storage.errors import (
    DuplicateLog,
    FolderLocked,
    FolderOffline,
    LogOffline,
    OutOfResources,
    TopicIdMismatch,
    UnknownLog,
)
from ottla.storage.files import READ_ONLY, Files
from ottla.storage.folders import CheckpointJob, deleted_folder_name, key_of_folder
from ottla.storage.log.flush import FlushJob
from ottla.storage.log.retention import Retired
from ottla.storage.logs import Logs
from ottla.storage.removal import RemovalJob, RetireJob

ID = bytes(range(16))
OTHER_ID = bytes(range(1, 17))


class Clock:
    now = NOW

    def __call__(self) -> int:
        return self.now


class Maker:
    """Opens brokers' logs one after the other on the same folders."""

    def __init__(self, *folders: Path) -> None:
        self.folders = [str(folder) for folder in folders]
        self.config = LogConfig(file_delete_delay_ms=1000)
        self.clock = Clock()
        self.opened: list[Logs] = []

    def open(self, files: Files | None = None, **options: int) -> Logs:
        logs = Logs(
            self.folders, lambda _: self.config, files=files or Files(), clock=self.clock, **options
        )
        logs.open()
        self.opened.append(logs)
        return logs

    def killed(self, logs: Logs) -> None:
        """As if the process had ended: the system gives the locks back."""
        for folder in logs.folders:
            folder.unlock()


@pytest.fixture
def maker(tmp_path: Path) -> Iterator[Maker]:
    maker = Maker(tmp_path / "a")
    yield maker
    for logs in maker.opened:
        maker.killed(logs)


def work(logs: Logs, now: int) -> list[object]:
    """What a server does with what is due."""
    jobs = logs.due(now)
    for job in jobs:
        job.run()
        logs.finish(job)
    return list(jobs)


def append(logs: Logs, topic: str, partition: int, *values: bytes) -> None:
    log = logs.get(topic, partition)
    for value in values:
        log.append(a_batch(value), 0, NOW)
    log.advance_high_watermark(log.log_end_offset)


def values(logs: Logs, topic: str, partition: int) -> list[bytes]:
    # The last bytes of a record without headers: value, number of headers.
    return [data[-2:-1] for _, _, data in stored_batches(logs.get(topic, partition))]


def test_folder_names() -> None:
    assert key_of_folder("topic-0") == ("topic", 0)
    assert key_of_folder("a-b.c_d-12") == ("a-b.c_d", 12)
    assert key_of_folder("topic-2147483647") == ("topic", 2147483647)
    for name in (
        "topic",
        "topic-",
        "-1",
        "topic-x",
        "topic-1.0123-delete",
        "__cluster_metadata-0",
        "tøpic-1",
        "topic-00",
        "topic-01",
        "topic-2147483648",
        "topic-99999999999",
    ):
        assert key_of_folder(name) is None
    deleted = deleted_folder_name("x" * 249 + "-0")
    assert len(deleted) == 255
    assert deleted.endswith("-delete")
    assert key_of_folder(deleted) is None


def test_create_get_and_unknown(maker: Maker) -> None:
    logs = maker.open()
    log = logs.create("topic", 0, ID)
    assert logs.get("topic", 0) is log
    assert logs.get_or_create("topic", 0, ID) is log
    assert ("topic", 0) in logs
    assert logs.keys() == [("topic", 0)]
    with pytest.raises(UnknownLog):
        logs.get("topic", 1)
    with pytest.raises(TopicIdMismatch):
        logs.get_or_create("topic", 0, OTHER_ID)
    with pytest.raises(ValueError, match="already"):
        logs.create("topic", 0, ID)


def test_a_clean_stop_and_a_lazy_start(maker: Maker) -> None:
    logs = maker.open()
    assert not logs.was_clean
    for partition in range(5):
        logs.create("topic", partition, ID)
        append(logs, "topic", partition, b"a", b"b")
    logs.close(broker_epoch=17)
    folder = Path(maker.folders[0])
    assert (folder / ".kafka_cleanshutdown").read_text() == '{"version":0,"brokerEpoch":17}'
    assert read_offsets(str(folder / "recovery-point-offset-checkpoint")) == {
        ("topic", partition): 2 for partition in range(5)
    }
    opened = []

    class Watching(Files):
        def open(self, path: str, flags: int = os.O_RDONLY) -> int:
            opened.append(path)
            return super().open(path, flags)

        def names(self, folder: str) -> list[str]:
            opened.append(folder)
            return super().names(folder)

    again = maker.open(Watching())
    assert again.was_clean
    assert len(again) == 5
    assert not any("topic-" in path for path in opened)  # none was touched
    assert not (folder / ".kafka_cleanshutdown").exists()
    log = again.get("topic", 3)
    assert (log.log_end_offset, log.high_watermark, log.topic_id) == (2, 2, ID)
    assert [("topic-3" in path) for path in opened if "topic-" in path]
    assert not any("topic-2" in path for path in opened)
    assert values(again, "topic", 3) == [b"a", b"b"]


def test_who_leads_gets_no_new_log_in_place_of_one_that_is_gone(maker: Maker) -> None:
    logs = maker.open()
    for topic in ("topic", "empty"):
        logs.create(topic, 0, ID)
    append(logs, "topic", 0, b"a", b"b")
    logs.close()
    folder = Path(maker.folders[0])
    (folder / "topic-0").rename(folder.parent / "taken")
    shutil.rmtree(folder / "empty-0")
    for _ in range(2):
        logs = maker.open()
        assert logs.missing == [("topic", 0)]
        with pytest.raises(LogOffline, match="topic-0 is gone, and it had records"):
            logs.get_or_create("topic", 0, ID, leads=True)
        assert not (folder / "topic-0").exists()
        logs.close()  # the next start misses it too
    (folder.parent / "taken").rename(folder / "topic-0")
    logs = maker.open()
    assert logs.missing == []
    assert logs.get_or_create("topic", 0, ID, leads=True).log_end_offset == 2


def test_a_log_that_is_gone_is_made_anew_for_a_follower_and_for_a_new_topic(maker: Maker) -> None:
    logs = maker.open()
    for partition in range(3):
        logs.create("topic", partition, ID)
        append(logs, "topic", partition, b"a")
    logs.close()
    for partition in range(3):
        shutil.rmtree(Path(maker.folders[0]) / f"topic-{partition}")
    logs = maker.open()
    assert logs.get_or_create("topic", 0, ID).log_end_offset == 0
    assert logs.get_or_create("topic", 1, ID, is_new=True, leads=True).log_end_offset == 0
    logs.forget_missing("topic", 2)
    assert logs.missing == []
    logs.close()
    assert maker.open().missing == []


def test_a_log_that_was_deleted_or_set_aside_is_not_missed(maker: Maker) -> None:
    logs = maker.open()
    for topic in ("deleted", "aside"):
        logs.create(topic, 0, ID)
        append(logs, topic, 0, b"a")
    logs.close()
    logs = maker.open()
    logs.delete("deleted", 0)
    logs.set_aside("aside", 0)
    maker.killed(logs)  # its checkpoints still tell of both
    assert maker.open().missing == []


@pytest.mark.parametrize("loaded", [True, False])
def test_a_log_that_was_set_aside_comes_back_without_what_was_deleted(
    maker: Maker, loaded: bool
) -> None:
    logs = maker.open()
    logs.create("topic", 0, ID)
    append(logs, "topic", 0, b"a", b"b", b"c")
    logs.get("topic", 0).advance_start(2)
    logs.close()
    logs = maker.open()
    if loaded:
        logs.get("topic", 0)
    logs.set_aside("topic", 0)
    logs.close()  # its checkpoints say nothing of the log
    logs = maker.open()
    (folder,) = logs.folders
    (name,) = folder.strays
    logs.take_back(folder, name, "topic", 0)
    assert values(logs, "topic", 0) == [b"c"]
    maker.killed(logs)
    logs = maker.open()
    assert values(logs, "topic", 0) == [b"c"]
    assert "set-aside-log-start" not in os.listdir(f"{maker.folders[0]}/topic-0")


def test_a_lazily_opened_log_survives_a_crash_untouched(maker: Maker) -> None:
    logs = maker.open()
    for partition in range(3):
        logs.create("topic", partition, ID)
        append(logs, "topic", partition, b"a")
    logs.close()
    logs = maker.open()
    append(logs, "topic", 1, b"b")
    maker.killed(logs)
    logs = maker.open()
    assert not logs.was_clean
    assert [values(logs, "topic", partition) for partition in range(3)] == [
        [b"a"],
        [b"a", b"b"],
        [b"a"],
    ]
    logs.close()
    assert maker.open().was_clean


def test_two_brokers_on_one_folder(maker: Maker) -> None:
    maker.open()
    with pytest.raises(FolderLocked, match="another broker"):
        maker.open()


def test_a_log_in_two_folders(tmp_path: Path) -> None:
    maker = Maker(tmp_path / "a", tmp_path / "b")
    for folder in ("a", "b"):
        (tmp_path / folder / "topic-0").mkdir(parents=True)
    with pytest.raises(DuplicateLog, match="move one of the two away"):
        maker.open()
    (tmp_path / "b" / "topic-0").rmdir()
    logs = maker.open()  # and no lock was kept
    maker.killed(logs)


def test_logs_are_spread_evenly(tmp_path: Path) -> None:
    maker = Maker(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    logs = maker.open()
    for partition in range(10):
        logs.create("topic", partition, ID)
    assert sorted(folder.partitions for folder in logs.folders) == [3, 3, 4]
    logs.delete("topic", 0)
    logs.delete("topic", 3)
    logs.create("other", 0, ID)
    logs.create("other", 1, ID)
    assert sorted(folder.partitions for folder in logs.folders) == [3, 3, 4]
    logs.close()
    logs = maker.open()
    assert sorted(folder.partitions for folder in logs.folders) == [3, 3, 4]
    maker.killed(logs)


class Broken(Files):
    """Fails calls below a path, from now on."""

    path = "-"
    error = errno.EIO

    def _maybe(self, path: str) -> None:
        if path.startswith(self.path):
            raise OSError(self.error, os.strerror(self.error), path)

    def open(self, path: str, flags: int = os.O_RDONLY) -> int:
        self._maybe(path)
        return super().open(path, flags)

    def mkdir(self, path: str) -> None:
        self._maybe(path)
        super().mkdir(path)

    def make_folders(self, path: str) -> None:
        self._maybe(path)
        super().make_folders(path)


def test_a_folder_that_cannot_be_opened_is_offline_and_the_others_serve(tmp_path: Path) -> None:
    maker = Maker(tmp_path / "a", tmp_path / "b")
    logs = maker.open()
    for partition in range(4):
        logs.create("topic", partition, ID)
        append(logs, "topic", partition, b"a")
    in_a = [key for key in logs.keys() if logs.folder_of(*key).path.endswith("a")]  # noqa: SIM118
    logs.close()
    files = Broken()
    files.path = str(tmp_path / "a")
    logs = maker.open(files)
    assert logs.folders[0].offline is not None
    assert len(logs) == 2
    assert logs.create("new", 0, ID).folder.startswith(str(tmp_path / "b"))
    # It may be in the folder that is offline: no second, empty one is made of it.
    with pytest.raises(LogOffline, match="may be in"):
        logs.get_or_create(*in_a[0], ID)
    logs.get_or_create("brand-new", 0, ID, is_new=True)
    logs.close()
    files.path = str(tmp_path)
    with pytest.raises(FolderOffline):
        maker.open(files)
    files.path = "-"
    logs = maker.open(files)
    assert all(values(logs, *key) == [b"a"] for key in in_a)
    maker.killed(logs)


def test_a_folder_that_fails_later_takes_its_logs_along(tmp_path: Path) -> None:
    maker = Maker(tmp_path / "a", tmp_path / "b")
    files = Broken()
    logs = maker.open(files)
    offline: list[str] = []
    logs.on_offline = lambda log: offline.append(log.name)
    for partition in range(4):
        logs.create("topic", partition, ID)
    files.path = str(tmp_path / "a")
    assert logs.create("topic", 4, ID).folder.startswith(str(tmp_path / "b"))
    assert logs.folders[0].offline is not None
    assert len(offline) == 2
    failed = [key for key in logs.keys() if logs.folder_of(*key).offline is not None]  # noqa: SIM118
    assert len(failed) == 2
    for key in failed:
        with pytest.raises(LogOffline):
            logs.get(*key).append(a_batch(), 0, NOW)
    assert logs.get("topic", 4).append(a_batch(), 0, NOW).base_offset == 0
    files.path = "-"
    logs.close()
    assert not (tmp_path / "a" / ".kafka_cleanshutdown").exists()
    assert (tmp_path / "b" / ".kafka_cleanshutdown").exists()


def test_one_broken_log_does_not_stop_the_others(maker: Maker) -> None:
    logs = maker.open()
    for partition in range(3):
        logs.create("topic", partition, ID)
        append(logs, "topic", partition, b"a", b"b")
    logs.close()
    path = Path(maker.folders[0]) / "topic-1" / f"{0:020d}.log"
    os.truncate(path, 10)
    logs = maker.open()
    with pytest.raises(LogOffline, match="synced up to 2"):
        logs.get("topic", 1)
    with pytest.raises(LogOffline):
        logs.get("topic", 1)
    assert values(logs, "topic", 0) == [b"a", b"b"]
    logs.close()
    # What is broken is not forgotten by the checkpoints, nor marked as clean.
    logs = maker.open()
    assert not logs.was_clean
    with pytest.raises(LogOffline, match="synced up to 2"):
        logs.get("topic", 1)
    logs.delete("topic", 1)  # somebody gives it up
    assert logs.get_or_create("topic", 1, ID, is_new=True).log_end_offset == 0
    logs.close()
    assert maker.open().was_clean


class Starved(Files):
    """Has no descriptor left while `starving`."""

    starving = False

    def open(self, path: str, flags: int = READ_ONLY) -> int:
        if self.starving and "topic-" in path:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return super().open(path, flags)

    def read_file(self, path: str) -> bytes:
        if self.starving and "topic-" in path:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return super().read_file(path)


@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill"])
def test_a_log_that_could_not_be_loaded_for_want_of_descriptors_is_loaded_later(
    maker: Maker, clean: bool
) -> None:
    logs = maker.open()
    logs.create("topic", 0, ID).append(a_batch(b"kept"), 0, NOW)
    logs.close() if clean else maker.killed(logs)
    files = Starved()
    files.starving = True
    logs = maker.open(files)
    with pytest.raises(OutOfResources):
        logs.get("topic", 0)
    with pytest.raises(OutOfResources):
        logs.create("topic", 1, ID)
    if not clean:
        # Nobody has recovered it: the folder must not be taken for one in good order.
        logs.close()
        logs = maker.open(files)
        assert not logs.was_clean
        with pytest.raises(OutOfResources):
            logs.get("topic", 0)
    files.starving = False
    assert [b"kept" in data for _, _, data in stored_batches(logs.get("topic", 0))] == [True]
    assert logs.create("topic", 1, ID).log_end_offset == 0
    logs.close()
    assert maker.open().was_clean


def test_flush_and_checkpoint_in_the_background(maker: Maker) -> None:
    logs = maker.open()
    maker.config = replace(maker.config, flush_ms=100)
    for partition in range(3):
        logs.create("topic", partition, ID)
    append(logs, "topic", 0, b"a")
    append(logs, "topic", 2, b"a", b"b")
    assert work(logs, NOW + 99) == []
    assert [type(job) for job in work(logs, NOW + 100)] == [FlushJob, FlushJob]
    assert logs.get("topic", 2).recovery_point == 2
    path = f"{maker.folders[0]}/recovery-point-offset-checkpoint"
    assert [type(job) for job in work(logs, NOW + 200)] == [CheckpointJob]
    assert read_offsets(path) == {("topic", 0): 1, ("topic", 2): 2}
    append(logs, "topic", 0, b"b")
    assert [type(job) for job in work(logs, NOW + 300)] == [FlushJob]
    assert work(logs, NOW + 400) == []  # the next checkpoint waits some seconds
    assert read_offsets(path)["topic", 0] == 1
    work(logs, NOW + 6000)
    assert read_offsets(path)["topic", 0] == 2
    assert work(logs, NOW + 10**6) == []


def test_the_interval_of_checkpoints(maker: Maker) -> None:
    logs = maker.open()
    logs.checkpoint_interval_ms = 60_000
    log = logs.create("topic", 0, ID)

    def checkpoints(after_ms: int) -> int:
        log.append(a_batch(), 0, NOW + after_ms)
        job = logs.flush_now(log, NOW + after_ms)
        assert job is not None
        job.run()
        logs.finish(job)
        jobs = logs.due(NOW + after_ms)
        for each in jobs:
            each.run()
            logs.finish(each)
        return sum(isinstance(each, CheckpointJob) for each in jobs)

    assert [checkpoints(after) for after in (0, 1, 59_999, 60_000, 60_001)] == [1, 0, 0, 1, 0]
    logs.checkpoint_interval_ms = 0
    assert checkpoints(60_002) == 1


def test_a_clock_that_is_set_back(maker: Maker) -> None:
    """Flushes, checkpoints and removals come when they would have come, not an hour later."""
    maker.config = replace(maker.config, flush_ms=100)
    logs = maker.open()
    logs.create("t", 0, ID)
    logs.create("gone", 0, OTHER_ID)
    append(logs, "t", 0, b"a")
    work(logs, NOW + 100)
    work(logs, NOW + 101)
    logs.delete("gone", 0)
    work(logs, NOW + 102)
    append(logs, "t", 0, b"b")
    back = NOW - 3_600_000
    assert work(logs, back) == [], "not at once, either"
    found = [*work(logs, back + 100), *work(logs, back + 1000), *work(logs, back + 5100)]
    assert [type(job) for job in found] == [FlushJob, RemovalJob, CheckpointJob]
    assert not any(name.startswith("gone") for name in os.listdir(maker.folders[0]))


def test_what_is_scheduled_after_the_clock_was_set_back_keeps_its_delay(maker: Maker) -> None:
    logs = maker.open()
    logs.create("before", 0, ID)
    logs.create("after", 0, OTHER_ID)
    work(logs, NOW)
    logs.delete("before", 0)
    maker.clock.now = back = NOW - 3_600_000
    logs.delete("after", 0)  # before anybody has asked what is due
    work(logs, back + 500)
    names = os.listdir(maker.folders[0])
    assert [name.split("-")[0] for name in sorted(names) if name.endswith("-delete")] == [
        "after",
        "before",
    ]
    work(logs, back + 1000)
    assert not [name for name in os.listdir(maker.folders[0]) if name.endswith("-delete")]


def test_retention_does_nothing_foolish_when_the_clock_is_set_back(maker: Maker) -> None:
    logs = maker.open()
    logs.create("t", 0, ID)
    append(logs, "t", 0, b"a", b"b")
    assert [job for job in logs.retention(NOW - 3_600_000) if job is not None] == []
    assert values(logs, "t", 0) == [b"a", b"b"]


class CountingFiles(Files):
    """Counts the files that are opened."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    def open(self, path: str, *arguments: Any) -> int:
        self.opened.append(path)
        return super().open(path, *arguments)


def test_the_first_touch_of_a_long_log_does_not_read_all_its_segments(maker: Maker) -> None:
    maker.config = replace(maker.config, segment_bytes=200)
    logs = maker.open()
    logs.create("t", 0, ID)
    append(logs, "t", 0, *(b"%0100d" % number for number in range(50)))
    logs.close()
    files = CountingFiles()
    again = maker.open(files)
    log = again.get("t", 0)
    assert len(log.segments.from_offset(0)) == 50
    assert len([path for path in files.opened if path.endswith(".log")]) <= 2
    # Untouched in between, it is still known.
    again.close()
    maker.open().close()
    files = CountingFiles()
    maker.open(files).get("t", 0)
    assert len([path for path in files.opened if path.endswith(".log")]) <= 2


@pytest.mark.parametrize("damage", ["missing", "cut", "renamed", "no fingerprint"])
def test_a_long_log_that_was_changed_at_rest(maker: Maker, damage: str) -> None:
    maker.config = replace(maker.config, segment_bytes=200)
    logs = maker.open()
    logs.create("t", 0, ID)
    append(logs, "t", 0, *(b"%0100d" % number for number in range(50)))
    logs.close()
    folder = Path(maker.folders[0])
    segment = folder / "t-0" / f"{20:020}.log"
    checkpoint = folder / "sealed-segments-checkpoint"
    assert checkpoint.exists()
    match damage:
        case "missing":
            segment.unlink()
        case "cut":
            segment.write_bytes(b"")
        case "renamed":
            segment.rename(folder / "t-0" / f"{51:020}.log")
        case _:
            checkpoint.write_text("nonsense")
    again = maker.open()
    if damage == "no fingerprint":
        assert again.was_clean
        assert len(values(again, "t", 0)) == 50
    else:
        with pytest.raises(LogOffline):
            again.get("t", 0)


def test_a_flush_that_is_wanted_at_once(maker: Maker) -> None:
    logs = maker.open()
    maker.config = replace(maker.config, flush_messages=1)
    wanted = []
    logs.on_flush_wanted = wanted.append
    log = logs.create("topic", 0, ID)
    log.append(a_batch(), 0, NOW)
    assert wanted == [log]
    job = logs.flush_now(log, NOW)
    assert job is not None
    log.append(a_batch(), 0, NOW)
    job.run()
    logs.finish(job)
    assert log.recovery_point == 1
    assert any(isinstance(job, FlushJob) for job in work(logs, NOW))
    assert log.recovery_point == 2


def test_a_flush_that_a_truncation_took_back_comes_again(maker: Maker) -> None:
    logs = maker.open()
    maker.config = replace(maker.config, flush_ms=100)
    log = logs.create("topic", 0, ID)
    append(logs, "topic", 0, b"a", b"b")
    (job,) = logs.due(NOW + 100)
    log.truncate_to(1, NOW)
    work(logs, NOW + 200)
    assert log.recovery_point == 1
    append(logs, "topic", 0, b"c")
    job.run()  # it comes to nothing, whenever it comes
    logs.finish(job)
    assert log.recovery_point == 1


def test_many_logs_share_few_descriptors(maker: Maker) -> None:
    """Unsynced files are kept open; crowding makes them be flushed, and then they are closed."""
    logs = maker.open(max_open_files=40)
    for partition in range(50):
        logs.create("topic", partition, ID)
        append(logs, "topic", partition, b"a")
    assert len(logs.open_files) == 50
    logs.open_files.limit = 10
    for _ in range(3):
        work(logs, NOW)
    assert len(logs.open_files) <= 11
    assert all(values(logs, "topic", partition) == [b"a"] for partition in range(50))
    assert len(logs.open_files) <= 11


def test_retention_stores_the_start_before_it_renames(
    maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = maker.open()
    maker.config = replace(maker.config, segment_bytes=600, retention_bytes=600)
    log = logs.create("topic", 0, ID)
    logs.create("topic", 1, ID)
    append(logs, "topic", 0, *[b"x" * 200] * 6)
    jobs = list(logs.retention(NOW))
    assert len(jobs) == 2
    (job,) = [job for job in jobs if job is not None]
    assert isinstance(job, RetireJob)
    start = log.log_start_offset
    assert start == 2
    seen: list[dict[tuple[str, int], int]] = []
    rename = Retired.rename

    def watched(self: Retired, one_by_one: bool = False) -> None:
        seen.append(read_offsets(f"{maker.folders[0]}/log-start-offset-checkpoint"))
        rename(self, one_by_one)

    monkeypatch.setattr(Retired, "rename", watched)
    job.run()
    assert seen == [{("topic", 0): 2}]
    logs.finish(job)
    deleted = [name for name in os.listdir(log.folder) if name.endswith(".deleted")]
    assert f"{0:020d}.log.deleted" in deleted
    assert not any(isinstance(job, RemovalJob) for job in work(logs, NOW + 999))
    assert any(isinstance(job, RemovalJob) for job in work(logs, NOW + 1000))
    assert not [name for name in os.listdir(log.folder) if name.endswith(".deleted")]


def test_retention_renames_one_by_one_if_the_start_is_not_stored_after_all(
    maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another log is deleted before the job runs: its checkpoint speaks of that one, too."""
    logs = maker.open()
    maker.config = replace(maker.config, segment_bytes=600, retention_bytes=600)
    logs.create("topic", 0, ID)
    logs.create("other", 0, ID)
    append(logs, "topic", 0, *[b"x" * 200] * 6)
    (job,) = (job for job in logs.retention(NOW) if job is not None)
    logs.delete("other", 0)
    seen: list[bool] = []
    monkeypatch.setattr(Retired, "rename", lambda _, one_by_one=False: seen.append(one_by_one))
    job.run()
    assert seen == [True]
    assert read_offsets(f"{maker.folders[0]}/log-start-offset-checkpoint") == {}


def test_a_full_disk_does_not_keep_retention_from_making_room(maker: Maker) -> None:
    files = Broken()
    files.error = errno.ENOSPC
    logs = maker.open(files)
    maker.config = replace(maker.config, segment_bytes=600, retention_bytes=600)
    log = logs.create("topic", 0, ID)
    append(logs, "topic", 0, *[b"x" * 200] * 6)
    (job,) = logs.retention(NOW)
    assert job is not None
    files.path = f"{maker.folders[0]}/log-start"
    job.run()
    logs.finish(job)
    assert logs.folders[0].offline is None
    assert log.offline is None
    work(logs, NOW + 1000)
    assert sorted(name for name in os.listdir(log.folder) if name.endswith(".log")) == [
        f"{2:020d}.log",
        f"{4:020d}.log",
    ]


def test_retention_looks_at_logs_that_nobody_touched(maker: Maker) -> None:
    logs = maker.open()
    maker.config = replace(maker.config, retention_ms=1000)
    for partition in range(3):
        logs.create("topic", partition, ID)
    append(logs, "topic", 1, b"a")
    logs.close()
    logs = maker.open()
    assert [job is not None for job in logs.retention(NOW + 2000)] == [False, True, False]
    assert len(logs.loaded()) == 1  # those without records are not even loaded
    assert logs.get("topic", 1).log_start_offset == 1


def test_deleting_a_log(maker: Maker) -> None:
    logs = maker.open()
    log = logs.create("topic", 0, ID)
    append(logs, "topic", 0, b"a")
    part = log.read(0, 100, 1)
    assert part is not None
    logs.delete("topic", 0)
    with pytest.raises(UnknownLog):
        logs.get("topic", 0)
    with pytest.raises(LogOffline):
        log.append(a_batch(), 0, NOW)
    folders = [name for name in os.listdir(maker.folders[0]) if name.startswith("topic")]
    (name,) = folders
    assert name.startswith("topic-0.")
    assert name.endswith("-delete")
    assert logs.create("topic", 0, OTHER_ID).log_end_offset == 0  # the name is free
    work(logs, NOW + 999)
    assert name in os.listdir(maker.folders[0])
    work(logs, NOW + 1000)
    assert name not in os.listdir(maker.folders[0])
    assert b"a" in part.read()


def test_a_log_whose_folder_is_gone_takes_none_of_its_successor_along(maker: Maker) -> None:
    """Somebody removed the folder, then deleted the topic and made it anew."""
    logs = maker.open()
    logs.create("topic", 0, ID)
    append(logs, "topic", 0, b"a")
    shutil.rmtree(f"{maker.folders[0]}/topic-0")
    logs.delete("topic", 0)
    logs.create("topic", 0, OTHER_ID)
    append(logs, "topic", 0, b"z")
    work(logs, NOW + 1000)
    assert os.path.isdir(f"{maker.folders[0]}/topic-0")
    logs.close()
    assert values(maker.open(), "topic", 0) == [b"z"]


def test_a_deletion_is_finished_after_a_restart(maker: Maker) -> None:
    logs = maker.open()
    logs.create("topic", 0, ID)
    append(logs, "topic", 0, b"a")
    logs.delete("topic", 0)
    maker.killed(logs)
    logs = maker.open()
    assert len(logs) == 0
    work(logs, NOW)
    assert not [name for name in os.listdir(maker.folders[0]) if name.startswith("topic")]


def test_a_new_log_does_not_inherit_the_offsets_of_a_deleted_one(maker: Maker) -> None:
    logs = maker.open()
    logs.create("topic", 0, ID)
    append(logs, "topic", 0, b"a", b"b", b"c")
    logs.get("topic", 0).advance_start(2)
    job = logs.flush_now(logs.get("topic", 0), NOW)
    assert job is not None
    job.run()
    logs.finish(job)
    late = logs.checkpoint(NOW)
    for checkpoint in logs.checkpoint(NOW) or late:
        checkpoint.run()
    logs.delete("topic", 0)
    logs.create("topic", 0, OTHER_ID)
    append(logs, "topic", 0, b"z")
    for checkpoint in late:
        checkpoint.run()  # collected before, run only now
        logs.finish(checkpoint)
    maker.killed(logs)
    logs = maker.open()
    log = logs.get("topic", 0)
    assert (log.log_start_offset, log.log_end_offset, log.topic_id) == (0, 1, OTHER_ID)
    assert values(logs, "topic", 0) == [b"z"]


def test_truncation_lowers_the_stored_recovery_point_first(maker: Maker) -> None:
    logs = maker.open()
    log = logs.create("topic", 0, ID)
    append(logs, "topic", 0, b"a", b"b", b"c")
    log.flush(NOW)
    for job in logs.checkpoint(NOW):
        job.run()
        logs.finish(job)
    late = logs.checkpoint(NOW)
    log.truncate_to(1, NOW)
    for job in late:
        job.run()
    assert read_offsets(f"{maker.folders[0]}/recovery-point-offset-checkpoint") == {("topic", 0): 1}


def test_a_changed_configuration_reaches_the_logs(maker: Maker) -> None:
    logs = maker.open()
    log = logs.create("topic", 0, ID)
    other = logs.create("other", 0, ID)
    maker.config = replace(maker.config, max_message_bytes=1234)
    logs.reconfigure("topic")
    assert log.config.max_message_bytes == 1234
    assert other.config.max_message_bytes != 1234


def test_a_lost_topic_id_is_written_again(maker: Maker) -> None:
    logs = maker.open()
    logs.create("topic", 0, ID)
    logs.close()
    path = Path(maker.folders[0]) / "topic-0" / "partition.metadata"
    path.unlink()
    logs = maker.open()
    assert logs.get_or_create("topic", 0, ID).topic_id == ID
    assert path.exists()


def test_checkpoints_that_cannot_be_read_cost_time_not_data(maker: Maker) -> None:
    logs = maker.open()
    logs.create("topic", 0, ID)
    append(logs, "topic", 0, b"a", b"b")
    logs.close()
    Path(maker.folders[0], "recovery-point-offset-checkpoint").write_text("0\n5\ngarbage\n")
    logs = maker.open()
    assert values(logs, "topic", 0) == [b"a", b"b"]
    assert not logs.was_clean


@pytest.mark.parametrize("way_out", ["deleted", "set aside"])
@pytest.mark.parametrize("segment", ["the first", "the active one", "a new one"])
def test_a_write_under_way_makes_nothing_in_the_folder_of_a_namesake(
    maker: Maker, segment: str, way_out: str
) -> None:
    """A thread is about to write for a log whose topic is deleted and created again."""
    maker.config = LogConfig(segment_bytes=400)
    logs = maker.open()
    old = logs.create("orders", 0, ID)
    if segment != "the first":
        old.append(a_batch(b"x" * 200), 0, NOW)
        old.flush(NOW)
        old.active.close()  # as if others had needed the descriptor
    value = b"y" * (300 if segment == "a new one" else 10)
    append = old.prepare(a_batch(value), 0, NOW)
    assert (append.segment is not old.active) == (segment == "a new one")
    old.hand_out(append)
    if way_out == "deleted":
        logs.delete("orders", 0)
    else:
        logs.set_aside("orders", 0)
    new = logs.create("orders", 0, OTHER_ID)
    if segment != "the first":
        new.append(a_batch(b"new"), 0, NOW)
    before = {path: path.read_bytes() for path in Path(new.folder).iterdir()}
    with pytest.raises(LogOffline):
        old.write(append)
    assert {path: path.read_bytes() for path in Path(new.folder).iterdir()} == before
    assert new.append(a_batch(b"newer"), 0, NOW).base_offset == (segment != "the first")


def test_producers_expire(maker: Maker) -> None:
    logs = maker.open(producer_expiration_ms=1000)
    log = logs.create("topic", 0, ID)
    log.append(a_batch(producer_id=1, producer_epoch=0, base_sequence=0), 0, NOW)
    assert logs.expire_producers(NOW + 999) == 0
    assert logs.expire_producers(NOW + 1000) == 1


def test_thousands_of_partitions(maker: Maker) -> None:
    """Made, stopped and opened without a file each that could be spared."""
    logs = maker.open(max_open_files=64)
    for partition in range(2000):
        logs.create("topic", partition, ID)
    assert all(
        os.listdir(f"{maker.folders[0]}/topic-{partition}") == ["partition.metadata"]
        for partition in (0, 999, 1999)
    )
    assert len(logs.open_files) == 0
    logs.close()
    logs = maker.open()
    assert len(logs) == 2000
    assert logs.loaded() == []


def test_close_flushes_in_threads(maker: Maker) -> None:
    logs = maker.open()
    for partition in range(100):
        logs.create("topic", partition, ID)
        append(logs, "topic", partition, b"a")
    begun = logs.flush_now(logs.get("topic", 7), NOW)  # and nobody runs it
    assert begun is not None
    logs.close(threads=4)
    logs = maker.open()
    assert logs.was_clean
    assert all(values(logs, "topic", partition) == [b"a"] for partition in range(100))


def test_jobs_never_raise(maker: Maker) -> None:
    files = Broken()
    logs = maker.open(files)
    maker.config = replace(maker.config, flush_ms=0, file_delete_delay_ms=0)
    logs.create("topic", 0, ID)
    logs.create("topic", 1, ID)
    append(logs, "topic", 0, b"a")
    logs.delete("topic", 1)
    jobs = logs.due(NOW) + logs.checkpoint(NOW)
    runs: list[Callable[[], None]] = [job.run for job in jobs]
    files.path = maker.folders[0]
    for run in runs:
        run()
    for job in jobs:
        logs.finish(job)
    assert logs.get  # the broker lives
    assert logs.folders[0].offline is not None
