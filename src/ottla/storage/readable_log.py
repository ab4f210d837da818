"""The state of one partition's log, and all that only reads it."""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

from ottla.storage.append import Append
from ottla.storage.config import LogConfig
from ottla.storage.errors import (
    CorruptFile,
    CorruptIndex,
    CorruptLog,
    LogOffline,
    OffsetOutOfRange,
    OutOfResources,
)
from ottla.storage.files import Files
from ottla.storage.flush import FlushJob
from ottla.storage.leader_epochs import LeaderEpochs
from ottla.storage.producer_state import ProducerStates, Snapshot
from ottla.storage.recovery.replay import mend_transaction_indexes
from ottla.storage.segment import FOREVER, NO_TIMESTAMP
from ottla.storage.segment_file import OpenFiles, Slice
from ottla.storage.segments import Segments, TimedBatch, TimedOffset, time_in_batch

if TYPE_CHECKING:
    from ottla.storage.compaction.swap import Compaction
    from ottla.storage.retention import Retired

logger = logging.getLogger(__name__)

# Errors that say something of the process, not of the disk.
TRANSIENT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class LogOwner:
    """What a log tells those who keep it. The default keeps nothing."""

    def became_dirty(self, log: ReadableLog) -> None:
        """The first append since the last flush."""

    def wants_flush(self, log: ReadableLog) -> None:
        """`flush.messages` is reached or a segment was sealed: do not wait for the timer."""

    def went_offline(self, log: ReadableLog) -> None:
        """The log takes no more calls; `log.offline` says why."""

    def lower_offsets(self, log: ReadableLog, offset: int) -> None:
        """Makes it last, before it returns, that neither the log's recovery point nor its start is
        above `offset`."""


