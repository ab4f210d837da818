"""Making a log object: for a new partition, after a clean shutdown, after a crash.

After a clean shutdown nothing is scanned: the last segment's end is read from its last index entry
on, and the producers come from a snapshot.

After a crash everything below the recovery point is known to be whole, because it was synced, data
first, before the recovery point was stored. What lies after it is checked batch by batch. The first
that is not whole, or does not go on where the one before it ended, is where the log ends: it is cut
there, and later segments go. Index entries, leader epochs and producer state after the recovery
point are made anew on the way. So the time is proportional to the unflushed tail.

Zeros from a batch's end to the end of the file are no tear: they are the unused part of a
preallocated segment, and go. What follows is the next segment, if it begins where this one ends; if
batches were lost in the zeros it does not.

If what was synced is not there or damaged, the disk has lost acknowledged records. That is never
mended silently: CorruptLog, and the log stays offline until somebody looks.
"""

from __future__ import annotations

import contextlib
import logging
from itertools import pairwise

from ottla.logfiles.deletions import InvalidSnapshot, decode_deletions, encode_deletions
from ottla.logfiles.names import (
    DELETIONS_SNAPSHOT,
    INDEX_SUFFIX,
    INDEX_SUFFIXES,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    PARTITION_METADATA,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    base_offset_of,
    segment_name,
)
from ottla.logfiles.walk import only_zeros, walk_checked
from ottla.record.batch import (
    ATTRIBUTES,
    BASE_OFFSET,
    CONTROL_BIT,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    MAX_TIMESTAMP,
    PRODUCER_ID,
    HeaderFields,
)
from ottla.record.errors import InvalidBatch
from ottla.storage.checkpoints import read_partition_metadata, write_partition_metadata
from ottla.storage.config import LogConfig
from ottla.storage.errors import CorruptCheckpoint, CorruptIndex, CorruptLog, is_full_disk
from ottla.storage.files import READ_WRITE, Files
from ottla.storage.log.deletions import Deletions, mark_in, marks_from
from ottla.storage.log.leader_epochs import LeaderEpochs
from ottla.storage.log.log import Log
from ottla.storage.log.producer_state import (
    DEFAULT_EXPIRATION_MS,
    ProducerStates,
    Snapshot,
    snapshot_offset,
)
from ottla.storage.log.state import LogOwner
from ottla.storage.log.truncation import remove_files
from ottla.storage.recovery.leftovers import tidy
from ottla.storage.recovery.replay import (
    mend_transaction_indexes,
    rebuild_transaction_index,
    reload,
    replay_batch,
)
from ottla.storage.segments.file import OpenFiles
from ottla.storage.segments.segment import FOREVER, NO_TIMESTAMP, REBUILD_CHUNK, Segment
from ottla.storage.segments.segments import Segments

logger = logging.getLogger(__name__)


def create_log(
    folder: str,
    topic: str,
    partition: int,
    topic_id: bytes | None,
    config: LogConfig,
    files: Files,
    open_files: OpenFiles,
    owner: LogOwner,
    producer_expiration_ms: int = DEFAULT_EXPIRATION_MS,
) -> Log:
    """A new partition: a folder and partition.metadata. Neither is synced before the first flush:
    until then there is nothing to lose, and who created the topic can tell its id again."""
    files.mkdir(folder)
    if topic_id is not None:
        try:
            write_partition_metadata(f"{folder}/{PARTITION_METADATA}", topic_id, files, sync=False)
        except OSError:
            # The next attempt must not find its name taken. Without a look at what is in the folder,
            # which would need a descriptor that there may not be.
            with contextlib.suppress(OSError):
                with contextlib.suppress(FileNotFoundError):
                    files.unlink(f"{folder}/{PARTITION_METADATA}")
                files.rmdir(folder)
            raise
    segments = Segments()
    segments.add(Segment(folder, 0, files, open_files, config.segment_index_bytes))
    return Log(
        folder,
        topic,
        partition,
        topic_id,
        config,
        files,
        open_files,
        owner,
        ProducerStates(folder, files, expiration_ms=producer_expiration_ms),
        LeaderEpochs(f"{folder}/{LEADER_EPOCH_CHECKPOINT}", files),
        segments,
        log_start_offset=0,
        log_end_offset=0,
        recovery_point=0,
    )


