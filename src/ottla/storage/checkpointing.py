"""When the checkpoints of the data folders are stored, and what they say of the logs in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla.storage.folders import CheckpointJob, Checkpoints, DataFolder, Key
from ottla.storage.log.log import Log


class Checkpointing:
    """The checkpoints of several folders. What is where, and loaded, is the business of `Logs`, whose
    dictionaries these are."""

    def __init__(
        self,
        folders: Sequence[DataFolder],
        places: Mapping[Key, DataFolder],
        loaded: Mapping[Key, Log],
        missing: Mapping[Key, DataFolder],
    ) -> None:
        self._folders = folders
        self._places = places
        self._loaded = loaded
        # Their lines stay, so that the next start misses them too.
        self._missing = missing
        # Folders whose checkpoints are being stored, and when that was last begun.
        self._running: set[DataFolder] = set()
        self._begun_ms: dict[DataFolder, int] = {}

    def due(self, now_ms: int, interval_ms: int) -> list[CheckpointJob]:
        """Jobs for the folders in which something has changed, and that have waited for so long."""
        return [
            self._begin(folder, now_ms)
            for folder in self._idle()
            if folder.changed and now_ms - self._begun_ms.get(folder, 0) >= interval_ms
        ]

    def all(self, now_ms: int) -> list[CheckpointJob]:
        """Jobs for all folders that have none under way."""
        return [self._begin(folder, now_ms) for folder in self._idle()]

    def _idle(self) -> list[DataFolder]:
        return [
            folder
            for folder in self._folders
            if folder.offline is None and folder not in self._running
        ]

    def _begin(self, folder: DataFolder, now_ms: int) -> CheckpointJob:
        self._running.add(folder)
        self._begun_ms[folder] = now_ms
        return self.collect(folder)

    def collect(self, folder: DataFolder) -> CheckpointJob:
        """A job that stores the offsets of a folder as they are now."""
        return folder.checkpoint(self.offsets(folder))

    def finish(self, job: CheckpointJob) -> None:
        """Takes a job back that ran."""
        self._running.discard(job.folder)
        if job.error is not None:
            job.folder.changed = True
            return
        for key, start in job.folder.stored.start_offsets.items():
            log = self._loaded.get(key)
            if log is not None and self._places.get(key) is job.folder:
                log.start_stored(start)

    def clock_set_back(self, back_ms: int) -> None:
        """Move the times that were noted back with the clock, which was set back by so much."""
        for folder in self._begun_ms:
            self._begun_ms[folder] -= back_ms

    def offsets(self, folder: DataFolder, before_close: bool = False) -> Checkpoints:
        """What a folder's checkpoints should say; logs at offset 0 need no line. Fingerprints of
        segments are taken at a clean shutdown only, and believed after one only."""
        stored = folder.stored
        recovery_points: dict[Key, int] = {}
        start_offsets: dict[Key, int] = {}
        high_watermarks: dict[Key, int] = {}
        first_dirty_offsets: dict[Key, int] = {}
        fingerprints: dict[Key, int] = {}
        deletion_ends: dict[Key, int] = {}
        for key, place in (*self._places.items(), *self._missing.items()):
            if place is not folder:
                continue
            log = self._loaded.get(key)
            if log is None:
                recovery_point = stored.recovery_points.get(key, 0)
                start = stored.start_offsets.get(key, 0)
                high_watermark = stored.high_watermarks.get(key, 0)
                first_dirty = stored.first_dirty_offsets.get(key, 0)
                fingerprint = stored.fingerprints.get(key, 0)
                deletion_end = stored.deletion_ends.get(key, 0)
            else:
                recovery_point = log.recovery_point
                start = log.log_start_offset
                high_watermark = log.high_watermark
                first_dirty = log.first_dirty_offset
                fingerprint = (
                    log.segments.fingerprint() if before_close else stored.fingerprints.get(key, 0)
                )
                deletion_end = 0 if log.deletions is None else log.deletions.stored_end
            if recovery_point:
                recovery_points[key] = recovery_point
            if start:
                start_offsets[key] = start
            if high_watermark:
                high_watermarks[key] = high_watermark
            if first_dirty:
                first_dirty_offsets[key] = first_dirty
            if fingerprint:
                fingerprints[key] = fingerprint
            if deletion_end:
                deletion_ends[key] = deletion_end
        return Checkpoints(
            recovery_points,
            start_offsets,
            high_watermarks,
            first_dirty_offsets,
            fingerprints,
            deletion_ends,
        )