class ReadableLog:
    """The state of a log, and all that reads it.

    Invariants: log_start_offset ≤ high_watermark ≤ log_end_offset; recovery_point ≤ log_end_offset;
    what lies below the recovery point has been synced. The last of `segments` is active and ends at
    log_end_offset.
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
    ) -> None:
        """For `create_log` and `load_log` (recovery.py), which know what is on disk."""
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
        # partition.metadata was written but not synced, nor the folder's own name.
        self.metadata_unsynced = False
        # A file was made whose name is not synced.
        self.folder_unsynced = False
        # Taken at rolls, to be written by the next flush.
        self.pending_snapshots: list[Snapshot] = []
        # Segments on their way out, whose files still have (or had) this log's names.
        self.retiring: list[Retired] = []
        # The flush that is under way: at most one.
        self.flushing: FlushJob | None = None
        # Compacted up to here, and being compacted: see compaction/swap.py.
        self.first_dirty_offset = 0
        self.compaction: Compaction | None = None
        # The append between write and commit: at most one.
        self._writing: Append | None = None
        self._pwrite = files.pwrite
        self.config = config

    def __repr__(self) -> str:
        return f"<Log {self.name} {self.log_start_offset}..{self.log_end_offset}>"

    # Configuration and plain facts

    @property
    def config(self) -> LogConfig:
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        """Takes effect at once."""
        self._config = config
        self._segment_bytes = config.segment_bytes
        self._largest_batch = min(config.max_message_bytes, config.segment_bytes)
        self._append_time = config.stamps_append_time
        self._after_max_ms = config.message_timestamp_after_max_ms
        self._index_interval = config.index_interval_bytes
        self.flush_at_offset = self.recovery_point + config.flush_messages
        active = self.active
        active.max_index_bytes = config.segment_index_bytes
        active.roll_after = FOREVER if not active.size else NO_TIMESTAMP - 1  # reckoned anew

    @property
    def size(self) -> int:
        """Bytes in all segments' log files."""
        return self.segments.size

    @property
    def last_stable_offset(self) -> int:
        """Readers of committed records stop here: ≤ high_watermark."""
        unstable = self.producers.first_unstable_offset
        if unstable is None or unstable > self.high_watermark:
            return self.high_watermark
        return unstable

    def advance_high_watermark(self, offset: int) -> None:
        """Records below `offset` are on all in-sync replicas. It never moves back but by truncation,
        and never beyond the log's end."""
        if offset > self.high_watermark:
            self.high_watermark = min(offset, self.log_end_offset)
            if self.producers.first_unstable_offset is not None:
                self.producers.high_watermark_moved(self.high_watermark)

    # Reading

    def read(
        self,
        offset: int,
        max_bytes: int,
        upper: int,
        at_least_one: bool = True,
        wait: bool = True,
    ) -> Slice | None:
        """A file range that begins with the batch which holds `offset` (or, where compaction left a
        gap, the first behind it) and has no batch at or behind `upper`; None if there is none.

        At most max_bytes, but never less than the first batch if `at_least_one`. OffsetOutOfRange
        outside of [log_start_offset, log_end_offset]. NotInMemory, unless told to `wait`, if the
        search would have to ask the disk.
        """
        end = self.log_end_offset
        if offset >= end or offset < self.log_start_offset or self.offline is not None:
            self.check_online()
            if offset != end:
                raise OffsetOutOfRange(offset, self.log_start_offset, end)
            return None
        if offset >= upper:
            return None
        try:
            return self.segments.read(offset, max_bytes, upper, end, at_least_one, wait)
        except (OSError, CorruptFile) as error:
            raise self._read_failed(error) from error

    def end_bound(self, part: Slice) -> int:
        """An offset that no record in the slice reaches: up to where aborted transactions matter to
        its reader."""
        try:
            return self.segments.end_bound(part, self.log_end_offset)
        except (OSError, CorruptFile) as error:
            raise self._read_failed(error) from error

    def aborted_transactions(self, from_offset: int, upper: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions with records in the range."""
        self.check_online()
        try:
            try:
                found = self.segments.aborted_transactions(from_offset, upper)
            except CorruptIndex:
                start = self.log_start_offset
                mend_transaction_indexes(self.segments, self.producers, start, from_offset)
                found = self.segments.aborted_transactions(from_offset, upper)
        except (OSError, CorruptFile) as error:
            raise self._read_failed(error) from error
        return [(entry.producer_id, entry.first_offset) for entry in found]

    def offset_for_time(self, timestamp: int) -> TimedOffset | None:
        """The first record that is not older; None if all are. It reads and unpacks batches: for those
        who may wait. (Others take the same steps one by one, see server/disk/time_search.py.)"""
        start = self.log_start_offset
        while (found := self.batch_for_time(timestamp, start)) is not None:
            try:
                batch = found.piece.read()
            except OSError as error:
                raise self._read_failed(error) from error
            timed = time_in_batch(batch, found.fields, timestamp, start)
            if timed is not None:
                return timed
            start = found.end_offset
        return None

    def batch_for_time(
        self, timestamp: int, start_offset: int, wait: bool = True
    ) -> TimedBatch | None:
        """The first batch at or behind start_offset that should have a record which is not older.
        NotInMemory, unless told to `wait`, if the search would have to ask the disk."""
        self.check_online()
        try:
            return self.segments.batch_for_time(timestamp, start_offset, wait)
        except (OSError, CorruptFile) as error:
            if not wait and isinstance(error, CorruptLog):
                # An index that points anywhere: looked at more closely, and mended.
                return self.batch_for_time(timestamp, start_offset)
            raise self._read_failed(error) from error

    def max_timestamp(self, wait: bool = True) -> int:
        """The largest timestamp in the log, -1 if there is none. NotInMemory as above."""
        self.check_online()
        try:
            return self.segments.max_timestamp(self.log_start_offset, wait)
        except (OSError, CorruptFile) as error:
            raise self._read_failed(error) from error

    def offset_of_max_timestamp(self) -> TimedOffset | None:
        """The first record with the largest timestamp; None if no record has one."""
        newest = self.max_timestamp()
        return None if newest < 0 else self.offset_for_time(newest)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest known epoch up to that one, and where it ends; (-1, -1) if none is known."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    # Going offline

    def check_online(self) -> None:
        if self.offline is not None:
            raise LogOffline(self.name, self.offline)

    @property
    def is_busy(self) -> bool:
        """An append is on its way to its commit."""
        return self._writing is not None

    def check_idle(self) -> None:
        """Online, and no append is between its write and its commit."""
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
        return RuntimeError(f"{self.name}: an append is under way")

    def _read_failed(self, error: OSError | CorruptFile) -> Exception:
        if isinstance(error, OSError) and error.errno in TRANSIENT:
            return OutOfResources(self.name, str(error))
        return self.go_offline(f"read failed: {error}")
