"""Making a log last: what a flush has to sync, and in which order.

The order is the promise. Data first; then index files, so that an entry on disk never points beyond
the data; then producer snapshots, leader epochs and deletions, which describe the data; then the
names of new files. Only when all of it returned does the recovery point move, and later the checkpoint
that recovery reads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ottla.logfiles.deletions import DeletionsSnapshot, encode_deletions
from ottla.logfiles.names import PARTITION_METADATA
from ottla.storage.errors import TRANSIENT, passes
from ottla.storage.files import READ_ONLY, Files
from ottla.storage.index.entries import Index
from ottla.storage.log.producer_state import Snapshot
from ottla.storage.segments.file import SegmentFile

if TYPE_CHECKING:
    from ottla.storage.log.log import Log
    from ottla.storage.segments.segment import Segment

# The unflushed tail of a log stays below the larger of the two: what recovery has to read.
FLUSH_BYTES = 64 * 1024 * 1024
FLUSH_AFTER_MS = 5_000
# A log at rest is flushed some time, so that a later crash finds nothing to recover.
FLUSH_QUIET_MS = 60_000
# A producer snapshot saves the next start from reading so much again, header by header.
SNAPSHOT_BYTES = 16 * 1024 * 1024
CLOSING_SNAPSHOT_BYTES = 256 * 1024
# From so many logs on they are flushed together when the broker stops: see run_all.
TOGETHER_FROM = 64
# The index files of a smaller log need not be there when it is opened again: one read replaces them.
INDEX_WORTH_BYTES = 4096


class FlushJob:
    """One flush of one log: made on the log's thread by `Log.flush_begin`, `run` on any other,
    taken back by `Log.flush_end`. Runs at most once."""

    __slots__ = (
        "_cancelled",
        "_lock",
        "bytes",
        "data",
        "deletions",
        "done",
        "epochs",
        "error",
        "files",
        "folders",
        "had_unsynced",
        "indexes",
        "log",
        "mid_segment_snapshot",
        "offset",
        "segments",
        "since",
        "snapshots",
        "started_ms",
        "sync_failed",
        "sync_paths",
    )

    def __init__(self, log: Log, files: Files, offset: int, started_ms: int) -> None:
        self.log = log
        self.files = files
        # The recovery point afterwards.
        self.offset = offset
        self.started_ms = started_ms
        # Bytes of log data that this flush covers.
        self.bytes = 0
        # What is given back to the log if this never runs.
        self.since = 0
        self.had_unsynced = (False, False)
        self.segments: list[tuple[Segment, int, bool]] = []  # with size, and whether it was sealed
        self.data: list[tuple[SegmentFile, int | None]] = []  # with a size to cut to, if any
        self.indexes: list[tuple[Index, int]] = []  # with how many changes that covers
        self.snapshots: list[Snapshot] = []
        self.mid_segment_snapshot = False
        self.epochs: tuple[str, bytes] | None = None
        self.deletions: tuple[str, DeletionsSnapshot] | None = None
        self.sync_paths: list[str] = []
        self.folders: list[str] = []
        # What went wrong; a sync that failed proves that data was lost, so it is never repeated.
        self.error: OSError | None = None
        self.sync_failed = False
        # Ran to its end, with or without an error. A job that was cancelled never runs.
        self.done = False
        self._cancelled = False
        self._lock = threading.Lock()

    def run(self, names_last: bool = False) -> None:
        """The system calls. Never raises; `error` tells. `names_last`: all that this job is about was
        made to last together with the rest of its file system, see `only_syncs`. Then the data is
        synced once more, which costs little and is the one way to be sure that none was lost."""
        with self._lock:
            if self._cancelled or self.done:
                return
            try:
                if names_last:
                    for file, _ in self.data:
                        self._sync_written(file)
                else:
                    self.log.open_files.reserve.use(self._sync)
            except OSError as error:
                self.error = error
            finally:
                self.done = True

    @property
    def only_syncs(self) -> bool:
        """Whether there is nothing to write, only files to sync."""
        cuts = any(cut_to is not None for _, cut_to in self.data)
        return not (cuts or self.snapshots or self.epochs or self.deletions)

    def stop(self) -> None:
        """Waits for the job if it runs; if it has not begun, it never will. `done` tells."""
        with self._lock:
            self._cancelled = True

    @property
    def may_be_repeated(self) -> bool:
        """Whether it failed for want of descriptors, memory or room, and not in a sync of data: then
        everything that it covers can be flushed again."""
        error = self.error
        return error is not None and not self.sync_failed and passes(error)

    def _sync_written(self, file: SegmentFile) -> None:
        with self._watched():
            self.files.fsync(file.fd)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Note if a sync of what was written before fails in this block. (What is written here as a
        whole can be written again.)"""
        try:
            yield
        except OSError as error:
            # A disk that was found full only now may have dropped what it had taken before.
            self.sync_failed = error.errno not in TRANSIENT
            raise

    def _sync(self) -> None:
        """Do the job's writes and syncs; may be run again from its beginning, unless a sync failed."""
        files = self.files
        for file, cut_to in self.data:
            if cut_to is not None:
                files.truncate(file.fd, cut_to)
            self._sync_written(file)
        for index, _ in self.indexes:
            try:
                with self._watched():
                    index.sync()
            except FileNotFoundError:
                pass  # it was never loaded, so nothing of it was pending
        for snapshot in self.snapshots:
            snapshot.write(files)
        if self.epochs is not None:
            files.replace_file(*self.epochs)
        if self.deletions is not None:
            path, deleted = self.deletions
            files.replace_file(path, *encode_deletions(deleted))
        for path in self.sync_paths:
            try:
                fd = files.open(path, READ_ONLY)
            except FileNotFoundError:
                continue  # lost in a crash before; whoever knows the topic writes it again
            try:
                files.fsync(fd)
            finally:
                files.close(fd)
        for folder in self.folders:
            files.fsync_folder(folder)


