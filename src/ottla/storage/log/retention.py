"""Which segments of a log may go. The decision is pure; `retire` carries it out.

Whole segments go, oldest first, as long as each may: because all of its records are older than
`retention.ms`, because the log is larger than `retention.bytes` without it, or because the log
starts after it. None goes that is not below the high watermark in full. A compacted topic loses
only what lies below the log start.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.logfiles.names import DELETED_SUFFIX, SEGMENT_SUFFIXES
from ottla.storage.config import LogConfig
from ottla.storage.errors import OutOfResources, passes
from ottla.storage.files import Files
from ottla.storage.segments.segment import Segment

if TYPE_CHECKING:
    from ottla.storage.log.log import Log


class SegmentFacts(NamedTuple):
    """What retention knows of a segment."""

    size: int
    end_offset: int  # where the next one begins, or the log's end
    newest_ms: int  # its largest timestamp, or when its file was last written if it has none


def count_to_delete(
    segments: Sequence[SegmentFacts],
    config: LogConfig,
    log_start_offset: int,
    high_watermark: int,
    now_ms: int,
) -> int:
    """How many of the segments, counted from the oldest, may go."""
    by_age = config.deletes and config.retention_ms >= 0
    by_size = config.deletes and config.retention_bytes >= 0
    excess = sum(segment.size for segment in segments) - config.retention_bytes
    count = 0
    for segment in segments:
        if segment.end_offset > high_watermark:
            break
        if segment.size == 0 and segment is segments[-1]:
            break  # the empty active segment: nothing would be gained
        too_old = by_age and now_ms - segment.newest_ms > config.retention_ms
        too_much = by_size and excess >= segment.size
        if not (too_old or too_much or segment.end_offset <= log_start_offset):
            break
        excess -= segment.size
        count += 1
    return count


class Retired:
    """Segments that were taken out of a log: renamed to `*.deleted` by `rename`, removed for good by
    `remove` after `file.delete.delay.ms`. Both run on any thread; readers that hold the files go
    on. The names are the log's again at once, so whoever is about to use them anew settles first
    what becomes of the old files: `rename` them now, or `cancel`."""

    __slots__ = (
        "_lock",
        "_paths",
        "_renamed",
        "_synced",
        "delay_ms",
        "done",
        "files",
        "folder",
        "name",
    )

    def __init__(
        self,
        name: str,
        folder: str,
        files: Files,
        segments: Sequence[Segment],
        renamed: list[str],
        delay_ms: int,
    ) -> None:
        self.name = name
        self.folder = folder
        self.files = files
        self.delay_ms = delay_ms
        # Nothing is left to do.
        self.done = False
        # Oldest segment first, the log file before its indexes.
        self._paths = [segment.stem + suffix for segment in segments for suffix in SEGMENT_SUFFIXES]
        self._renamed = renamed
        # The renames have been made to last; there may be none.
        self._synced = not self._paths
        self._lock = threading.Lock()

    def rename(self, one_by_one: bool = False) -> None:
        """Rename the files. Not before the log's new start was made to last, or a crash could bring back
        some and not others; or one by one, oldest first, each made to last."""
        with self._lock:
            self._rename(one_by_one)

    def _rename(self, one_by_one: bool) -> None:
        """Renames the files that are not renamed yet. After an error the next call goes on there."""
        if self._synced:
            return
        while self._paths:
            path = self._paths[0]
            try:
                self.files.rename(path, path + DELETED_SUFFIX)
                self._renamed.append(path + DELETED_SUFFIX)
                del self._paths[0]
            except FileNotFoundError:
                del self._paths[0]
                continue
            if one_by_one:
                self.files.fsync_folder(self.folder)
        self.files.fsync_folder(self.folder)
        self._synced = True

    def remove(self) -> None:
        with self._lock:
            # Some are left if it failed for want of descriptors or memory.
            self._rename(one_by_one=True)
            while self._renamed:
                try:
                    self.files.unlink(self._renamed[0])
                except FileNotFoundError:
                    pass
                del self._renamed[0]
            self.done = True

    def cancel(self) -> None:
        """Touch nothing in the folder any more: it is about to go, or to be left alone."""
        with self._lock:
            self._paths = []
            self._renamed = []
            self._synced = True
            self.done = True


def facts_of(log: Log) -> list[SegmentFacts]:
    """May read time indexes, and the tail of a segment whose index ends early."""
    facts = []
    for slot, segment in enumerate(log.segments):
        newest = segment.max_timestamp if segment.size else -1
        if newest < 0 and segment.on_disk:
            newest = int(segment.files.modified(segment.path) * 1000)
        facts.append(
            SegmentFacts(segment.size, log.segments.end_of(slot, log.log_end_offset), newest)
        )
    return facts


def retire(log: Log, now_ms: int) -> Retired | None:
    """See Log.delete_old_segments."""
    if log.offline is not None:
        return None
    if log.compaction is not None and log.compaction.swapping is not None:
        return None  # the names of its files are changing; next time
    try:
        facts = facts_of(log)
    except OSError as error:
        if passes(error):
            raise OutOfResources(log.name, str(error)) from error
        raise log.go_offline(f"read failed: {error}") from error
    count = count_to_delete(facts, log.config, log.log_start_offset, log.high_watermark, now_ms)
    if count and log.flushing is not None:
        # A flush holds on to segments at and after the recovery point: those wait for it.
        while count and facts[count - 1].end_offset > log.recovery_point:
            count -= 1
    if not count:
        return None
    if count == len(facts):
        log.roll(now_ms)
    segments = log.detach_oldest(count)
    renamed = []
    for segment in segments:
        path = log.producers.mark_snapshot_deleted(segment.base_offset)
        if path is not None:
            renamed.append(path)
    delay_ms = log.config.file_delete_delay_ms
    retired = Retired(log.name, log.folder, log.files, segments, renamed, delay_ms)
    log.retire(retired)
    return retired
