"""One partition's log: append, read, flush, truncate.

All state belongs to one thread (the event loop's). What may block is cut out of it: the write of an
append can be handed to a thread (`prepare`, `write`, `commit`), a flush is a job to `run`
elsewhere, and a read gives a file range that the caller sends as it likes.

The order of things, for every append: checked (nothing changed), written after the end of the file
(not visible), committed in memory (visible). A failed write therefore leaves the log as it was, and
offline: what the disk holds after the end is unknown, and recovery will cut it.
"""

from __future__ import annotations

from random import random
from typing import TYPE_CHECKING

from ottla.logfiles.walk import check_stored
from ottla.record.batch import (
    ATTRIBUTES,
    BASE_OFFSET,
    BATCH_LENGTH,
    CONTROL_BIT,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    LENGTH_OVERHEAD,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    TRANSACTIONAL_BIT,
    check_batch,
    check_produced,
    set_log_append_time,
    stamp,
)
from ottla.record.deletion import read_mark
from ottla.record.errors import InvalidRecord
from ottla.record.offset_set import OffsetRange
from ottla.storage.errors import (
    CorruptFile,
    InvalidTimestamp,
    OffsetOutOfRange,
    OutOfResources,
    RecordTooLarge,
    UnexpectedOffset,
    passes,
)
from ottla.storage.log import flush, retention, truncation
from ottla.storage.log.append import Append, PlacedBatch, read_marker
from ottla.storage.log.deletions import mark_in
from ottla.storage.log.producer_state import Duplicate, EndMarker, Origin
from ottla.storage.log.readable import ReadableLog
from ottla.storage.log.retention import Retired
from ottla.storage.segments.file import SegmentFile
from ottla.storage.segments.segment import NO_TIMESTAMP, Segment

if TYPE_CHECKING:
    from ottla.record.batch import HeaderFields

CLIENT = Origin.CLIENT
COORDINATOR = Origin.COORDINATOR
REPLICATION = Origin.REPLICATION


