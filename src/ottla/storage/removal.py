"""Removing files off the loop: segments that retention let go of, and the folders of deleted topics."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

from ottla.storage.files import Files
from ottla.storage.folders import CheckpointJob, DataFolder
from ottla.storage.log.retention import Retired

# Removals that are begun at a time, and folders that one job removes: thousands of topics that were
# deleted together are due together.
MOST_AT_ONCE = 1000
FOLDERS_IN_A_JOB = 100


class RetireJob:
    """Renames retired segments, once the new start of their log was stored: a crash in between must
    not bring back some of them and not others. `run` on any thread."""

    __slots__ = ("checkpoint", "error", "folder", "retired")

    def __init__(
        self, folder: DataFolder, checkpoint: CheckpointJob, retired: Sequence[Retired]
    ) -> None:
        self.folder = folder
        self.checkpoint = checkpoint
        self.retired = retired
        self.error: OSError | None = None

    def run(self) -> None:
        """Never raises; `error` tells."""
        self.checkpoint.run()
        # On a full disk nothing can be stored, and nothing helps but to remove: then the renames
        # themselves keep the order, at the price of a sync for each. So it is if the checkpoint is out
        # of date, because another log of the folder was truncated or deleted.
        self.error = self.checkpoint.error
        for retired in self.retired:
            try:
                retired.rename(one_by_one=not self.checkpoint.was_stored)
            except FileNotFoundError:
                pass  # the topic was deleted meanwhile, and its folder renamed
            except OSError as error:
                self.error = error


class RemovalJob:
    """Removes for good, and syncs folders in which something was renamed. `run` on any thread."""

    __slots__ = ("error", "files", "folders", "retired", "sync_folders")

    def __init__(
        self,
        files: Files,
        *,
        retired: Sequence[Retired] = (),
        folders: Sequence[str] = (),
        sync_folders: Sequence[str] = (),
    ) -> None:
        self.files = files
        self.retired = retired
        self.folders = folders
        self.sync_folders = sync_folders
        self.error: OSError | None = None

    def run(self) -> None:
        """Never raises; `error` tells. Of the folders those are left then that could not be removed."""
        try:
            for retired in self.retired:
                retired.remove()
            # The new names first: half of a log's files under the old one would be taken for a log
            # after a power loss.
            for parent in dict.fromkeys([os.path.dirname(folder) for folder in self.folders]):
                with suppress(FileNotFoundError):
                    self.files.fsync_folder(parent)
            for folder in self.sync_folders:
                self.files.fsync_folder(folder)
        except OSError as error:
            self.error = error
            return
        left = []
        for folder in self.folders:
            try:
                self.files.remove_tree(folder)
            except FileNotFoundError:
                pass
            except OSError as error:
                self.error = error
                left.append(folder)
        self.folders = left


class Removals:
    """Removals that wait for their time."""

    def __init__(self) -> None:
        # (clock at which it is due, tie breaker, job)
        self._waiting: list[tuple[int, int, RemovalJob]] = []
        self._count = 0
        # Folders in which something was renamed.
        self._to_sync: dict[str, Files] = {}

    def sync_soon(self, folder: str, files: Files) -> None:
        """The names in this folder are to be made durable, once for all that changed."""
        self._to_sync[folder] = files

    def add(self, at_ms: int, job: RemovalJob) -> None:
        """Keeps a job that is to be done at this time, or later."""
        self._count += 1
        heapq.heappush(self._waiting, (at_ms, self._count, job))

    def due(self, now_ms: int) -> Iterator[RemovalJob]:
        """Those whose time has come, as few jobs; they wait no longer. Of very many the rest is due the
        next time."""
        for folder, files in self._to_sync.items():
            yield RemovalJob(files, sync_folders=[folder])
        self._to_sync.clear()
        together: dict[Files, list[str]] = {}
        for _ in range(MOST_AT_ONCE):
            if not self._waiting or self._waiting[0][0] > now_ms:
                break
            job = heapq.heappop(self._waiting)[2]
            if job.retired or job.sync_folders:
                yield job
            else:
                together.setdefault(job.files, []).extend(job.folders)
        for files, folders in together.items():
            for first in range(0, len(folders), FOLDERS_IN_A_JOB):
                yield RemovalJob(files, folders=folders[first : first + FOLDERS_IN_A_JOB])

    def clock_set_back(self, back_ms: int) -> None:
        """Move the times of removals back with the clock, which was set back by so much."""
        # All by the same, so it stays a heap.
        self._waiting = [(at - back_ms, count, job) for at, count, job in self._waiting]