def load_log(
    folder: str,
    topic: str,
    partition: int,
    config: LogConfig,
    files: Files,
    open_files: OpenFiles,
    owner: LogOwner,
    *,
    clean: bool,
    recovery_point: int,
    log_start_offset: int,
    high_watermark: int,
    now_ms: int,
    first_dirty_offset: int = 0,
    fingerprint: int = 0,
    deletions_end: int = 0,
    producer_expiration_ms: int = DEFAULT_EXPIRATION_MS,
) -> Log:
    """The log in a folder, with what the checkpoints say of it (0 where they say nothing).

    `clean`: the broker was shut down cleanly, so the recovery point is the log's end, and `fingerprint`
    is that of the segments which were there. `deletions_end`: the snapshot of deleted records went up to
    there at least; 0 if there need not be one. OSError and CorruptLog if the log cannot be used.
    """
    loader = _Loader(folder, config, files, open_files, now_ms, producer_expiration_ms)
    loader.find_segments(log_start_offset)
    loader.load_epochs()
    loader.load_deletions(deletions_end)
    # The end of each segment takes a read: not at the first touch of a log with a thousand of them, if
    # names and sizes are those that the last broker left.
    unchanged = clean and fingerprint and fingerprint == loader.segments.fingerprint()
    if not (clean and loader.open_clean(recovery_point)):
        loader.recover(recovery_point)
        unchanged = False
    loader.finish_deletions()
    if not (config.compacts or first_dirty_offset or unchanged):
        loader.check_for_missing_segments()
    try:
        topic_id = read_partition_metadata(f"{folder}/{PARTITION_METADATA}", files)
    except CorruptCheckpoint as error:
        # Torn by a crash soon after the partition was made. Who knows the topic knows its id.
        logger.warning("%s", error)
        topic_id = None
    log = Log(
        folder,
        topic,
        partition,
        topic_id,
        config,
        files,
        open_files,
        owner,
        loader.producers,
        loader.epochs,
        loader.segments,
        log_start_offset=loader.start,
        log_end_offset=loader.end,
        recovery_point=min(recovery_point, loader.end),
        first_dirty_offset=first_dirty_offset,
        deletions=loader.deletions,
    )
    log.recovered(
        high_watermark,
        loader.pending_snapshots,
        loader.unsynced_bytes,
        loader.replayed_bytes,
        now_ms,
    )
    return log