def due(log: Log, now_ms: int) -> bool:
    """Whether there is unflushed data that is too much or too old."""
    if log.offline is not None or log.flushing is not None or log.truncation is not None:
        return False
    if log.pending_snapshots:
        return True  # a segment was sealed
    if not log.unflushed_since:
        return False
    if log.unflushed_since > now_ms:
        log.clock_stepped_back(now_ms)
    age = now_ms - log.unflushed_since
    if age >= log.config.flush_ms or log.log_end_offset >= log.flush_at_offset:
        return True
    if log.appended_bytes - log.flushed_bytes >= FLUSH_BYTES:
        return age >= FLUSH_AFTER_MS
    return age >= FLUSH_QUIET_MS


def begin(log: Log, now_ms: int, before_close: bool) -> FlushJob | None:
    """See Log.flush_begin. What the job takes from the log counts as flushed from now on, and is
    given back if it never runs."""
    if log.offline is not None or log.flushing is not None or log.truncation is not None:
        return None
    if not (
        before_close
        or log.unflushed_since
        or log.recovery_point < log.log_end_offset
        or log.pending_snapshots
        or log.epochs.changed
        or (log.deletions is not None and log.deletions.changed)
        or log.metadata_unsynced
        or log.folder_unsynced
    ):
        return None
    job = FlushJob(log, log.files, log.log_end_offset, now_ms)
    try:
        for slot in range(len(log.segments) - 1, -1, -1):
            segment = log.segments[slot]
            if segment.settled:
                break
            if segment.on_disk:
                _cover(job, segment, before_close)
    except OSError as error:
        if not passes(error):
            log.go_offline(f"flush failed: {error}")
        return None  # index entries that could not be written are pending as before
    unsaved = log.appended_bytes - log.snapshot_bytes
    if unsaved >= (CLOSING_SNAPSHOT_BYTES if before_close else SNAPSHOT_BYTES):
        log.take_snapshot()
        job.mid_segment_snapshot = True
    job.snapshots = log.take_pending_snapshots()
    if not (before_close and _tells_epochs(log)):
        epochs = log.epochs.take_changes()
        if epochs is not None:
            job.epochs = log.epochs.path, epochs
    deletions = log.deletions
    if deletions is not None and deletions.changed:
        job.deletions = deletions.path, deletions.snapshot(log.log_end_offset)
        deletions.changed = False
    if log.metadata_unsynced:
        job.sync_paths.append(f"{log.folder}/{PARTITION_METADATA}")
        job.folders = [log.folder, os.path.dirname(log.folder)]
    elif log.folder_unsynced or any(index.may_be_new for index, _ in job.indexes):
        job.folders = [log.folder]
    if not (job.data or job.indexes or job.snapshots or job.epochs or job.deletions or job.folders):
        log.flush_begun(job)
        log.flush_ended()
        log.flushed_to(job.offset)
        return None
    log.flush_begun(job)
    return job


