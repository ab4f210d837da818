"""Folders removed off the loop: very many of them in few jobs, and one that stays keeps no other."""

from __future__ import annotations

import errno
from pathlib import Path

from ottla.storage.files import Files
from ottla.storage.removal import FOLDERS_IN_A_JOB, MOST_AT_ONCE, RemovalJob, Removals


class Stubborn(Files):
    """One folder cannot be removed; syncs are counted."""

    def __init__(self, kept: str) -> None:
        self.kept = kept
        self.synced: list[str] = []

    def remove_tree(self, path: str) -> None:
        if path == self.kept:
            raise OSError(errno.EBUSY, "busy")
        super().remove_tree(path)

    def fsync_folder(self, path: str) -> None:
        self.synced.append(path)
        super().fsync_folder(path)


def test_removals_that_are_due_together_are_few_jobs() -> None:
    files = Files()
    removals = Removals()
    count = MOST_AT_ONCE + 1
    for each in range(count):
        removals.sync_soon("/data", files)
        removals.add(5, RemovalJob(files, folders=[f"/data/{each}"]))
    first = list(removals.due(5))
    assert [job.sync_folders for job in first if job.sync_folders] == [["/data"]]
    assert max(len(job.folders) for job in first) == FOLDERS_IN_A_JOB
    assert sum(len(job.folders) for job in first) == MOST_AT_ONCE
    assert [list(job.folders) for job in removals.due(5)] == [[f"/data/{count - 1}"]]
    assert not list(removals.due(5))


def test_a_sync_that_failed_is_due_again() -> None:
    files = Files()
    removals = Removals()
    removals.sync_soon("/data", files)
    (job,) = removals.due(0)
    removals.add(10, job)
    assert not list(removals.due(9))
    assert list(removals.due(10)) == [job]


def test_a_folder_that_cannot_be_removed_keeps_no_other(tmp_path: Path) -> None:
    folders = [str(tmp_path / name) for name in ("a", "b", "c", "gone")]
    for folder in folders[:3]:
        Path(folder).mkdir()
    files = Stubborn(folders[1])
    job = RemovalJob(files, folders=folders)
    job.run()
    assert job.error is not None
    assert job.error.errno == errno.EBUSY
    assert job.folders == [folders[1]]
    assert [each.name for each in tmp_path.iterdir()] == ["b"]
    # Their new names are made durable first, once for all of them.
    assert files.synced == [str(tmp_path)]
    files.kept = ""
    job.error = None
    job.run()
    assert job.error is None
    assert not list(tmp_path.iterdir())