class _Loader:
    """The steps of `load_log`, and what they find."""

    def __init__(
        self,
        folder: str,
        config: LogConfig,
        files: Files,
        open_files: OpenFiles,
        now_ms: int,
        producer_expiration_ms: int,
    ) -> None:
        self.folder = folder
        self.config = config
        self.files = files
        self.open_files = open_files
        self.now_ms = now_ms
        self.producer_expiration_ms = producer_expiration_ms
        self.names: set[str] = set()
        self.segments = Segments()
        self.epochs = LeaderEpochs(f"{folder}/{LEADER_EPOCH_CHECKPOINT}", files)
        self.producers = ProducerStates(folder, files)
        # What marks hide; and up to where the log has to be for that to be right.
        self.deletions: Deletions | None = None
        self.deletions_end = 0
        self.snapshots_found: set[int] = set()
        # Segments that were found without an index of any kind.
        self.without_indexes: list[Segment] = []
        self.pending_snapshots: list[Snapshot] = []
        # Up to here everything was synced once.
        self.recovery_point = 0
        # The log's start and end offset.
        self.start = 0
        self.end = 0
        # Bytes after the recovery point, and bytes that were read for the producers' sake.
        self.unsynced_bytes = 0
        self.replayed_bytes = 0

    def find_segments(self, log_start_offset: int) -> None:
        """What is in the folder; ends what was interrupted."""
        names = tidy(self.folder, self.files, self.open_files)
        bases = sorted(
            base
            for name in names
            if name.endswith(LOG_SUFFIX) and (base := base_offset_of(name)) is not None
        )
        self.snapshots_found = {
            offset for name in names if (offset := snapshot_offset(name)) is not None
        }
        self.producers = ProducerStates(
            self.folder,
            self.files,
            expiration_ms=self.producer_expiration_ms,
            snapshots=self.snapshots_found,
            start_offset=log_start_offset,
        )
        # Retention stored the log's new start before it took segments away: those that it did not
        # come to are still there.
        while len(bases) > 1 and bases[1] <= log_start_offset:
            remove_files(self._segment(bases.pop(0), 0))
        for base in bases:
            size = self.files.size(f"{self.folder}/{segment_name(base)}{LOG_SUFFIX}")
            segment = self._segment(base, size, sealed=base != bases[-1])
            segment.has_index_files = any(
                segment_name(base) + suffix in names for suffix in INDEX_SUFFIXES
            )
            self.segments.add(segment)
        if not bases:
            self.segments.add(self._segment(log_start_offset, None))
        self.names = names
        self.start = max(log_start_offset, self.segments[0].base_offset)
        self.producers.map_end_offset = -1  # not yet loaded

    def _segment(self, base: int, size: int | None, sealed: bool = False) -> Segment:
        return Segment(
            self.folder,
            base,
            self.files,
            self.open_files,
            self.config.segment_index_bytes,
            size=size,
            sealed=sealed,
            created_ms=self.now_ms,
        )

    def _rebuild_missing(self, count: int) -> None:
        """Makes index files anew that the first `count` segments, which are whole, should have."""
        for slot in range(count):
            segment = self.segments[slot]
            name = segment_name(segment.base_offset)
            if name + INDEX_SUFFIX in self.names and name + TIME_INDEX_SUFFIX in self.names:
                continue
            logger.warning("%s: an index is missing and is made anew", segment.path)
            segment.rebuild_indexes()
            if name + TRANSACTION_INDEX_SUFFIX not in self.names:
                # Perhaps it had none. Who lost the others may have lost this one too.
                self.without_indexes.append(segment)

    def _rebuild_transaction_indexes(self) -> None:
        """Rebuild the transaction indexes of segments that had no index at all, once the producers are
        known."""
        for segment in self.without_indexes:
            rebuild_transaction_index(self.segments, segment, self.producers, self.start)

    def load_epochs(self) -> None:
        try:
            self.epochs.load()
        except CorruptCheckpoint as error:
            logger.warning("%s; made anew from the log", error)

    def load_deletions(self, needed_end: int) -> None:
        """Load the deletions from the snapshot, which has to go up to `needed_end`. Newer marks are
        found by `_check`."""
        path = f"{self.folder}/{DELETIONS_SNAPSHOT}"
        try:
            if DELETIONS_SNAPSHOT not in self.names:
                if not needed_end:
                    return
                raise InvalidSnapshot("it is missing")
            snapshot = decode_deletions(self.files.read_file(path))
            if snapshot.end_offset < needed_end:
                raise InvalidSnapshot(
                    f"it ends at {snapshot.end_offset}, and there was one up to {needed_end}"
                )
        except InvalidSnapshot as error:
            logger.warning("%s: %s; made anew from the log", path, error)
            self.deletions_end = FOREVER
        else:
            self.deletions_end = snapshot.end_offset
            self.deletions = Deletions(self.folder, snapshot)

    def finish_deletions(self) -> None:
        """Read all marks from the log itself, if the snapshot is none of this log: unreadable, or of a
        log that went further."""
        if self.deletions_end <= self.end:
            return
        deletions = self.deletions = Deletions(self.folder)
        for offset, ranges in marks_from(self.segments, self.start):
            deletions.found(offset, ranges, self.now_ms)
        deletions.changed = True
        try:
            # Not by the next flush: should the log have grown by then, and the broker be killed before,
            # the old snapshot would be believed, with marks that the log has not.
            snapshot = deletions.snapshot(self.end)
            self.files.replace_file(deletions.path, *encode_deletions(snapshot))
            deletions.stored(self.end)
            deletions.changed = False
        except OSError as error:
            if not is_full_disk(error):
                raise

    def _note_mark(self, fields: HeaderFields, batch: memoryview) -> None:
        ranges = mark_in(batch)
        if ranges is not None:
            if self.deletions is None:
                self.deletions = Deletions(self.folder)
            self.deletions.found(fields[BASE_OFFSET], ranges, self.now_ms)

    def open_clean(self, end: int) -> bool:
        """Takes the log as it is if it ends where the checkpoint says; False if it does not."""
        active = self.segments.active
        try:
            found = active.end_offset() if active.size else active.base_offset
        except CorruptLog as error:
            logger.warning("%s after a clean shutdown", error)
            return False
        if found != end:
            if end:
                logger.warning(
                    "%s ends at %d after a clean shutdown at %d", self.folder, found, end
                )
            return False
        self.end = end
        if self.end < self.start:
            return False
        if active.on_disk:
            active.load_tail(end)
        self._rebuild_missing(len(self.segments) - 1)
        self._finish_epochs()
        self.replayed_bytes = reload(self.segments, self.producers, self.start, end, self.now_ms)
        self._rebuild_transaction_indexes()
        if segment_name(active.base_offset) + TRANSACTION_INDEX_SUFFIX in self.names:
            # It takes appends. (Those of other segments are looked at when they are read.)
            mend_transaction_indexes(self.segments, self.producers, self.start, active.base_offset)
        return True

    def recover(self, recovery_point: int) -> None:
        """Checks what lies after the recovery point, and ends the log where it stops making
        sense."""
        self.recovery_point = recovery_point
        # Not from a log start after the recovery point: the batch that it lies in may be torn before it.
        start = max(recovery_point, self.segments[0].base_offset)
        slot = self.segments.slot_of(start)
        first = self.segments[slot]
        if slot and start == first.base_offset:
            self._cut_padding(self.segments[slot - 1], start)
        self._rebuild_missing(slot)
        if slot and start == first.base_offset:
            self._check_indexes(self.segments[slot - 1], start)
        for segment in self.segments.from_offset(start):
            segment.unseal()
        if first.on_disk and not self._cut_indexes(first, start):
            start = first.base_offset
        self.epochs.truncate_from_end(start)
        self.end = first.base_offset
        try:
            self.replayed_bytes = reload(
                self.segments, self.producers, self.start, start, self.now_ms
            )
            position = self._walk_synced(first, start)
        except CorruptLog as error:
            self._check_synced(str(error))
            raise
        first.synced_size = position
        whole = self._check(first, position)
        slot += 1
        while slot < len(self.segments):
            segment = self.segments[slot]
            if not whole or not self._continues(segment):
                self._check_synced(f"then comes {segment.base_offset}")
                self._drop_from(slot)
                break
            for index in segment.indexes:
                index.reset()
            segment.remember_max_timestamp(NO_TIMESTAMP, segment.base_offset)
            segment.synced_size = 0
            self.producers.map_end_offset = self.end
            self._take_snapshot()
            whole = self._check(segment, 0)
            slot += 1
        self._check_synced("nothing follows")
        if self.end < self.start:
            self._start_anew()
        for segment in self.segments.from_offset(start):
            if segment is not self.segments.active:
                segment.seal()
        if self.segments.active.on_disk:
            self.segments.active.load_tail(self.end)
        self._sync(start)
        self.producers.map_end_offset = self.end
        self._rebuild_transaction_indexes()
        self.producers.remove_stray_snapshots(segment.base_offset for segment in self.segments)
        self._finish_epochs()

    def check_for_missing_segments(self) -> None:
        """CorruptLog if a segment does not begin where the one before it ends. For logs that were never
        compacted. (A log that was, before its topic's settings changed or on the leader that it was
        copied from, has gaps inside of its segments, too.)"""
        segments = self.segments.from_offset(self.start)
        for segment, following in pairwise(segments):
            was_open = segment.opened is not None
            try:
                end = segment.end_offset() if segment.size else segment.base_offset
                if end == following.base_offset or not self._is_dense(segment):
                    continue
            except CorruptLog as error:
                logger.warning("%s", error)  # those who read there will be told
                continue
            finally:
                if not was_open:
                    segment.close()
            raise CorruptLog(
                self.folder,
                f"no segment holds the offsets {end} to {following.base_offset - 1}: records are "
                "lost. Restore the folder from a copy, or remove it to begin anew",
            )

    @staticmethod
    def _is_dense(segment: Segment) -> bool:
        expected = segment.base_offset
        for _, _, fields in segment.walk(0, REBUILD_CHUNK):
            if fields[BASE_OFFSET] != expected:
                return False
            expected = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1
        return True

    def _sync(self, start: int) -> None:
        """Makes what was found last, and what was not found too. A process that was killed in the
        middle of a truncation (or of this) leaves a file that is cut in the page cache and not on
        the disk: what was cut could come back after new records."""
        for segment in self.segments.from_offset(start):
            if segment.on_disk:
                self.files.fsync(segment.file().fd)
                segment.synced_size = segment.size
        self.files.fsync_folder(self.folder)

    def _continues(self, segment: Segment) -> bool:
        """Whether a segment follows on the one before it. That one may have lost its last batches
        without a trace, if its new size was not synced; but the producer snapshot at its end was
        written after its data was synced, so where there is one, a gap is compaction's."""
        if segment.base_offset in self.snapshots_found and segment.base_offset > self.end:
            self.end = segment.base_offset
        return segment.base_offset == self.end

    def _cut_padding(self, segment: Segment, end: int) -> None:
        """Cut the zeros of a preallocated file off a segment that was synced to its `end` while it was
        active, and then sealed: the next flush would have done that. All earlier ones went through that
        flush."""
        name = segment_name(segment.base_offset)
        position = 0
        if name + INDEX_SUFFIX in self.names:
            try:
                position = segment.batch_before(segment.offset_limit)
            except CorruptLog:
                pass  # the zeros, perhaps
        found = segment.base_offset
        try:
            for at, size, fields in segment.walk(position, REBUILD_CHUNK):
                position = at + size
                found = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1
        except CorruptLog:
            # Zeros where records should be are left to those who look for the records.
            if found == end and only_zeros(segment.file().read, position, segment.size):
                fd = self.files.open(segment.path, READ_WRITE)  # its own is for reading only
                try:
                    self._cut(segment, position, fd)
                finally:
                    self.files.close(fd)
                segment.rebuild_indexes()
                self.names |= {name + INDEX_SUFFIX, name + TIME_INDEX_SUFFIX}

    def _check_indexes(self, segment: Segment, end: int) -> None:
        """Check the last index entries of such a segment, those of its sealing: they may be torn,
        too."""
        try:
            if segment.offset_index.entry_count:
                self._compare_last_entries(segment, end)
                return
        except (CorruptIndex, CorruptLog) as error:
            logger.warning("%s; the indexes of the segment are made anew", error)
        try:
            segment.rebuild_indexes()
        except CorruptLog as error:
            logger.warning("%s", error)  # those who read there will be told

    def _cut_indexes(self, segment: Segment, start: int) -> bool:
        """Keeps the index entries below the recovery point, which were synced with the data. False
        (and empty indexes) if they cannot be trusted, or if there are none: then all of the segment
        is read."""
        try:
            for index in segment.indexes:
                index.truncate_to(start)
                # A process that was killed in the middle of this, or of a truncation, may have cut it
                # in the page cache only: once the recovery point is higher, what comes back counts.
                index.may_be_unsynced()
            if segment.offset_index.entry_count:
                self._compare_last_entries(segment, start)
                return True
        except (CorruptIndex, CorruptLog) as error:
            logger.warning("%s; the indexes of the segment are made anew", error)
        # An empty offset index is what tells the next start, should this one not come to its end,
        # that the other two are not to be trusted. So it is emptied first.
        if not segment.has_index_files:
            return False
        offset_index, *others = segment.indexes
        offset_index.reset()
        try:
            offset_index.sync()
        except FileNotFoundError:
            pass
        for index in others:
            index.reset()
        return False

    def _compare_last_entries(self, segment: Segment, start: int) -> None:
        """CorruptIndex if the last entries do not fit the log. Entries that were written but not synced
        may be torn, and torn ones may look as if they were about older offsets. In the middle that
        breaks their order; at the end the log tells: the last entry fits, and up to the recovery point
        there is no place for another."""
        path = segment.offset_index.path
        offset, position = segment.offset_index.last_entry
        if position >= segment.size:
            raise CorruptIndex(path, f"{position} is beyond the end of the segment")
        since = 0
        for _, size, fields in segment.walk(position):
            last_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
            if since == 0 and last_offset != offset:
                raise CorruptIndex(path, f"no batch at {position} ends with {offset}")
            if fields[BASE_OFFSET] >= start:
                break
            if since > self.config.index_interval_bytes:
                raise CorruptIndex(path, f"no entry between {offset} and {start}")
            since += size
            if last_offset + 1 >= start:
                break
        if segment.time_index.entry_count:
            timestamp, offset = segment.time_index.last_entry
            for _, _, fields in segment.walk(segment.offset_index.lookup(offset)[1]):
                if fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] >= offset:
                    if (
                        fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] == offset
                        and fields[MAX_TIMESTAMP] == timestamp
                    ):
                        break
                    raise CorruptIndex(segment.time_index.path, f"no batch has time {timestamp}")
            else:
                # A recovery cut it off, which did not last: the batch was lost, the entry came back.
                raise CorruptIndex(segment.time_index.path, f"{offset} is after the last batch")

    def _walk_synced(self, segment: Segment, start: int) -> int:
        """Steps over the batches of a segment that lie before `start`, from the last index entry on;
        the position of the first that does not."""
        position = segment.offset_index.last_entry[1] if segment.on_disk else 0
        timestamp, offset = NO_TIMESTAMP, segment.base_offset
        if segment.on_disk:
            timestamp, offset = segment.time_index.last_entry
        segment.remember_max_timestamp(timestamp, offset)
        segment.bytes_since_index = 0
        if start == segment.base_offset:
            return 0
        for at, size, fields in segment.walk(position, REBUILD_CHUNK):
            if fields[BASE_OFFSET] >= start:
                break
            self._note(
                segment,
                at,
                size,
                fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA],
                fields[MAX_TIMESTAMP],
            )
            position = at + size
            if self.end >= start:
                break
        return position

    def _check(self, segment: Segment, position: int) -> bool:
        """Checks every batch from `position` on; cuts the segment where they end. Whether it was
        whole."""
        reason = ""
        if segment.size > position:
            # Perhaps an fsync failed in the last life: only what the disk has counts.
            self.files.forget_cached(segment.file().fd, position)
            try:
                for at, size, fields, batch in walk_checked(segment.file(), position, segment.size):
                    last_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
                    if fields[BASE_OFFSET] < self.end or last_offset > segment.offset_limit:
                        reason = f"offset {fields[BASE_OFFSET]} after {self.end - 1}"
                        break
                    self._note(segment, at, size, last_offset, fields[MAX_TIMESTAMP])
                    self.unsynced_bytes += size
                    position = at + size
                    if fields[LEADER_EPOCH] > self.epochs.latest_epoch:
                        self.epochs.assign(fields[LEADER_EPOCH], fields[BASE_OFFSET])
                    if fields[PRODUCER_ID] < 0:
                        if fields[ATTRIBUTES] & CONTROL_BIT:
                            self._note_mark(fields, batch)
                    else:
                        ended = replay_batch(self.producers, fields, batch, self.now_ms)
                        if ended is not None and ended.aborted:
                            segment.transaction_index.append(
                                ended.producer_id,
                                ended.first_offset,
                                ended.last_offset,
                                ended.last_stable_offset,
                            )
            except InvalidBatch as error:
                reason = error.reason
        if not reason:
            return True
        self._check_synced(reason)
        if only_zeros(segment.file().read, position, segment.size):
            self._cut(segment, position, segment.file().fd)
            return True
        logger.warning(
            "%s: cut at offset %d, %d of %d bytes: %s",
            segment.path,
            self.end,
            position,
            segment.size,
            reason,
        )
        self._cut(segment, position, segment.file().fd)
        return False

    def _cut(self, segment: Segment, position: int, fd: int) -> None:
        self.files.truncate(fd, position)
        self.files.fsync(fd)
        segment.size = position

    def _note(
        self, segment: Segment, position: int, size: int, last_offset: int, timestamp: int
    ) -> None:
        segment.note(position, size, last_offset, timestamp, self.config.index_interval_bytes)
        self.end = last_offset + 1

    def _drop_from(self, slot: int) -> None:
        """Remove the segments from `slot` on: the log ends before them."""
        for segment in reversed(self.segments.take_from(slot)):
            logger.warning("%s: removed, the log ends at %d", segment.path, self.end)
            remove_files(segment)
        self.files.fsync_folder(self.folder)

    def _check_synced(self, reason: str) -> None:
        """CorruptLog if the log was once synced beyond the end at which it is about to be cut."""
        if self.end < self.recovery_point and self.recovery_point > self.start:
            raise CorruptLog(
                self.folder,
                f"it ends at {self.end} ({reason}), but was synced up to {self.recovery_point}: "
                "records are lost. Restore the folder from a copy, or remove it to begin anew",
            )

    def _start_anew(self) -> None:
        """Begin with an empty segment at the log start. All records that are there lie before it: they
        were deleted, so that nothing is lost."""
        logger.warning("%s: ends at %d and starts at %d", self.folder, self.end, self.start)
        for segment in reversed(self.segments.take_from(0)):
            remove_files(segment)
        self.files.fsync_folder(self.folder)
        segment = self._segment(self.start, None)
        segment.create()
        segment.on_disk = True
        self.segments.add(segment)
        self.files.fsync_folder(self.folder)
        self.end = self.start
        self.producers.truncate_fully_and_start_at(self.start)
        self.pending_snapshots = []
        self.unsynced_bytes = 0

    def _take_snapshot(self) -> None:
        snapshot = self.producers.take_snapshot()
        if snapshot is not None:
            self.pending_snapshots.append(snapshot)

    def _finish_epochs(self) -> None:
        """Complete the leader epochs of what is there. Before the first that is known there may be more:
        the log start was not yet stored when it moved up and the epochs before it were forgotten."""
        known = list(self.epochs.entries())
        first = known[0][1] if known else self.end
        if first > self.start:
            self.epochs.clear()
            self._read_epochs(first)
            for epoch, start in known:
                if epoch > self.epochs.latest_epoch:
                    self.epochs.assign(epoch, start)
        self.epochs.truncate_from_end(self.end)
        self.epochs.truncate_from_start(self.start)

    def _read_epochs(self, end: int) -> None:
        """Read the leader epochs from the batches between the log start and `end`."""
        for segment in self.segments.from_offset(self.start):
            for _, _, fields in segment.walk(segment.batch_before(self.start), REBUILD_CHUNK):
                if fields[BASE_OFFSET] >= end or fields[LEADER_EPOCH] < 0:
                    return  # the old formats know no epochs
                if (
                    fields[LEADER_EPOCH] > self.epochs.latest_epoch
                    and fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] >= self.start
                ):
                    self.epochs.assign(fields[LEADER_EPOCH], fields[BASE_OFFSET])
