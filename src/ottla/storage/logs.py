"""All logs of a broker, over one or several data folders.

After a clean shutdown a log is loaded when it is first touched; until then only its name is known,
and what the checkpoints say. After a crash all logs of the folder are recovered before the broker
serves.

No thread is started here but at `open` and `close`. The server calls `due` on a timer, runs the jobs
that it gets on threads and hands each back to `finish`:

    for job in logs.due(now_ms):        # on the loop
        await run_in_thread(job.run)    # never raises
        logs.finish(job)                # on the loop

and, more rarely, steps through `retention`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from ottla.logfiles.names import DELETE_SUFFIX, FUTURE_SUFFIX, LOG_SUFFIX, STRAY_SUFFIX
from ottla.storage import runs
from ottla.storage.errors import (
    DuplicateLog,
    FolderOffline,
    LogOffline,
    OutOfResources,
    StorageError,
    passes,
)
from ottla.storage.folders import CheckpointJob, DataFolder, Key, key_of_folder
from ottla.storage.log import flush
from ottla.storage.log.flush import CLOSING_SNAPSHOT_BYTES, FlushJob
from ottla.storage.log.log import Log
from ottla.storage.log.retention import Retired
from ottla.storage.places import PlacedLogs, now_in_ms
from ottla.storage.relocation import COMPLETE
from ottla.storage.removal import RemovalJob, RetireJob

logger = logging.getLogger(__name__)

__all__ = ["Job", "Logs", "now_in_ms"]

Job: TypeAlias = FlushJob | CheckpointJob | RetireJob | RemovalJob

# A flush of logs at rest may wait; so many of them begin at once.
FLUSHES_AT_ONCE = 64
# What failed for want of descriptors, memory or room is tried again after this time.
RETRY_MS = 10_000


class Logs(PlacedLogs):
    """The logs by topic and partition, and the work that keeps them in order."""

    # Start and stop

    def open(self) -> None:
        """Takes the folders in. Blocks: after a crash it recovers, in threads, in a time proportional
        to what was not flushed.

        A folder that cannot be read is offline and the others serve; FolderOffline if none is left.
        FolderLocked, DuplicateLog: the broker must not start.
        """
        now_ms = self._clock()
        interrupted: list[tuple[DataFolder, str]] = []
        moved: set[Key | None] = set()
        try:
            for folder in self.folders:
                try:
                    names = folder.open()
                except OSError as error:
                    folder.offline = str(error)
                    logger.error("data folder %s is offline: %s", folder.path, error)
                    continue
                for name in names:
                    if name.endswith((DELETE_SUFFIX, STRAY_SUFFIX)):
                        moved.add(key_of_folder(name.rpartition(".")[0]))
                    if name.endswith((DELETE_SUFFIX, FUTURE_SUFFIX)):
                        interrupted.append((folder, name))
                    else:
                        self._found(folder, name)
            # Unless the copy, or what was copied, may lie in a folder that cannot be read.
            if all(folder.offline is None for folder in self.folders):
                for folder, name in interrupted:
                    self._found_interrupted(folder, name, now_ms)
        except StorageError:
            self._unlock()
            raise
        if all(folder.offline is not None for folder in self.folders):
            self._unlock()
            failed = self.folders[0]
            raise FolderOffline(failed.path, failed.offline or "")
        for folder in self.folders:
            for key in {**folder.stored.recovery_points, **folder.stored.high_watermarks}:
                # One that was deleted or set aside may still be named after a crash.
                if key not in self._places and key not in moved:
                    self._missing[key] = folder
        unclean = [key for key, folder in self._places.items() if not folder.clean]
        if unclean:
            logger.info("recovering %d logs", len(unclean))
            with ThreadPoolExecutor(self._recovery_threads, "recovery") as pool:
                for _ in pool.map(self._load_quietly, unclean):
                    pass

    def _found(self, folder: DataFolder, name: str) -> None:
        key = key_of_folder(name)
        if key is None:
            return
        other = self._places.get(key)
        if other is not None:
            raise DuplicateLog(name, (other.path, folder.path))
        self._places[key] = folder
        folder.partitions += 1

    def _found_interrupted(self, folder: DataFolder, name: str, now_ms: int) -> None:
        """End what a stop interrupted. The files of a deleted log are removed. The copy of a log that
        was on its way to this folder (relocation.py) takes its place if it was to, else it is
        removed."""
        path = f"{folder.path}/{name}"
        if name.endswith(DELETE_SUFFIX):
            self._removals.add(now_ms, RemovalJob(self.files, folders=[path]))
            return
        try:
            key = key_of_folder(self.files.read_file(f"{path}/{COMPLETE}").decode())
        except (FileNotFoundError, UnicodeDecodeError):
            key = None
        if key is None or key in self._places:
            self._removals.add(now_ms, RemovalJob(self.files, folders=[path]))
            return
        self.files.rename(path, folder.log_path(key))
        self.files.fsync_folder(folder.path)
        self._places[key] = folder
        folder.partitions += 1

    @property
    def was_clean(self) -> bool:
        """Whether all folders were shut down cleanly before this start."""
        return all(folder.clean for folder in self.folders)

    @property
    def may_have_lost_records(self) -> bool:
        """Whether records that were acknowledged may be gone: the last shutdown was not clean, and
        the machine was started anew since (or a folder cannot be read)."""
        return any(
            folder.offline is not None or not (folder.clean or folder.same_boot)
            for folder in self.folders
        )

    @property
    def missing(self) -> list[Key]:
        """Topic and partition of logs with records that should be here and are not: their folders were
        removed. (Logs of topics that were deleted long ago may be among them after a crash.)"""
        return list(self._missing)

    def forget_missing(self, topic: str, partition: int) -> None:
        """Expect a log here no longer: its topic is not this broker's any more."""
        folder = self._missing.pop((topic, partition), None)
        if folder is not None:
            folder.changed = True

    def mark_running(self) -> None:
        """Note in the folders that a broker runs with them, once the cluster knows what they may have
        lost. OSError."""
        for folder in self.folders:
            if folder.offline is None:
                folder.mark_running()

    @property
    def folder_ids(self) -> str:
        """Names the data folders together; other ones have other data."""
        return ",".join(folder.directory_id for folder in self.folders)

    def begin_run(self, last: str) -> None:
        """Names this run of the broker, and notes it in the folders before the cluster hears of it.
        `last` is the run that the cluster knows of. Blocks."""
        in_use = [folder for folder in self.folders if folder.offline is None]
        # A folder that belongs to nobody yet is new: it need not know anything.
        former = runs.known_to_all([each.runs for each in in_use if each.cluster_id is not None])
        names = runs.with_next(former, last)
        try:
            for folder in in_use:
                folder.note_runs(names)
        except OSError as error:
            # No room, perhaps. Then the cluster is told nothing of runs, and an old copy of these
            # folders is not found out until the broker has been started once more.
            logger.warning("this run is not noted in %s: %s", folder.path, error)
            return
        self.former_runs, self.run = former, names[-1]

    def close(
        self,
        broker_epoch: int = -1,
        threads: int = 8,
        together_from: int = flush.TOGETHER_FROM,
    ) -> None:
        """Flushes everything (blocking, in threads), stores the checkpoints and marks the folders as
        cleanly shut down. Whatever fails leaves its folder unmarked, for recovery to look at."""
        now_ms = self._clock()
        jobs: dict[DataFolder, list[FlushJob]] = {folder: [] for folder in self.folders}
        for key, log in list(self._loaded.items()):
            if log.flushing is not None:
                log.flushing.run()
                log.flush_end(log.flushing)
            if (
                log in self._dirty
                or log.active.padded
                or log.recovery_point < log.log_end_offset
                or log.appended_bytes - log.snapshot_bytes >= CLOSING_SNAPSHOT_BYTES
            ):
                job = log.flush_begin(now_ms, before_close=True)
                if job is not None:
                    jobs[self._places[key]].append(job)
        with ThreadPoolExecutor(threads, "flush") as pool:
            for folder, of_folder in jobs.items():
                flush.run_all(of_folder, folder.sync_file_system, pool, together_from)
        for of_folder in jobs.values():
            for job in of_folder:
                job.log.flush_end(job)
        # What a log left behind that failed in this life has to be recovered at the next start.
        unclean = {self._places[key] for key in (*self._broken, *self._unrecovered)}
        for key, log in self._loaded.items():
            log.close()
            if log.offline is not None or log.recovery_point < log.log_end_offset:
                unclean.add(self._places[key])
        for folder in self.folders:
            if folder.offline is not None:
                continue
            try:
                folder.store_now(self._checkpoints.offsets(folder, before_close=True))
                if folder not in unclean:
                    folder.mark_clean(broker_epoch)
            except OSError as error:
                logger.error("data folder %s is not marked as clean: %s", folder.path, error)
        self._unlock()
        self._loaded.clear()
        self._places.clear()
        self._dirty.clear()

    def _unlock(self) -> None:
        for folder in self.folders:
            folder.unlock()

    # Work

    def due(self, now_ms: int) -> list[Job]:
        """What should be done now: flushes, checkpoints, removals. See the module's docstring."""
        jobs: list[Job] = []
        self._follow_clock_set_back(now_ms)
        jobs += self._due_flushes(now_ms)
        jobs += self._checkpoints.due(now_ms, self.checkpoint_interval_ms)
        jobs += self._removals.due(now_ms)
        return jobs

    def _due_flushes(self, now_ms: int) -> list[FlushJob]:
        jobs: list[FlushJob] = []
        crowded = self.open_files.crowded
        for log in list(self._dirty):
            if len(jobs) >= FLUSHES_AT_ONCE:
                break
            if log.offline is not None:
                del self._dirty[log]
            elif log.flushing is None and (crowded or log.due_for_flush(now_ms)):
                job = self.flush_now(log, now_ms)
                if job is not None:
                    jobs.append(job)
        return jobs

    def flush_now(self, log: Log, now_ms: int) -> FlushJob | None:
        """A job that flushes one log, whether it is due or not; None if there is nothing to do."""
        self._dirty.pop(log, None)
        job = log.flush_begin(now_ms)
        # One is under way, or it could not be begun for want of descriptors or room.
        has_more = log.flushing is not None or log.unflushed_since or log.pending_snapshots
        if job is None and log.offline is None and has_more:
            self._dirty[log] = None
        return job

    def checkpoint(self, now_ms: int) -> list[CheckpointJob]:
        """Jobs that store all checkpoints."""
        self._follow_clock_set_back(now_ms)
        return self._checkpoints.all(now_ms)

    def finish(self, job: Job) -> None:
        """Takes a job back that ran."""
        if isinstance(job, FlushJob):
            log = job.log
            log.flush_end(job)
            folder = self._places.get((log.topic, log.partition))
            if folder is not None and job.error is not None and job.may_be_repeated:
                self._folder_failed(folder, job.error)
            if self.open_files.crowded:
                self.open_files.trim()
            if folder is not None:
                folder.changed = True
            if log.unflushed_since or log.pending_snapshots:
                self._dirty.setdefault(log)
        elif isinstance(job, CheckpointJob):
            self._checkpoints.finish(job)
            if job.error is not None:
                self._folder_failed(job.folder, job.error)
        elif isinstance(job, RetireJob):
            if job.error is not None:
                job.folder.changed = True
                self._folder_failed(job.folder, job.error)
            for retired in job.retired:
                removal = RemovalJob(self.files, retired=[retired])
                self._removals.add(self._now() + retired.delay_ms, removal)
        elif job.error is not None:
            if passes(job.error):
                self._removals.add(self._now() + RETRY_MS, job)
                job.error = None
            else:
                # Files that could not be removed are removed at the next start.
                logger.warning("removal failed: %s", job.error)

    # Compaction (compaction/swap.py)

    def synced_end(self, log: Log) -> int:
        """The offset up to which the log was synced, as the folder's checkpoint has it."""
        key = (log.topic, log.partition)
        folder = self._places.get(key)
        return 0 if folder is None else folder.stored.recovery_points.get(key, 0)

    def compacted(self, log: Log, retired: Sequence[Retired]) -> None:
        """Have the files of segments that compaction replaced removed after their delay, and the
        checkpoint stored: a pass over the log came to its end, or was broken off."""
        folder = self._places.get((log.topic, log.partition))
        if folder is not None:
            folder.changed = True
        for each in retired:
            self._removals.add(self._now() + each.delay_ms, RemovalJob(self.files, retired=[each]))

    def may_have_gaps(self, key: Key) -> bool:
        """Whether compaction may have left gaps between the segments of a log."""
        log = self._loaded.get(key)
        folder = self._places.get(key)
        first_dirty = 0 if folder is None else folder.stored.first_dirty_offsets.get(key, 0)
        if log is not None:
            first_dirty = log.first_dirty_offset
        return first_dirty > 0 or self._config_of(key[0]).compacts

    # Looking over logs that nobody has used yet

    def survey(self) -> Iterator[None]:
        """Load the logs that have several segments, one a step, after the start, so that it is said
        which of them lack one. (After a crash all have been loaded.)"""
        for key, folder in list(self._places.items()):
            if (
                self._places.get(key) is folder
                and folder.offline is None
                and key not in self._loaded
                and key not in self._broken
                and self.is_known(key, None)
                and self._segment_count(folder.log_path(key)) > 1
            ):
                self._load_quietly(key)
            yield

    # Retention

    def retention(self, now_ms: int) -> Iterator[RetireJob | None]:
        """Goes through all logs, one a step, so that the caller can do other things between; gives a
        job for those of which segments go."""
        for key, folder in list(self._places.items()):
            if self._places.get(key) is not folder or folder.offline is not None:
                continue
            if not self.is_known(key, None):
                continue
            yield self._retire(key, folder, now_ms)

    def _retire(self, key: Key, folder: DataFolder, now_ms: int) -> RetireJob | None:
        log = self._loaded.get(key)
        try:
            if log is None:
                if key in self._broken or not self._segment_count(folder.log_path(key)):
                    return None
                log = self._load(key)
            if log.is_busy:
                return None  # the next round comes soon enough
            if not self.is_known(key, log.topic_id):
                return None
            retired = log.delete_old_segments(now_ms)
        except LogOffline:
            return None
        except (OSError, OutOfResources) as error:
            logger.warning("retention of %s-%d: %s", *key, error)
            return None
        if retired is None:
            return None
        folder.changed = True
        return RetireJob(folder, self._checkpoints.collect(folder), [retired])

    def _segment_count(self, path: str) -> int:
        """How many segments are in a log's folder; 0 if it cannot be read: who needs the log finds
        out."""
        try:
            return sum(name.endswith(LOG_SUFFIX) for name in self.files.names(path))
        except OSError:
            return 0

    def expire_producers_after(self, milliseconds: int) -> None:
        """Take over a changed `producer.id.expiration.ms`."""
        self.producer_expiration_ms = milliseconds
        for log in self._loaded.values():
            log.producers.expiration_ms = milliseconds

    def expire_producers(self, now_ms: int) -> int:
        """Forgets producers that have been silent for long; their number."""
        return sum(
            log.producers.expire(now_ms)
            for log in self._loaded.values()
            if log.producers.producers and log.truncation is None
        )
