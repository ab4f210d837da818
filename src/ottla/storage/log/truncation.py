"""Cutting the end off a log: a follower that took another way than its leader.

The order makes every crash harmless. First the recovery point is lowered on disk, so that recovery
will look at all that may be half cut; then the producer snapshots and the later segments go, newest
first, and their names are synced; then the segment with the new end is cut and synced, before
anything is appended: otherwise a record that was cut could come back after new ones of equal length.

All of it waits for the disk. So a truncation comes as steps: whoever takes them runs each on whatever
thread it likes, and asks for the next one on the log's own. From the first to the last the log takes
neither appends nor flushes.

What needs room on the disk comes first, and changes nothing of the log: on a full disk that stays as it
is, and may be cut later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, TypeAlias

from ottla.logfiles.deletions import encode_deletions
from ottla.logfiles.names import SEGMENT_SUFFIXES
from ottla.record.batch import (
    BASE_OFFSET,
    LAST_OFFSET_DELTA,
)
from ottla.storage.errors import CorruptFile, LogOffline, OutOfResources, passes
from ottla.storage.log import flush
from ottla.storage.log.deletions import Deletions, marks_from
from ottla.storage.recovery.replay import reload
from ottla.storage.segments.segment import Segment

if TYPE_CHECKING:
    from ottla.storage.log.log import Log

# System calls, to be called one after the other; what one of them raises is thrown back in.
Steps: TypeAlias = Generator[Callable[[], None], None, None]
# System calls, and whether the log is as it was when one of them has failed.
Parts: TypeAlias = Generator[tuple[Callable[[], None], bool], None, None]


def do_all(steps: Steps) -> None:
    """Takes all steps here and now."""
    for step in steps:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the steps decide what becomes of it
            steps.throw(error)


class Truncation:
    """One truncation on its way, as others see it: something to wait for."""

    __slots__ = ("_lock", "_log", "_stopped")

    def __init__(self, log: Log) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, work: Callable[[], None], what: str, prepares: bool) -> None:
        """One step of it, on any thread. LogOffline if the disk fails, or if it was stopped;
        OutOfResources if it only `prepares` and may be tried again later."""
        log = self._log
        with self._lock:
            if self._stopped:
                raise LogOffline(log.name, log.offline or f"{what} was stopped")
            try:
                with log.open_files.reserve.lent():
                    work()
            except (OSError, CorruptFile) as error:
                if prepares and isinstance(error, OSError) and passes(error):
                    raise OutOfResources(log.name, f"{what} failed: {error}") from error
                raise log.go_offline(f"{what} failed: {error}") from error

    def stop(self) -> None:
        """No step runs afterwards: one that does is waited for. The log is not to be used any more."""
        with self._lock:
            self._stopped = True


def truncate_to(log: Log, offset: int, now_ms: int) -> Steps:
    """Truncate a log, as `Log.truncate_to` says."""
    if offset >= log.log_end_offset:
        log.check_idle()
    elif offset < log.log_start_offset:
        yield from start_anew_at(log, offset, now_ms)
    else:
        yield from _steps(log, _cut(log, offset, now_ms), f"truncation to {offset}")


def start_anew_at(log: Log, offset: int, now_ms: int) -> Steps:
    """See Log.truncate_fully_and_start_at."""
    yield from _steps(log, _begin_anew(log, offset, now_ms), f"start at {offset}")


def _steps(log: Log, parts: Parts, what: str) -> Steps:
    """The parts of a truncation, with the log held for them."""
    log.check_idle()
    truncation = Truncation(log)
    log.truncation_begun(truncation)
    try:
        flushing = log.flushing
        if flushing is not None:
            yield flushing.stop
            flush.end(log, flushing)
        if log.compaction is not None:
            log.compaction.stop()
        log.check_online()
        before = log.recovery_point, log.log_start_offset
        for part, prepares in parts:
            try:
                yield lambda part=part, prepares=prepares: truncation.run(  # type: ignore[misc]
                    part, what, prepares
                )
            except OutOfResources:
                log.offsets_stay(*before)
                raise
            log.check_online()
    except Exception:
        # Not when the steps are given up in between: then a thread may still be at work.
        log.truncation_ended()
        raise
    log.truncation_ended()


def _cut(log: Log, offset: int, now_ms: int) -> Parts:
    segments = log.segments
    slot = segments.slot_of(offset)
    active = segments[slot]
    position = end = -1

    def look() -> None:
        nonlocal position, end
        # A batch that reaches over the offset goes as a whole, and is fetched again.
        found = active.locate(offset)
        position = active.size if found is None else found[0]
        end = _end_of_rest(active, offset, position)

    yield look, True
    lowers = end < log.recovery_point or end < log.log_start_offset
    if lowers:
        # Before the checkpoint is: one that is collected meanwhile must not raise it again.
        log.lower_offsets(end)
    yield lambda: _announce(log, end, lowers, now_ms), True
    yield lambda: _truncate(log, slot, position, end, now_ms), False


def _announce(log: Log, end: int, lowers: bool, now_ms: int) -> None:
    if lowers:
        log.owner.lower_offsets(log, end)
    _take_marks_back(log, end, now_ms)


def _truncate(log: Log, slot: int, position: int, end: int, now_ms: int) -> None:
    segments = log.segments
    active = segments[slot]
    # Snapshots before segments: recovery takes them as proof that the segment before was synced.
    log.producers.truncate_and_reload(log.log_start_offset, end, now_ms)
    log.files.fsync_folder(log.folder)
    for segment in reversed(log.detach_from(slot + 1)):
        remove_files(segment)
    log.files.fsync_folder(log.folder)
    if position < active.size:
        active.unseal()
        active.cut(position, end)
    active.unseal()
    active.load_tail(end)
    log.cut_to(end)
    log.epochs.truncate_from_end(end)
    try:
        log.epochs.write()
    except OSError as error:
        if not passes(error):
            raise
        # The next flush writes it. Until then a start knows by the log's end which epochs are gone.
    reload(segments, log.producers, log.log_start_offset, end, now_ms)
    log.producers.high_watermark_moved(log.high_watermark)
    log.files.fsync_folder(log.folder)


def _take_marks_back(log: Log, end: int, now_ms: int) -> None:
    """Show again what marks at and after `end` hide. The snapshot is written before they go: it
    must never have a mark that the log has not. (Should they come back, recovery finds them.) Without
    any it is written, too: it says up to where no more marks are to be looked for."""
    deletions = log.deletions
    if deletions is None:
        return
    marks = list(marks_from(log.segments, end))
    for offset, ranges in marks:
        deletions.take_back(offset, ranges)
    try:
        log.files.replace_file(deletions.path, *encode_deletions(deletions.snapshot(end)))
    except OSError:
        for offset, ranges in marks:
            deletions.mark(offset, ranges, now_ms)
        raise
    deletions.stored(end)
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


def _begin_anew(log: Log, offset: int, now_ms: int) -> Parts:
    log.lower_offsets(0)
    yield lambda: _announce_nothing(log), True
    yield lambda: _start_anew(log, offset, now_ms), False


def _announce_nothing(log: Log) -> None:
    for retired in log.retiring:
        retired.rename()  # before a new segment may get the name of an old one
    log.owner.lower_offsets(log, 0)
    if log.deletions is not None:
        nothing = Deletions(log.folder).snapshot(0)
        log.files.replace_file(log.deletions.path, *encode_deletions(nothing))


def _start_anew(log: Log, offset: int, now_ms: int) -> None:
    log.producers.truncate_fully_and_start_at(offset)
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