def _tells_epochs(log: Log) -> bool:
    """Whether the log's next opening finds its leader epochs without a file: the log is so small that
    all of it is read, each epoch begins with a batch that is there, and no file says otherwise."""
    active = log.active
    return (
        not log.epochs.has_file
        and len(log.segments) == 1
        and 0 < active.size < INDEX_WORTH_BYTES
        and all(start >= active.base_offset for _, start in log.epochs.entries())
    )


def run_all(
    jobs: Sequence[FlushJob],
    sync_file_system: Callable[[], bool],
    pool: ThreadPoolExecutor,
    together_from: int,
) -> None:
    """Runs the jobs of all logs on one file system; returns when all are done. Where there are many
    of them, one sync of everything takes the place of that of each folder and each small file."""
    together: set[FlushJob] = set()
    if len(jobs) >= together_from and sync_file_system():
        together = {job for job in jobs if job.only_syncs}
    for _ in pool.map(lambda job: job.run(names_last=job in together), jobs):
        pass


def _cover(job: FlushJob, segment: Segment, before_close: bool) -> None:
    """Takes a segment that is not settled into the job; writes its pending index entries."""
    last = segment.sealed or before_close
    if segment.unsynced or (last and segment.padded):
        job.data.append((segment.file(), segment.size if last and segment.padded else None))
    if segment.sealed or (before_close and segment.size >= INDEX_WORTH_BYTES):
        segment.finish_time_index()
        indexes = list(segment.indexes)
    else:
        indexes = segment.indexes_in_use
    for index in indexes:
        index.write()
        # A sync costs the disk a round trip, also of a file that has not changed.
        if index.changes > index.synced_changes:
            job.indexes.append((index, index.changes))
    job.segments.append((segment, segment.size, segment.sealed))


def end(log: Log, job: FlushJob) -> None:
    """Takes the result of a flush that ran, as `Log.flush_end` says."""
    if log.flushing is not job:
        return  # it was taken back by stop
    if not job.done or job.may_be_repeated:
        log.flush_taken_back(job)
        return
    error = job.error
    if error is None:
        error = next((each.sync_error for each, _, _ in job.segments if each.sync_error), None)
    if error is None:
        try:
            # Oldest first: the next flush looks no further back than to one that is settled.
            for segment, size, sealed in reversed(job.segments):
                segment.synced_size = max(segment.synced_size, size)
                if sealed:
                    segment.settle()
            for index, changes in job.indexes:
                index.synced(changes, bool(job.folders))
            if job.mid_segment_snapshot:
                bases = (segment.base_offset for segment in log.segments)
                log.producers.remove_stray_snapshots(bases)
        except OSError as settling:
            if passes(settling):
                log.flush_taken_back(job)
                return
            error = settling
    log.flush_ended()
    if error is not None:
        log.go_offline(f"flush failed: {error}")
        return
    if job.deletions is not None and log.deletions is not None:
        log.deletions.stored(job.deletions[1].end_offset)
    log.flushed_to(job.offset)


def stop(log: Log) -> None:
    """End the flush that is under way, if any: one that runs is waited for, one that waits is taken
    back."""
    job = log.flushing
    if job is not None:
        job.stop()
        end(log, job)
