"""The life of a compaction on the log's thread: from the decision to the new segments in place.

The order of a swap, which is Kafka's, makes a crash at any point leave the old segments or the new:

    1. `.cleaned` → `.swap`, synced       from here on a crash leads to the new segment: the start that
                                          follows puts it in place (leftovers.py)
    2. in memory the new segment takes the place of the old ones, whose files become `.deleted`
    3. the names are synced: no old file can come back beside the new ones
    4. `.swap` → the segment's own name
    5. the names are synced

Steps 1, 3 and 5 wait for the disk and run on any thread; 2 and 4 change what the log knows, and run on
its own. Between the steps the log goes on: appends and reads are not concerned, since only settled
segments are replaced, and a segment in between is read under its `.swap` name. What would change those
segments, truncation, first has the swap ended (`Compaction.stop`): taken back before step 2, brought to
its end after. Retention passes such a log by.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from ottla.logfiles.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
)
from ottla.record.offset_set import OffsetSet
from ottla.storage.compaction.filter import LastOfProducer
from ottla.storage.compaction.plan import Dirt, SourceSegment, assess
from ottla.storage.compaction.rewrite import Job, Outcome, Replacement
from ottla.storage.errors import passes
from ottla.storage.log.retention import Retired
from ottla.storage.segments.segment import Segment

if TYPE_CHECKING:
    from ottla.storage.log.log import Log

logger = logging.getLogger(__name__)


def dirt_of(log: Log, synced_end: int, now_ms: int) -> Dirt:
    """How dirty a log is. `synced_end`: up to here it is stored that the log was synced. What lies
    after is looked at by recovery after a crash, which takes gaps for losses."""
    segments = log.segments
    sealed = [segments[slot] for slot in range(len(segments) - 1)]
    while sealed and not sealed[-1].settled:
        sealed.pop()
    return assess(
        sealed,
        segments[len(sealed)].base_offset,
        log.config,
        checkpoint=log.first_dirty_offset,
        log_start=log.log_start_offset,
        log_end=log.log_end_offset,
        stable_end=min(synced_end, log.last_stable_offset),
        now_ms=now_ms,
    )


class Compaction:
    """One pass over one log, on the log's thread. While it is the log's `compaction`, its segments
    have not been truncated."""

    __slots__ = ("_segments", "job", "log", "swapping")

    def __init__(
        self,
        log: Log,
        dirt: Dirt,
        now_ms: int,
        map_bytes: int,
        bytes_per_second: float,
        only_erase: OffsetSet | None = None,
        erases_all: bool = False,
    ) -> None:
        """Begins it: the job is to be run by a worker. With `only_erase`, a set that is not empty and
        lies in segments that may be cleaned, nothing but these records go. OSError if indexes cannot
        be read."""
        self.log = log
        # By base offset.
        self._segments: dict[int, Segment] = {}
        sources = []
        for slot, segment in enumerate(log.segments):
            if segment.base_offset >= dirt.first_uncleanable:
                break
            end = log.segments.end_of(slot, log.log_end_offset)
            if only_erase is not None and only_erase.first_in(segment.base_offset, end) is None:
                continue
            self._segments[segment.base_offset] = segment
            sources.append(SourceSegment(segment.base_offset, end, segment.size))
        config = log.config
        erasable = OffsetSet()
        if log.deletions is not None and only_erase is None:
            reach = sources[0].base_offset, sources[-1].end_offset
            erasable = log.deletions.erasable(*reach, log.high_watermark)
        self.job = Job(
            folder=log.folder,
            folder_identity=log.files.identity(log.folder),
            sources=tuple(sources),
            first_dirty=dirt.first_dirty,
            aborted=tuple(
                log.segments.aborted_transactions(sources[0].base_offset, sources[-1].end_offset)
            ),
            producers={
                producer_id: LastOfProducer(state.last_offset, state.epoch)
                for producer_id, state in log.producers.producers.items()
            },
            now_ms=now_ms,
            delete_retention_ms=config.delete_retention_ms,
            segment_bytes=config.segment_bytes,
            segment_index_bytes=config.segment_index_bytes,
            index_interval_bytes=config.index_interval_bytes,
            map_bytes=map_bytes,
            bytes_per_second=bytes_per_second,
            erasable=erasable if only_erase is None else only_erase,
            only_erases=only_erase is not None,
            erases_all=erases_all,
        )
        # The swap that is under way: at most one.
        self.swapping: Swap | None = None
        log.compaction_begun(self)

    @property
    def stopped(self) -> bool:
        return self.log.compaction is not self or self.log.offline is not None

    def swap(self, replacement: Replacement) -> Swap | None:
        """A swap that is to be brought to its end step by step, before the next one. None if the
        segments are not there any more, or the compaction was stopped: then its files go."""
        if self.stopped:
            return None
        segments = self.log.segments
        old = [self._segments[base] for base in replacement.replaces]
        first = segments.slot_of(old[0].base_offset)
        found = [segments[slot] for slot in range(first, min(first + len(old), len(segments)))]
        # By identity. Settled they still are: only truncation changes that.
        if len(found) != len(old) or any(a is not b for a, b in zip(found, old, strict=True)):
            self._remove_cleaned(old[0].stem)
            return None
        self.swapping = Swap(self, old, replacement.size)
        return self.swapping

    def finish(self, outcome: Outcome | None) -> None:
        """The pass is over; with an outcome, all of whose segments are in place, what it covered is
        clean from now on."""
        log, job = self.log, self.job
        if log.compaction is not self:
            return
        if not job.only_erases:
            log.compaction_ended(None if outcome is None else outcome.first_dirty)
            return
        log.compaction_ended()
        if outcome is not None and log.deletions is not None:
            since = job.now_ms if job.erases_all else log.deletions.since_ms
            gone = job.erasable
            for unreadable, _ in outcome.skipped:
                gone.discard(*unreadable)
            log.deletions.erased(gone, since)

    def stop(self) -> None:
        """Ends it at once: nothing of it goes on afterwards, and the log has the old segments or the
        new ones. Blocks if a swap has begun. (A job that runs ends when it sees that its licence is
        gone; until then no other may be begun for the log.)"""
        if self.log.compaction is not self:
            return
        self.log.compaction_ended()
        swap = self.swapping
        if swap is not None:
            swap.end()
        self._remove_cleaned(self.job.licence.removesuffix(LOG_SUFFIX + CLEANED_SUFFIX))

    def discard(self, outcome: Outcome) -> None:
        """Removes what was not put in place; once stopped, on any thread. (Of what was, nothing has
        these names.)"""
        for replacement in outcome.replacements:
            self._remove_cleaned(self._segments[replacement.replaces[0]].stem)

    def _remove_cleaned(self, stem: str) -> None:
        for suffix in SEGMENT_SUFFIXES:
            try:
                self.log.files.unlink(stem + suffix + CLEANED_SUFFIX)
            except FileNotFoundError:
                pass
            except OSError as error:
                logger.warning("%s: %s", self.log.name, error)


class Stage(IntEnum):
    """The stages of a swap: what was done last."""

    CLEANED = 0
    ANNOUNCED = 1  # the new files are `.swap`, on disk
    EXCHANGED = 2  # the log has the new segment; the old files are `.deleted`
    SETTLED = 3  # on disk, too
    NAMED = 4  # the new files have their names
    DONE = 5  # on disk, too
    ABANDONED = 6


class Swap:
    """One new segment in the place of several old ones. See the module's docstring."""

    __slots__ = ("_compaction", "_exchanged", "_lock", "_log", "_new", "_old", "retired", "stage")

    def __init__(self, compaction: Compaction, old: Sequence[Segment], size: int) -> None:
        self._compaction = compaction
        self._log = log = compaction.log
        self._old = old
        self._new = Segment(
            log.folder,
            old[0].base_offset,
            log.files,
            log.open_files,
            log.config.segment_index_bytes,
            size=size,
            sealed=True,
        )
        self._new.suffix = SWAP_SUFFIX
        self.stage = Stage.CLEANED
        # The old files, once they are `.deleted`.
        self.retired: Retired | None = None
        # All of the exchange was done, the renames too.
        self._exchanged = False
        # Held during a step, so that `end` finds none half done.
        self._lock = threading.RLock()

    @property
    def over(self) -> bool:
        return self.stage >= Stage.DONE

    @property
    def blocks(self) -> bool:
        """Whether the next step waits for the disk, and may be run on any thread; the others belong
        to the log's."""
        return self.stage in (Stage.CLEANED, Stage.EXCHANGED, Stage.NAMED)

    def step(self) -> None:
        """The next step, if it is not over. OSError, for `failed`."""
        with self._lock:
            match self.stage:
                case Stage.CLEANED:
                    self._announce()
                case Stage.ANNOUNCED:
                    self._exchange()
                case Stage.EXCHANGED:
                    self._sync(Stage.SETTLED)
                case Stage.SETTLED:
                    self._name()
                case Stage.NAMED:
                    self._sync(Stage.DONE)
            if self.over:
                self._compaction.swapping = None

    def run(self) -> None:
        """Do all steps that are left, on this thread."""
        try:
            while not self.over:
                self.step()
        except OSError as error:
            self.failed(error)

    def may_be_retried(self, error: OSError) -> bool:
        """Whether the step that failed can be taken again, later: nothing is half done, and the error
        passes."""
        return passes(error) and (self.stage is Stage.CLEANED or self._exchanged)

    def failed(self, error: OSError) -> None:
        """A step did not succeed. Before the exchange nothing has changed, and the old segments stay;
        later the names on disk are unknown, and the log goes offline for the next start to look."""
        with self._lock:
            if self.stage <= Stage.ANNOUNCED:
                logger.warning("%s: compaction failed: %s", self._log.name, error)
                self._abandon()
            elif self._log.offline is None:
                self._log.go_offline(f"compaction failed: {error}")

    def end(self) -> None:
        """Takes the exchange back, or finishes it if it was announced."""
        with self._lock:
            if self.stage <= Stage.ANNOUNCED:
                self._abandon()
            else:
                self.run()

    # The steps

    def _announce(self) -> None:
        files = self._log.files
        stem = self._new.stem
        # The log file last. As long as a `.cleaned` file is there, a start takes none of it.
        for suffix in reversed(SEGMENT_SUFFIXES):
            try:
                files.rename(stem + suffix + CLEANED_SUFFIX, stem + suffix + SWAP_SUFFIX)
            except FileNotFoundError:
                if suffix == LOG_SUFFIX:
                    raise
        files.fsync_folder(self._log.folder)
        self.stage = Stage.ANNOUNCED

    def _exchange(self) -> None:
        log = self._log
        log.replace_segments(self._old, self._new)
        self.stage = Stage.EXCHANGED
        renamed = []
        for segment in self._old:
            segment.close()
            # Log files first: an index without its log is removed at the next start.
            for suffix in SEGMENT_SUFFIXES:
                path = segment.stem + suffix
                try:
                    log.files.rename(path, path + DELETED_SUFFIX)
                except FileNotFoundError:
                    continue
                renamed.append(path + DELETED_SUFFIX)
            # Who still holds the segment finds its files.
            segment.suffix = DELETED_SUFFIX
            for index in segment.indexes_in_use:
                index.path += DELETED_SUFFIX
            if segment is not self._old[0]:
                path_of_snapshot = log.producers.mark_snapshot_deleted(segment.base_offset)
                if path_of_snapshot is not None:
                    renamed.append(path_of_snapshot)
        # What was to be erased is not kept for a while in files that are on their way out.
        at_once = self._compaction.job.only_erases
        delay_ms = 0 if at_once else log.config.file_delete_delay_ms
        self.retired = Retired(log.name, log.folder, log.files, (), renamed, delay_ms)
        self._exchanged = True

    def _sync(self, stage: Stage) -> None:
        self._log.files.fsync_folder(self._log.folder)
        self.stage = stage

    def _name(self) -> None:
        new = self._new
        files = self._log.files
        # The log file last, here too: as long as it is `.swap`, the next start comes back to it.
        for suffix in reversed(SEGMENT_SUFFIXES):
            try:
                files.rename(new.stem + suffix + SWAP_SUFFIX, new.stem + suffix)
            except FileNotFoundError:
                if suffix == LOG_SUFFIX:
                    raise
        new.suffix = ""
        for index in new.indexes_in_use:
            index.path = index.path.removesuffix(SWAP_SUFFIX)
        self.stage = Stage.NAMED

    def _abandon(self) -> None:
        """Takes the new files away: as it came, the log file is `.cleaned` as long as there is any
        other, so that no start puts a part of them in place."""
        log = self._log
        files = log.files
        stem = self._new.stem
        self.stage = Stage.ABANDONED
        self._compaction.swapping = None
        cleaned = stem + LOG_SUFFIX + CLEANED_SUFFIX
        try:
            try:
                files.rename(stem + LOG_SUFFIX + SWAP_SUFFIX, cleaned)
            except FileNotFoundError:
                pass
            files.fsync_folder(log.folder)
            for suffix in SEGMENT_SUFFIXES:
                if suffix != LOG_SUFFIX:
                    self._remove(stem + suffix + SWAP_SUFFIX)
                    self._remove(stem + suffix + CLEANED_SUFFIX)
            files.fsync_folder(log.folder)
            self._remove(cleaned)
        except FileNotFoundError:
            pass  # the folder is gone, with the topic
        except OSError as error:
            if log.offline is None:
                log.go_offline(f"a compacted segment could not be removed: {error}")

    def _remove(self, path: str) -> None:
        try:
            self._log.files.unlink(path)
        except FileNotFoundError:
            pass
