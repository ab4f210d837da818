"""Removing files off the loop: segments that retention let go of, and the folders of deleted topics."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Sequence

from ottla.storage.files import Files
from ottla.storage.folders import CheckpointJob, DataFolder
from ottla.storage.retention import Retired


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
        """Never raises; `error` tells."""
        try:
            for retired in self.retired:
                retired.remove()
            for folder in self.folders:
                try:
                    # The new name first: half of its files under the old one would be taken for a
                    # log after a power loss.
                    self.files.fsync_folder(os.path.dirname(folder))
                    self.files.remove_tree(folder)
                except FileNotFoundError:
                    pass
            for folder in self.sync_folders:
                self.files.fsync_folder(folder)
        except OSError as error:
            self.error = error


class Removals:
    """Removals that wait for their time."""

    def __init__(self) -> None:
        # (clock at which it is due, tie breaker, job)
        self._waiting: list[tuple[int, int, RemovalJob]] = []
        self._count = 0

    def add(self, at_ms: int, job: RemovalJob) -> None:
        """To be done at this time, or later."""
        self._count += 1
        heapq.heappush(self._waiting, (at_ms, self._count, job))

    def due(self, now_ms: int) -> Iterator[RemovalJob]:
        """Those whose time has come; they wait no longer."""
        while self._waiting and self._waiting[0][0] <= now_ms:
            yield heapq.heappop(self._waiting)[2]

    def forgive_the_clock(self, back_ms: int) -> None:
        """The clock was set back: what was to happen in a while happens in the same while."""
        # All by the same, so it stays a heap.
        self._waiting = [(at - back_ms, count, job) for at, count, job in self._waiting]
