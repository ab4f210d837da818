"""What a data folder knows of those who ran with it: whether records may be gone, whether it is old."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from storage_kit.logs import NOW, a_batch

from ottla.storage import folders, runs
from ottla.storage.config import LogConfig
from ottla.storage.files import Files
from ottla.storage.logs import Logs

ID = bytes(range(16))


class FullDisk(Files):
    """Has room for everything but the list of runs in some folder."""

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / ".runs")

    def replace_file(self, path: str, data: bytes) -> None:
        if path == self._path:
            raise OSError(errno.ENOSPC, "no space left on device")
        super().replace_file(path, data)


def opened(*paths: Path, files: Files | None = None) -> Logs:
    logs = Logs([str(path) for path in paths], lambda _: LogConfig(), files=files or Files())
    logs.open()
    return logs


def killed(logs: Logs) -> None:
    """As if the process had ended: the system gives the locks back."""
    for folder in logs.folders:
        folder.unlock()


# Boots of the machine -------------------------------------------------------------------------------


def started(*paths: Path) -> Logs:
    """With a record that was not flushed, and the cluster knows of this start."""
    logs = opened(*paths)
    log = logs.get_or_create("topic", 0, ID)
    log.append(a_batch(b"a"), 0, NOW)
    logs.mark_running()
    return logs


def test_a_new_folder_may_have_lost_records(tmp_path: Path) -> None:
    """It may be a new disk in the place of another."""
    logs = opened(tmp_path / "a")
    assert logs.may_have_lost_records
    killed(logs)


def test_nothing_is_lost_after_a_clean_shutdown_in_whatever_boot(tmp_path: Path) -> None:
    started(tmp_path / "a").close()
    (tmp_path / "a" / ".running").write_text("another boot")
    logs = opened(tmp_path / "a")
    assert logs.was_clean
    assert not logs.may_have_lost_records
    killed(logs)
    # The marker was taken in, and this start is none that the cluster knows of.
    again = opened(tmp_path / "a")
    assert again.may_have_lost_records
    killed(again)


def test_nothing_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    killed(started(tmp_path / "a"))
    assert (tmp_path / "a" / ".running").read_text() == folders.boot_id() != ""
    logs = opened(tmp_path / "a")
    assert not logs.was_clean
    assert not logs.may_have_lost_records
    killed(logs)


@pytest.mark.parametrize("note", ["another boot", "", None])
def test_records_may_be_lost_when_the_machine_was_started_anew(
    tmp_path: Path, note: str | None
) -> None:
    killed(started(tmp_path / "a"))
    running = tmp_path / "a" / ".running"
    if note is None:
        running.unlink()
    else:
        running.write_text(note)
    # Until the cluster was told: a process that is killed before has to say so again.
    for _ in range(2):
        logs = opened(tmp_path / "a")
        assert logs.may_have_lost_records
        killed(logs)
    logs = opened(tmp_path / "a")
    logs.mark_running()
    killed(logs)
    logs = opened(tmp_path / "a")
    assert not logs.may_have_lost_records
    killed(logs)


def test_where_boots_cannot_be_told_apart_every_kill_may_lose_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "boot_id", lambda: "")
    killed(started(tmp_path / "a"))
    logs = opened(tmp_path / "a")
    assert logs.may_have_lost_records
    killed(logs)


def test_one_folder_of_several_is_enough(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    killed(started(a, b))
    logs = opened(a, b)
    assert not logs.may_have_lost_records
    killed(logs)
    (b / ".running").write_text("another boot")
    logs = opened(a, b)
    assert logs.may_have_lost_records
    logs.close()
    logs = opened(a, b)
    assert not logs.may_have_lost_records
    logs.close()
    # A folder that cannot be read: nobody knows what was in it.
    shutil.rmtree(b)
    b.write_text("no folder")
    logs = opened(a, b)
    assert logs.may_have_lost_records
    logs.mark_running()
    killed(logs)


# Runs of the broker ---------------------------------------------------------------------------------


def claimed(*paths: Path) -> None:
    """The folders belong to a broker."""
    logs = opened(*paths)
    for folder in logs.folders:
        folder.claim("a cluster", 1)
    logs.close()


def run(last: str, *paths: Path, files: Files | None = None) -> tuple[str, tuple[str, ...]]:
    """A broker starts, ends, and tells what it said of runs. `last` is what the cluster knows."""
    logs = opened(*paths, files=files)
    logs.begin_run(last)
    logs.close()
    return logs.run, logs.former_runs


def names(path: Path) -> list[str]:
    return (path / ".runs").read_text().split()


def test_each_run_knows_those_that_the_cluster_may_have_heard_of(tmp_path: Path) -> None:
    claimed(folder := tmp_path / "a")
    first, former = run("", folder)
    assert former == ()
    assert first.startswith("1-")
    second, former = run(first, folder)
    assert former == (first,)
    assert second.startswith("2-")
    # The second was never taken in, nor the third.
    third, former = run(first, folder)
    assert former == (first, second)
    fourth, former = run(first, folder)
    assert former == (first, second, third)
    # The fourth was: what is before it need not be known any more.
    fifth, former = run(fourth, folder)
    assert former == (first, second, third, fourth)
    assert names(folder) == [fourth, fifth]


def test_an_old_copy_does_not_know_the_last_run(tmp_path: Path) -> None:
    claimed(folder := tmp_path / "a")
    first, _ = run("", folder)
    shutil.copytree(folder, tmp_path / "copy")
    second, _ = run(first, folder)
    third, _ = run(second, folder)
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "copy", folder)
    # However often it starts before the cluster hears of it.
    for starts in range(1, 3 * runs.MOST_RUNS):
        latest, former = run(third, folder)
        assert former[0] == first, starts
        assert third not in former
        assert runs.number(latest) > runs.number(third)
    assert len(names(folder)) == runs.MOST_RUNS


def test_an_old_copy_of_one_folder_of_several(tmp_path: Path) -> None:
    claimed(a := tmp_path / "a", b := tmp_path / "b")
    first, _ = run("", a, b)
    assert names(a) == names(b) == [first]
    shutil.copytree(b, tmp_path / "copy")
    second, _ = run(first, a, b)
    third, _ = run(second, a, b)
    shutil.rmtree(b)
    shutil.copytree(tmp_path / "copy", b)
    for _ in range(3):
        assert run(third, a, b)[1][0] == first
    assert third not in names(a), "it would know the last run again"


def test_one_more_folder_is_not_an_old_one(tmp_path: Path) -> None:
    claimed(a := tmp_path / "a")
    first, _ = run("", a)
    b = tmp_path / "b"
    second, former = run(first, a, b)
    assert former == (first,)
    # It was claimed, and the process ended before the cluster heard of it.
    claimed(b)
    assert run(first, a, b)[1] == (first, second)


def test_a_start_that_ended_between_two_folders(tmp_path: Path) -> None:
    claimed(a := tmp_path / "a", b := tmp_path / "b")
    first, _ = run("", a, b)
    second, _ = run(first, a)
    assert names(a) == [first, second]
    assert names(b) == [first]
    third, former = run(first, a, b)
    assert former == (first,)
    assert names(a) == names(b) == [first, third]


def test_a_folder_of_an_older_version_knows_no_run(tmp_path: Path) -> None:
    claimed(a := tmp_path / "a", b := tmp_path / "b")
    first, _ = run("", a)
    assert run(first, a, b)[1] == ()


@pytest.mark.parametrize("content", ["no list", "1-0123", "1-0123456789abcdef\n\x00\x00"])
def test_a_list_that_makes_no_sense(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    claimed(folder := tmp_path / "a")
    first, _ = run("", folder)
    (folder / ".runs").write_text(content)
    second, former = run(first, folder)
    assert former == ()
    assert ".runs makes no sense" in caplog.text
    assert names(folder) == [second]


def test_without_room_for_the_list_the_run_has_no_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    claimed(a := tmp_path / "a", b := tmp_path / "b")
    first, _ = run("", a, b)
    assert run(first, a, b, files=FullDisk(b)) == ("", ())
    assert "no space left" in caplog.text
    # The cluster was told of none, and asks for none.
    assert run("", a, b)[1] == (first,)


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ([], ()),
        ([[]], ()),
        ([["1-a"], []], ()),
        ([["1-a", "2-b"]], ("1-a", "2-b")),
        ([["1-a", "2-b"], ["2-b", "3-c"]], ("1-a", "2-b")),
        ([["1-a"], ["3-c", "4-d"]], ("1-a",)),
        ([["1-a", "2-x"], ["1-a", "2-b"]], ("1-a",)),
    ],
)
def test_what_all_folders_know(lists: Sequence[Sequence[str]], expected: tuple[str, ...]) -> None:
    assert runs.known_to_all(lists) == expected
    assert runs.known_to_all(lists[::-1]) == expected
