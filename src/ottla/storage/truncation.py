"""Cutting the end off a log: a follower that took another way than its leader.

The order makes every crash harmless. First the recovery point is lowered on disk, so that recovery
will look at all that may be half cut; then the producer snapshots and the later segments go, newest
first, and their names are synced; then the segment with the new end is cut and synced, before
anything is appended: otherwise a record that was cut could come back after new ones of equal length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.logfiles.names import SEGMENT_SUFFIXES
from ottla.record.batch import (
    BASE_OFFSET,
    LAST_OFFSET_DELTA,
)
from ottla.storage import flush
from ottla.storage.deletions import Deletions, marks_from
from ottla.storage.errors import CorruptFile
from ottla.storage.recovery.replay import reload
from ottla.storage.segment import Segment

if TYPE_CHECKING:
    from ottla.storage.log import Log


def truncate_to(log: Log, offset: int, now_ms: int) -> bool:
    """See Log.truncate_to."""
    log.check_idle()
    if offset >= log.log_end_offset:
        return False
    if offset < log.log_start_offset:
        start_anew_at(log, offset, now_ms)
        return True
    flush.stop(log)
    if log.compaction is not None:
        log.compaction.stop()
    log.check_online()
    try:
        with log.open_files.reserve.lent():
            _truncate(log, offset, now_ms)
    except (OSError, CorruptFile) as error:
        raise log.go_offline(f"truncation to {offset} failed: {error}") from error
    return True


def _truncate(log: Log, offset: int, now_ms: int) -> None:
    segments = log.segments
    slot = segments.slot_of(offset)
    active = segments[slot]
    # A batch that reaches over the offset goes as a whole, and is fetched again.
    found = active.locate(offset)
    end = _end_of_rest(active, offset, found[0] if found is not None else active.size)
    if end < log.recovery_point or end < log.log_start_offset:
        log.owner.lower_offsets(log, end)
        log.lower_recovery_point(end)
    # Snapshots before segments: recovery takes them as proof that the segment before was synced.
    log.producers.truncate_and_reload(log.log_start_offset, end, now_ms)
    log.files.fsync_folder(log.folder)
    _take_marks_back(log, end)
    for segment in reversed(log.detach_from(slot + 1)):
        remove_files(segment)
    log.files.fsync_folder(log.folder)
    if found is not None:
        active.unseal()
        active.cut(found[0], end)
    active.unseal()
    active.load_tail(end)
    log.cut_to(end)
    log.epochs.truncate_from_end(end)
    log.epochs.write()
    reload(segments, log.producers, log.log_start_offset, end, now_ms)
    log.producers.high_watermark_moved(log.high_watermark)
    log.files.fsync_folder(log.folder)


def _take_marks_back(log: Log, end: int) -> None:
    """What marks at and after `end` hide is seen again. The snapshot is written before they go: it
    must never have a mark that the log has not. (Should they come back, recovery finds them.)"""
    deletions = log.deletions
    if deletions is None:
        return
    marks = list(marks_from(log.segments, end))
    for offset, ranges in marks:
        deletions.take_back(offset, ranges)
    if marks:
        log.files.replace_file(deletions.path, deletions.snapshot(end))
        deletions.changed = False


def _end_of_rest(segment: Segment, offset: int, position: int) -> int:
    """Where the batches before a position end; at it is the first that reaches `offset`. Not where
    that one begins: compaction leaves gaps, and the log must end where its last batch does, or the
    next start would miss one."""
    end = segment.base_offset
    for at, _, fields in segment.walk(segment.batch_before(offset - 1)):
        if at >= position:
            break
        end = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1
    return end


def start_anew_at(log: Log, offset: int, now_ms: int) -> None:
    """See Log.truncate_fully_and_start_at."""
    log.check_idle()
    flush.stop(log)
    if log.compaction is not None:
        log.compaction.stop()
    log.check_online()
    try:
        with log.open_files.reserve.lent():
            _start_anew(log, offset, now_ms)
    except OSError as error:
        raise log.go_offline(f"start at {offset} failed: {error}") from error


def _start_anew(log: Log, offset: int, now_ms: int) -> None:
    for retired in log.retiring:
        retired.rename()  # before a new segment may get the name of an old one
    log.owner.lower_offsets(log, 0)
    log.producers.truncate_fully_and_start_at(offset)
    if log.deletions is not None:
        log.files.replace_file(log.deletions.path, Deletions(log.folder).snapshot(0))
    log.files.fsync_folder(log.folder)
    for segment in reversed(log.detach_from(0)):
        remove_files(segment)
    log.epochs.clear()
    log.epochs.write()
    log.files.fsync_folder(log.folder)
    segment = log.next_segment(now_ms, offset)
    segment.create()
    segment.on_disk = True
    log.restart_at(offset, segment)
    log.files.fsync_folder(log.folder)


def remove_files(segment: Segment) -> None:
    """Removes a segment's files at once. (Readers that hold the log file go on.)"""
    segment.close()
    for suffix in SEGMENT_SUFFIXES:
        try:
            segment.files.unlink(segment.stem + suffix)
        except FileNotFoundError:
            pass
