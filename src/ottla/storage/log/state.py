"""The state of one partition's log: its fields, and every operation that changes them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.record.offset_set import OffsetRange
from ottla.storage.config import LogConfig
from ottla.storage.errors import LogOffline
from ottla.storage.files import Files
from ottla.storage.log.append import Append
from ottla.storage.log.deletions import Deletions, marks_from
from ottla.storage.log.leader_epochs import LeaderEpochs
from ottla.storage.log.producer_state import ProducerStates, Snapshot
from ottla.storage.segments.file import OpenFiles
from ottla.storage.segments.segment import FOREVER, NO_TIMESTAMP, Segment
from ottla.storage.segments.segments import Segments

if TYPE_CHECKING:
    from ottla.storage.compaction.swap import Compaction
    from ottla.storage.log.flush import FlushJob
    from ottla.storage.log.retention import Retired
    from ottla.storage.log.truncation import Truncation

logger = logging.getLogger(__name__)


class LogOwner:
    """What a log tells those who keep it. The default keeps nothing."""

    def became_dirty(self, log: LogState) -> None:
        """There was the first append since the last flush."""

    def wants_flush(self, log: LogState) -> None:
        """`flush.messages` is reached or a segment was sealed: do not wait for the timer."""

    def went_offline(self, log: LogState) -> None:
        """The log takes no more calls; `log.offline` says why."""

    def refused_append(self, log: LogState, error: OSError) -> None:
        """There is no room on the disk, or no descriptor: an append was refused, and the log is as it
        was."""

    def lower_offsets(self, log: LogState, offset: int) -> None:
        """Makes it last, before it returns, that neither the log's recovery point nor its start is
        above `offset`."""


class LogState:
    """The fields of a log, and the operations that change them.

    Nobody but the log itself (this class and those made from it) assigns a field: who flushes,
    truncates, recovers, compacts or retires asks for the operation by its name, and the operation
    keeps the invariants. tests/storage/log/test_log_owner.py holds everybody to it.

    Invariants: log_start_offset ≤ high_watermark ≤ log_end_offset; recovery_point ≤ log_end_offset;
    what lies below the recovery point has been synced. The last of `segments` is active and ends at
    log_end_offset. flushed_bytes ≤ appended_bytes. At most one flush and one compaction are under way,
    and either one append between its write and its commit or one truncation.
    """

    __slots__ = (
        "_after_max_ms",
        "_append_time",
        "_config",
        "_index_interval",
        "_largest_batch",
        "_pwrite",
        "_segment_bytes",
        "_writing",
        "active",
        "appended_bytes",
        "compaction",
        "deletions",
        "epochs",
        "files",
        "first_dirty_offset",
        "flush_at_offset",
        "flushed_bytes",
        "flushing",
        "folder",
        "folder_unsynced",
        "high_watermark",
        "log_end_offset",
        "log_start_offset",
        "metadata_unsynced",
        "name",
        "offline",
        "open_files",
        "owner",
        "partition",
        "pending_snapshots",
        "producers",
        "recovery_point",
        "retiring",
        "segments",
        "snapshot_bytes",
        "topic",
        "topic_id",
        "truncation",
        "unflushed_since",
    )

    def __init__(
        self,
        folder: str,
        topic: str,
        partition: int,
        topic_id: bytes | None,
        config: LogConfig,
        files: Files,
        open_files: OpenFiles,
        owner: LogOwner,
        producers: ProducerStates,
        epochs: LeaderEpochs,
        segments: Segments,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        first_dirty_offset: int = 0,
        deletions: Deletions | None = None,
    ) -> None:
        """For `create_log` and `load_log` (recovery/load.py), which know what is on disk."""
        self.folder = folder
        self.topic = topic
        self.partition = partition
        self.name = f"{topic}-{partition}"
        self.topic_id = topic_id
        self.files = files
        self.open_files = open_files
        self.owner = owner
        self.producers = producers
        self.epochs = epochs
        self.segments = segments
        self.active = segments.active
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.high_watermark = log_start_offset
        self.recovery_point = recovery_point
        # Why the log takes no more calls; None while it does.
        self.offline: str | None = None
        # Bytes appended in this life of the log; how many of them the flushes that were begun cover,
        # and the producer snapshots. The clock at the first append that no flush covers (0: none).
        self.appended_bytes = 0
        self.flushed_bytes = 0
        self.snapshot_bytes = 0
        self.unflushed_since = 0
        # partition.metadata was written but not synced, nor the folder's own name: so it is with a
        # log that was never flushed.
        self.metadata_unsynced = recovery_point == 0
        # A file was made whose name is not synced.
        self.folder_unsynced = False
        # Taken at rolls, to be written by the next flush.
        self.pending_snapshots: list[Snapshot] = []
        # Segments on their way out, whose files still have (or had) this log's names.
        self.retiring: list[Retired] = []
        # The flush that is under way: at most one.
        self.flushing: FlushJob | None = None
        # Compacted up to here, and being compacted: see compaction/swap.py.
        self.first_dirty_offset = first_dirty_offset
        self.compaction: Compaction | None = None
        # What marks hide; None if there never was one.
        self.deletions = deletions
        # The append between write and commit, or the truncation: at most one.
        self._writing: Append | Truncation | None = None
        # The truncation that is under way. Until it ends, the log is that thread's which runs it:
        # others read nothing but offsets and sizes.
        self.truncation: Truncation | None = None
        self._pwrite = files.pwrite
        self._apply(config)

    def __repr__(self) -> str:
        return f"<Log {self.name} {self.log_start_offset}..{self.log_end_offset}>"

    # Configuration and plain facts

    @property
    def config(self) -> LogConfig:
        return self._config

    def reconfigure(self, config: LogConfig) -> None:
        """Take over the topic's settings, with effect at once."""
        self._apply(config)

    def _apply(self, config: LogConfig) -> None:
        """Takes over what appends look at: the settings, the active segment, the recovery point."""
        self._config = config
        self._segment_bytes = config.segment_bytes
        self._largest_batch = min(config.max_message_bytes, config.segment_bytes)
        self._append_time = config.stamps_append_time
        self._after_max_ms = config.message_timestamp_after_max_ms
        self._index_interval = config.index_interval_bytes
        self.flush_at_offset = self.recovery_point + config.flushed_after
        active = self.active
        active.max_index_bytes = config.segment_index_bytes
        active.roll_after = FOREVER if not active.size else NO_TIMESTAMP - 1  # reckoned anew

    @property
    def size(self) -> int:
        """Bytes in all segments' log files."""
        return self.segments.size

    @property
    def last_stable_offset(self) -> int:
        """Readers of committed records stop here: ≤ high_watermark. Where records were deleted beyond
        the begin of an open transaction, it is the log's start."""
        unstable = self.producers.first_unstable_offset
        if unstable is None or unstable > self.high_watermark:
            return self.high_watermark
        return max(unstable, self.log_start_offset)

    def advance_high_watermark(self, offset: int) -> None:
        """Records below `offset` are on all in-sync replicas. It never moves back but by truncation,
        and never beyond the log's end."""
        if offset > self.high_watermark:
            self.high_watermark = min(offset, self.log_end_offset)
            if self.producers.first_unstable_offset is not None:
                self.producers.high_watermark_moved(self.high_watermark)

    # What recovery found

    def recovered(
        self,
        high_watermark: int,
        pending_snapshots: list[Snapshot],
        unsynced_bytes: int,
        replayed_bytes: int,
        now_ms: int,
    ) -> None:
        """Takes over what `load_log` found: the stored high watermark (brought between the log's start
        and end), snapshots that a flush has to write, the bytes after the recovery point, and how many
        bytes were read for the producers' sake, which a snapshot would spare the next start."""
        self.pending_snapshots = pending_snapshots
        self.appended_bytes = unsynced_bytes
        self.snapshot_bytes = unsynced_bytes - replayed_bytes
        if unsynced_bytes:
            self.folder_unsynced = True
            self.unflushed_since = now_ms
            self.owner.became_dirty(self)
        self.high_watermark = min(max(high_watermark, self.log_start_offset), self.log_end_offset)
        self.producers.high_watermark_moved(self.high_watermark)
        if self.deletions is not None:
            self.deletions.uncommitted(marks_from(self.segments, self.high_watermark))

    def identify(self, topic_id: bytes) -> None:
        """The id of the topic was not known, and has been stored in the folder."""
        assert self.topic_id is None
        self.topic_id = topic_id

    # Flushing (flush.py)

    def clock_stepped_back(self, now_ms: int) -> None:
        """Count the age of what is not flushed from now, should it seem to lie in the future."""
        self.unflushed_since = min(self.unflushed_since, now_ms)

    def take_pending_snapshots(self) -> list[Snapshot]:
        """Take the snapshots that are to be written, by whoever calls this."""
        snapshots, self.pending_snapshots = self.pending_snapshots, []
        return snapshots

    def flush_begun(self, job: FlushJob) -> None:
        """Count what the job covers as flushed from now on; the job keeps what `flush_taken_back`
        needs."""
        assert self.flushing is None
        job.bytes = self.appended_bytes - self.flushed_bytes
        job.since = self.unflushed_since
        job.had_unsynced = self.metadata_unsynced, self.folder_unsynced
        self.flushed_bytes = self.appended_bytes
        self.unflushed_since = 0
        self.metadata_unsynced = self.folder_unsynced = False
        self.flushing = job

    def flush_taken_back(self, job: FlushJob) -> None:
        """Have everything that the job covered flushed again: it never ran, or came to nothing."""
        assert self.flushing is job
        self.flushing = None
        self.flushed_bytes -= job.bytes
        self.unflushed_since = job.since or self.unflushed_since
        self.pending_snapshots[:0] = job.snapshots
        self.epochs.changed = self.epochs.changed or job.epochs is not None
        if job.deletions is not None and self.deletions is not None:
            self.deletions.changed = True
        metadata_unsynced, folder_unsynced = job.had_unsynced
        self.metadata_unsynced = self.metadata_unsynced or metadata_unsynced
        self.folder_unsynced = self.folder_unsynced or folder_unsynced
        self.owner.became_dirty(self)

    def flush_ended(self) -> None:
        """Forget the job, which ran; `flushed_to` says how far, if it succeeded."""
        self.flushing = None

    def flushed_to(self, offset: int) -> None:
        """Everything below `offset` has been synced: the recovery point moves up."""
        assert offset <= self.log_end_offset
        self.recovery_point = max(self.recovery_point, offset)
        self.flush_at_offset = self.recovery_point + self._config.flushed_after

    # Deletion of single records (deletions.py)

    def marked(self, offset: int, ranges: list[OffsetRange], now_ms: int) -> None:
        """The batch at `offset`, which was appended just now, marks these offsets as deleted."""
        if self.deletions is None:
            self.deletions = Deletions(self.folder)
        self.deletions.mark(offset, ranges, now_ms)
        self.deletions.committed_to(self.high_watermark)  # of earlier ones

    def start_stored(self, offset: int) -> None:
        """Take note that a checkpoint on disk has the log start at `offset`: which of the records before
        it were deleted need not be known any more, once their segments have gone. (Before that, a crash
        could bring them back. A segment with the log's start inside stays, and what was deleted in it is
        to be erased.) While the log is cut, its marks belong to another thread: the next checkpoint
        tells again."""
        if self.deletions is not None and self.truncation is None:
            first_on_disk = self.segments[0].base_offset
            self.deletions.forget_below(min(offset, self.log_start_offset, first_on_disk))

    # Truncation (truncation.py)

    def truncation_begun(self, truncation: Truncation) -> None:
        self.check_idle()
        self._writing = self.truncation = truncation

    def truncation_ended(self) -> None:
        self._writing = self.truncation = None

    def lower_offsets(self, offset: int) -> None:
        """Lower recovery point and start to `offset`: what lies there and after it is about to change on
        disk. (The start may be inside of a batch that goes as a whole.)"""
        self.recovery_point = min(self.recovery_point, offset)
        self.log_start_offset = min(self.log_start_offset, offset)

    def offsets_stay(self, recovery_point: int, start: int) -> None:
        """Nothing has changed on disk after all: they are what they were before `lower_offsets`."""
        self.recovery_point = recovery_point
        self.log_start_offset = start

    def detach_from(self, slot: int) -> list[Segment]:
        """Takes the segments from `slot` on out of the log, whose end `cut_to` or `restart_at` tells
        afterwards."""
        return self.segments.take_from(slot)

    def cut_to(self, end: int) -> None:
        """End the log at `end`. The records after it are gone, on disk and in the last segment, which
        takes appends again. (The start may have been inside of a batch that went as a whole.)"""
        self.active = self.segments.active
        self.log_end_offset = end
        self.log_start_offset = min(self.log_start_offset, end)
        self.high_watermark = min(self.high_watermark, end)
        self.recovery_point = min(self.recovery_point, end)
        self.pending_snapshots = []
        self._apply(self._config)

    def restart_at(self, offset: int, segment: Segment) -> None:
        """Go on at `offset`, in this segment: no record is left, nor another segment."""
        assert not len(self.segments)
        assert segment.base_offset == offset
        self.segments.add(segment)
        self.active = segment
        self.deletions = None
        self.log_start_offset = self.log_end_offset = offset
        self.high_watermark = self.recovery_point = offset
        self.pending_snapshots = []
        self._apply(self._config)

    # Retention (retention.py)

    def raise_start(self, offset: int) -> None:
        """Start the log at `offset`: the records below it are gone for good."""
        assert self.log_start_offset <= offset <= self.high_watermark
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        self.producers.truncate_head(offset)

    def detach_oldest(self, count: int) -> list[Segment]:
        """Takes the first segments out of the log, which starts after them from now on."""
        assert count < len(self.segments)
        segments = self.segments.take_first(count)
        for segment in segments:
            segment.close()
        self.raise_start(max(self.log_start_offset, self.segments[0].base_offset))
        return segments

    def retire(self, retired: Retired) -> None:
        """Segments that were detached, whose files still have this log's names."""
        self.retiring = [other for other in self.retiring if not other.done] + [retired]

    # Compaction (compaction/swap.py)

    def compaction_begun(self, compaction: Compaction) -> None:
        assert self.compaction is None, f"{self.name} is being compacted"
        self.compaction = compaction

    def compaction_ended(self, first_dirty: int | None = None) -> None:
        """Forget the compaction, which is over; with an offset, the log is clean up to there."""
        self.compaction = None
        if first_dirty is not None:
            self.first_dirty_offset = first_dirty

    def lower_first_dirty(self, offset: int) -> int:
        """Count what lies at and after `offset` as not compacted; returns where compaction goes on."""
        self.first_dirty_offset = min(offset, self.first_dirty_offset)
        return self.first_dirty_offset

    def replace_segments(self, old: Sequence[Segment], new: Segment) -> None:
        """A compacted segment in the place of sealed ones that follow each other."""
        assert self.active not in old
        self.segments.replace(self.segments.slot_of(new.base_offset), len(old), new)

    # Going offline

    def check_online(self) -> None:
        if self.offline is not None:
            raise LogOffline(self.name, self.offline)

    @property
    def is_busy(self) -> bool:
        """An append is on its way to its commit, or the log is being truncated."""
        return self._writing is not None

    def check_idle(self) -> None:
        """Online, and neither an append nor a truncation is under way."""
        if self.offline is not None or self._writing is not None:
            raise self._not_ready()

    def go_offline(self, reason: str) -> LogOffline:
        """Takes no more calls from now on; the error to raise."""
        if self.offline is None:
            self.offline = reason
            logger.error("%s is offline: %s", self.name, reason)
            self.owner.went_offline(self)
        return LogOffline(self.name, self.offline)

    def _not_ready(self) -> Exception:
        if self.offline is not None:
            return LogOffline(self.name, self.offline)
        return RuntimeError(f"{self.name}: an append or a truncation is under way")

    def leave_folder(self) -> None:
        """Open or make no file by the folder's name any more, which it is about to lose; not even for an
        append that a thread is writing."""
        if self._writing is not None and self.truncation is None:
            self.open_files.forbid(self._writing.segment)  # type: ignore[union-attr]
        for segment in self.segments:
            self.open_files.forbid(segment)

    def give_up(self, reason: str) -> None:
        """Take no more calls: the log is no longer this broker's (deleted, set aside). Nothing has
        failed, so the owner is not told."""
        self.offline = reason