class Log(ReadableLog):
    """The log of one partition: appends, and what a broker asks of it. The invariants are those of
    LogState."""

    __slots__ = ()

    # Appending, as the leader

    def append(
        self,
        buffer: bytearray | memoryview,
        leader_epoch: int,
        now_ms: int,
        origin: Origin = CLIENT,
        checked: HeaderFields | None = None,
    ) -> Append:
        """Prepare, write and commit at once."""
        append = self.prepare(buffer, leader_epoch, now_ms, origin, checked)
        if not append.duplicate:
            self.write(append)
            self.commit(append)
        return append

    def append_simple(
        self,
        batch: bytearray | memoryview,
        fields: HeaderFields,
        leader_epoch: int,
        now_ms: int,
    ) -> int:
        """The base offset of a client's batch, appended; or -1, and nothing was changed: something
        about the batch or the log needs a closer look, and `append` has it.

        The one short cut: the same steps as `prepare`, `write` and `commit` without an object
        between them, for what nearly all batches are. `batch` is one batch and nothing else,
        `fields` its header from `check_produced`; it is outside of transactions and in sequence,
        and goes into a segment that has room and has been written to before.
        """
        (_, _, _, _, _, attributes, last_delta, _, timestamp,
         producer_id, _, _, _) = fields  # fmt: skip
        size = len(batch)
        segment = self.active
        file = segment.opened
        position = segment.size
        base_offset = self.log_end_offset
        last_offset = base_offset + last_delta
        if (
            file is None
            or position == 0
            or self.offline is not None
            or self._writing is not None
            or self._append_time
            or attributes & TRANSACTIONAL_BIT
            or size > self._largest_batch
            or timestamp - now_ms > self._after_max_ms
            or position + size > self._segment_bytes
            or timestamp > segment.roll_after
            or last_offset > segment.offset_limit
            or segment.index_full
            or leader_epoch != self.epochs.latest_epoch
        ):
            return -1
        producer = None
        if producer_id >= 0:
            producer = self.producers.expecting(fields)
            if producer is None:
                return -1
        stamp(batch, 0, base_offset, leader_epoch)
        segment.used = True
        try:
            if self._pwrite(file.fd, batch, position) != size:
                self.files.write_all(file.fd, batch, position)
        except OSError as error:
            raise self._write_failed(segment, position, error) from error
        except BaseException as error:
            self._broken_off(segment, error)
            raise
        segment.add(position, size, last_offset, timestamp, self._index_interval)
        if producer is not None:
            self.producers.go_on(producer, fields, base_offset, last_offset, timestamp, now_ms)
        self.log_end_offset = end = last_offset + 1
        self.appended_bytes += size
        if not self.unflushed_since or end >= self.flush_at_offset:
            self._became_dirty(end, now_ms)
        return base_offset

    def prepare(
        self,
        buffer: bytearray | memoryview,
        leader_epoch: int,
        now_ms: int,
        origin: Origin = CLIENT,
        checked: HeaderFields | None = None,
    ) -> Append:
        """Check every batch, then give each its place, in the buffer too; the log stays as it is.

        `checked`: the header, if the buffer is one batch that has passed `check_produced`. Several
        batches come from old clients, without producer ids (a batch's sequence could not be checked
        before the one in front of it is committed).

        InvalidBatch, AppendRefused: nothing was wrong with the log, and the buffer is as it was. A
        duplicate of what was written before comes back with `duplicate` set, and neither `write`
        nor `commit` is due.
        """
        if self.offline is not None or self._writing is not None:
            raise self._not_ready()
        check = check_produced if origin is CLIENT else check_batch
        append_time = now_ms if self._append_time else -1
        placed: list[PlacedBatch] = []
        base_offset = next_offset = self.log_end_offset
        largest = NO_TIMESTAMP
        total = len(buffer)
        at = 0
        while at < total:
            fields = checked or check(buffer, at)
            size = fields[BATCH_LENGTH] + LENGTH_OVERHEAD
            if size > self._largest_batch:
                raise RecordTooLarge(size, self._largest_batch)
            max_timestamp = append_time
            if append_time < 0:
                max_timestamp = fields[MAX_TIMESTAMP]
                self._check_timestamps(fields, now_ms)
            marker: EndMarker | list[OffsetRange] | None = None
            if fields[PRODUCER_ID] >= 0:
                if size != total:
                    raise InvalidRecord("a producer with an id sends one batch at a time")
                if fields[ATTRIBUTES] & CONTROL_BIT:
                    marker = self._check_marker(buffer, fields, origin)
                else:
                    original = self.producers.check(fields, origin)
                    if original is not None:
                        return self._duplicate(original, size, buffer, now_ms)
            elif fields[ATTRIBUTES] & CONTROL_BIT:
                marker = read_mark(memoryview(buffer)[at : at + size])
            largest = max(largest, max_timestamp)
            last_offset = next_offset + fields[LAST_OFFSET_DELTA]
            placed.append((at, size, fields, next_offset, last_offset, max_timestamp, marker))
            next_offset = last_offset + 1
            at += size
        if not placed:
            raise InvalidRecord("no batch")
        if total > self._segment_bytes:
            raise RecordTooLarge(total, self._segment_bytes)
        segment = self.active
        position = segment.size
        try:
            if self._must_roll(segment, total, next_offset - 1, largest, now_ms):
                segment = self.next_segment(now_ms)
                position = 0
        except OSError as error:
            raise self._read_failed(error) from error
        for start, _, _, offset, _, _, _ in placed:
            if append_time >= 0:
                set_log_append_time(buffer, start, now_ms)
            stamp(buffer, start, offset, leader_epoch)
        return Append(
            base_offset,
            next_offset - 1,
            append_time,
            self.log_start_offset,
            total,
            leader_epoch,
            buffer,
            segment,
            position,
            placed,
            now_ms,
        )

    def _check_timestamps(self, fields: HeaderFields, now_ms: int) -> None:
        """InvalidTimestamp if the largest timestamp, as the header has it, is too far ahead. (The
        smallest is known to the records only.)"""
        largest = fields[MAX_TIMESTAMP]
        if largest - now_ms > self._after_max_ms and largest != NO_TIMESTAMP:
            raise InvalidTimestamp(largest, now_ms)

    def _check_marker(
        self, batch: bytearray | memoryview, fields: HeaderFields, origin: Origin
    ) -> EndMarker | None:
        """The end of a transaction in a control batch, if that is what it holds and may write."""
        marker = read_marker(batch)
        if marker is not None:
            self.producers.check_marker(
                fields[PRODUCER_ID], fields[PRODUCER_EPOCH], marker.coordinator_epoch, origin
            )
        return marker

    def _duplicate(
        self, original: Duplicate, size: int, buffer: bytearray | memoryview, now_ms: int
    ) -> Append:
        base_offset, last_offset, timestamp = original
        append = Append(
            base_offset,
            last_offset,
            timestamp if self._append_time else -1,
            self.log_start_offset,
            size,
            -1,
            buffer,
            self.active,
            0,
            [],
            now_ms,
        )
        append.duplicate = True
        return append

    def hand_out(self, append: Append) -> None:
        """Hand an append out to be written on another thread: from here to its commit nothing else may
        change the log. (Segments that it goes to must not be taken away.)"""
        self.check_idle()
        self._writing = append

    def write(self, append: Append) -> None:
        """The I/O of an append: makes the file of a new segment, writes. May run on another thread
        after `hand_out`. LogOffline if the disk fails."""
        under_way = self._writing
        if append.base_offset < self.log_end_offset or (
            under_way is not None and under_way is not append
        ):
            raise RuntimeError(f"{self.name}: an append was prepared for another end of the log")
        self._writing = append
        segment = append.segment
        try:
            file = segment.opened
            if file is None:
                file = self._open_for_write(segment)
            else:
                segment.used = True
            written = self._pwrite(file.fd, append.buffer, append.position)
            if written != append.size:
                with memoryview(append.buffer)[written:] as rest:
                    self.files.write_all(file.fd, rest, append.position + written)
        except OSError as error:
            raise self._write_failed(segment, append.position, error) from error
        except BaseException as error:
            self._broken_off(segment, error)
            raise

    def _open_for_write(self, segment: Segment) -> SegmentFile:
        if segment.on_disk:
            return segment.file()
        return segment.create(self._segment_bytes if self._config.preallocate else 0)

    def _broken_off(self, segment: Segment, error: BaseException) -> None:
        """Take the log offline after a write that was broken off: the disk has not failed, but nothing
        is known of what was written."""
        self._writing = None
        self.go_offline(f"write to {segment.path} was broken off: {error!r}")

    def _write_failed(self, segment: Segment, position: int, error: OSError) -> Exception:
        """Cut off again what a failed write has left: nothing was committed, so nothing is visible. If
        that succeeds and the error is one that passes (a full disk, no descriptors), the log goes on
        with the next append; else it goes offline, and recovery cuts what is there."""
        self._writing = None
        if self._take_back(segment, position) and passes(error):
            self.owner.refused_append(self, error)
            return OutOfResources(self.name, f"write to {segment.path} failed: {error}")
        return self.go_offline(f"write to {segment.path} failed: {error}")

    def _take_back(self, segment: Segment, position: int) -> bool:
        """Cuts off what lies at and after a position; of a segment that is not part of the log yet,
        the file goes: left there, it would be found in the middle of what the active one gets next.
        False if that failed."""
        file = segment.opened
        try:
            if file is not None:
                self.files.truncate(file.fd, position)
            if not segment.on_disk:
                segment.close()
                self.files.unlink(segment.path)
        except FileNotFoundError:
            pass  # it was never made
        except OSError:
            return False
        return True

    def commit(self, append: Append) -> None:
        """Makes a written append part of the log."""
        if self._writing is not append:
            raise RuntimeError(f"{self.name}: an append is committed that was not written")
        segment = append.segment
        if segment is not self.active:
            self.attach(segment)
        position, now_ms, leader_epoch = append.position, append.now_ms, append.leader_epoch
        for at, size, fields, base_offset, last_offset, max_timestamp, marker in append.batches:
            segment.add(position + at, size, last_offset, max_timestamp, self._index_interval)
            if fields[PRODUCER_ID] >= 0:
                if marker is None:
                    if not fields[ATTRIBUTES] & CONTROL_BIT:
                        self.producers.update(
                            fields, base_offset, last_offset, max_timestamp, now_ms
                        )
                elif isinstance(marker, EndMarker):
                    self._end_transaction(fields, marker, last_offset, max_timestamp, now_ms)
            elif marker is not None and isinstance(marker, list):
                self.marked(base_offset, marker, now_ms)
            epoch = leader_epoch if leader_epoch >= 0 else fields[LEADER_EPOCH]
            if epoch != self.epochs.latest_epoch and epoch >= 0:
                self.epochs.assign(epoch, base_offset)
        if position == 0:
            self._first_batch(segment, now_ms)
        end = self.log_end_offset = append.last_offset + 1
        self.appended_bytes += append.size
        if not self.unflushed_since or end >= self.flush_at_offset:
            self._became_dirty(end, now_ms)
        self._writing = None

    def _became_dirty(self, end: int, now_ms: int) -> None:
        """Tell the owner that there is something that no flush covers, or so much that it is to be
        flushed now."""
        if not self.unflushed_since:
            self.unflushed_since = now_ms
            self.owner.became_dirty(self)
        if end >= self.flush_at_offset:
            self.owner.wants_flush(self)

    def _end_transaction(
        self, fields: HeaderFields, marker: EndMarker, offset: int, timestamp: int, now_ms: int
    ) -> None:
        ended = self.producers.end_transaction(
            fields[PRODUCER_ID], fields[PRODUCER_EPOCH], marker, offset, timestamp, now_ms
        )
        if ended is not None and ended.aborted:
            self.active.transaction_index.append(
                ended.producer_id, ended.first_offset, ended.last_offset, ended.last_stable_offset
            )

    def _first_batch(self, segment: Segment, now_ms: int) -> None:
        """Take note that a segment got its first batch, and with it a file and an age."""
        segment.on_disk = True
        segment.created_ms = segment.created_ms or now_ms
        self.folder_unsynced = True
        segment.first_timestamp = None
        segment.roll_after = NO_TIMESTAMP - 1

    # Appending, as a follower

    def append_replicated(self, buffer: bytes | bytearray | memoryview, now_ms: int) -> int:
        """Whole batches as the leader has them, with its offsets, epochs and markers; they go on at
        or after (the leader's log may have gaps) this log's end. The new end."""
        placed = self.check_replicated(buffer)
        view = memoryview(buffer)
        while placed:
            append = self.prepare_replicated(view, placed, now_ms)
            self.write(append)
            self.commit(append)
            placed = placed[len(append.batches) :]
        return self.log_end_offset

    def check_replicated(self, buffer: bytes | bytearray | memoryview) -> list[PlacedBatch]:
        """The batches that a leader sent, each with its place in the buffer; the log stays as it is. One
        that is larger than a segment gets a segment of its own."""
        if self.offline is not None or self._writing is not None:
            raise self._not_ready()
        placed: list[PlacedBatch] = []
        expected = self.log_end_offset
        at = 0
        while at < len(buffer):
            fields = check_stored(buffer, at)
            size = fields[BATCH_LENGTH] + LENGTH_OVERHEAD
            base_offset = fields[BASE_OFFSET]
            if base_offset < expected:
                raise UnexpectedOffset(base_offset, expected)
            # Whatever its size: `segment.bytes` may have been larger when the leader took it.
            marker: EndMarker | list[OffsetRange] | None = None
            if fields[ATTRIBUTES] & CONTROL_BIT:
                batch = memoryview(buffer)[at : at + size]
                marker = read_marker(batch) if fields[PRODUCER_ID] >= 0 else mark_in(batch)
            last_offset = base_offset + fields[LAST_OFFSET_DELTA]
            largest = fields[MAX_TIMESTAMP]
            placed.append((at, size, fields, base_offset, last_offset, largest, marker))
            expected = last_offset + 1
            at += size
        return placed

    def prepare_replicated(
        self, view: memoryview, placed: list[PlacedBatch], now_ms: int
    ) -> Append:
        """The append of as many of the checked batches as go into one segment, for one write. `write`
        and `commit` are due, then the next ones."""
        start, size, _, base_offset, last_offset, largest, _ = placed[0]
        segment = self.active
        position = segment.size
        if self._must_roll(segment, size, last_offset, largest, now_ms):
            segment = self.next_segment(now_ms)
            position = 0
        if last_offset > segment.offset_limit:
            # A gap that no relative offset spans: the segment begins after it.
            segment = self.next_segment(now_ms, base_offset)
            position = 0
        count = 1
        for _, more, _, _, offset, _, _ in placed[1:]:
            if position + size + more > self._segment_bytes or offset > segment.offset_limit:
                break
            size += more
            last_offset = offset
            count += 1
        return Append(
            base_offset,
            last_offset,
            -1,
            self.log_start_offset,
            size,
            -1,
            view[start : start + size],
            segment,
            position,
            placed
            if not start and count == len(placed)  # as nearly always
            else [
                (at - start, batch_size, fields, first, last, timestamp, marker)
                for at, batch_size, fields, first, last, timestamp, marker in placed[:count]
            ],
            now_ms,
        )

    # Rolling

    def _must_roll(
        self, segment: Segment, size: int, last_offset: int, max_timestamp: int, now_ms: int
    ) -> bool:
        """Whether a batch needs a new segment."""
        if not segment.size:
            return False
        if (
            segment.size + size > self._segment_bytes
            or last_offset > segment.offset_limit
            or segment.index_full
        ):
            return True
        if max_timestamp <= segment.roll_after:
            return False  # reckoned before
        roll_ms = self._config.longest_segment_ms - segment.roll_jitter_ms
        try:
            first = segment.read_first_timestamp()
        except (OSError, CorruptFile) as error:
            raise self._read_failed(error) from error
        if first == NO_TIMESTAMP:
            return now_ms - segment.created_ms > roll_ms
        segment.roll_after = first + roll_ms
        return max_timestamp > segment.roll_after

    def next_segment(self, now_ms: int, base_offset: int | None = None) -> Segment:
        segment = Segment(
            self.folder,
            self.log_end_offset if base_offset is None else base_offset,
            self.files,
            self.open_files,
            self._config.segment_index_bytes,
            created_ms=now_ms,
        )
        jitter = min(self._config.segment_jitter_ms, self._config.segment_ms)
        segment.roll_jitter_ms = int(random() * jitter)
        return segment

    def attach(self, segment: Segment) -> None:
        """The new segment becomes the active one. The old one is synced by the next flush, which is
        due at once, and so is the snapshot of the producers at its end."""
        if self.active.size:
            self.active.seal()
            self.take_snapshot()
        else:
            # An empty one in front of a large gap: no record is in it, nor ever will be.
            self.segments.take_from(len(self.segments) - 1)
            self.active.close()
        segment.on_disk = True
        self.segments.add(segment)
        self.active = segment
        if not self.recovery_point:
            # Nothing of this log was ever synced, not even the name of its first segment: should the
            # power take that one and leave this one, the log would seem to begin here.
            try:
                self.files.fsync_folder(self.folder)
            except OSError as error:
                # For want of descriptors, memory or room: then the flush syncs it, which is due at once.
                if not passes(error):
                    raise self.go_offline(f"sync of {self.folder} failed: {error}") from error
        self.folder_unsynced = True
        self.owner.wants_flush(self)

    def roll(self, now_ms: int) -> None:
        """A new, empty active segment, with its file, so that the name keeps the log's end even when
        all other segments go."""
        self.check_idle()
        if not self.active.size:
            return
        segment = self.next_segment(now_ms)

        def create() -> None:
            segment.create()
            self.files.fsync_folder(self.folder)

        try:
            self.open_files.reserve.use(create)
        except OSError as error:
            reason = f"new segment {segment.path} failed: {error}"
            if self._take_back(segment, 0) and passes(error):
                raise OutOfResources(self.name, reason) from error
            raise self.go_offline(reason) from error
        self.attach(segment)

    def take_snapshot(self) -> None:
        """Take a snapshot of the producers at the log's end, for the next flush to write."""
        self.producers.map_end_offset = self.log_end_offset
        snapshot = self.producers.take_snapshot()
        if snapshot is not None:
            self.pending_snapshots.append(snapshot)
        self.snapshot_bytes = self.appended_bytes

    # Flushing

    def due_for_flush(self, now_ms: int) -> bool:
        """Whether there is unflushed data that is too much or too old."""
        return flush.due(self, now_ms)

    def flush_begin(self, now_ms: int, before_close: bool = False) -> flush.FlushJob | None:
        """A job that makes everything up to the log's end last, for `run` on another thread; None
        if there is nothing to do or a flush is under way."""
        return flush.begin(self, now_ms, before_close)

    def flush_end(self, job: flush.FlushJob) -> None:
        """Takes the result of a job that ran: the recovery point moves, or the log goes offline."""
        flush.end(self, job)

    def flush(self, now_ms: int) -> None:
        """Flush everything on this thread, and wait for it."""
        flush.stop(self)
        job = flush.begin(self, now_ms, before_close=False)
        if job is not None:
            job.run()
            flush.end(self, job)
        self.check_online()
        if self.recovery_point < self.log_end_offset:
            reason = "" if job is None else str(job.error)
            raise OutOfResources(self.name, f"flush failed: {reason}")

    def close(self) -> None:
        """Gives back descriptors and maps; nothing in the folder is touched any more. What was not
        flushed is not."""
        if self.truncation is not None:
            self.truncation.stop()
        flush.stop(self)
        for retired in self.retiring:
            retired.cancel()
        if self.compaction is not None:
            self.compaction.stop()
        for segment in self.segments:
            segment.close()

    # Losing records on purpose

    def advance_start(self, offset: int) -> None:
        """Records below `offset` are gone (DeleteRecords); segments without others go with the next
        retention. Never beyond the high watermark."""
        self.check_online()
        if offset > self.high_watermark:
            raise OffsetOutOfRange(offset, self.log_start_offset, self.high_watermark)
        if offset > self.log_start_offset:
            self.raise_start(offset)

    def delete_old_segments(self, now_ms: int) -> Retired | None:
        """Detaches the segments that the topic's retention no longer wants; the log starts after
        them from now on. Their files are the caller's: see Retired."""
        return retention.retire(self, now_ms)

    def truncate_to(self, offset: int, now_ms: int) -> bool:
        """Cuts off everything at and after `offset` (a follower that took another way than the
        leader); whether that was anything. Blocks: it syncs what it cut."""
        if offset >= self.log_end_offset:
            self.check_idle()
            return False
        truncation.do_all(truncation.truncate_to(self, offset, now_ms))
        return True

    def truncate_fully_and_start_at(self, offset: int, now_ms: int) -> None:
        """Removes everything; the log goes on at `offset`. Blocks."""
        truncation.do_all(truncation.start_anew_at(self, offset, now_ms))

    def truncation_to(self, offset: int, now_ms: int) -> truncation.Steps:
        """The steps of `truncate_to`, for those who must not block."""
        return truncation.truncate_to(self, offset, now_ms)

    def new_start_at(self, offset: int, now_ms: int) -> truncation.Steps:
        """The steps of `truncate_fully_and_start_at`."""
        return truncation.start_anew_at(self, offset, now_ms)
