"""Deleting single records in a simulated cluster, and erasing them, with the real checks, marks and
rewrites: as handlers/records/delete_records_at.py and upkeep/compaction.py have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.record.deletion import build_mark
from ottla.record.offset_set import OffsetSet
from ottla.replication.partition import Role
from ottla.storage.compaction.erasing import erasable_now, must_roll
from ottla.storage.compaction.plan import Dirt
from ottla.storage.compaction.rewrite import run_over
from ottla.storage.compaction.swap import Compaction
from ottla.storage.errors import UndeletableOffset
from ottla.storage.log.deletions import marks_from
from ottla.storage.log.producer_state import Origin
from ottla.storage.log.targets import check_bounds, check_records, not_deleted

if TYPE_CHECKING:
    from ottla.storage.log.log import Log
    from simulation_kit.broker import Life

FAST = 1e308


def delete(life: Life, key: tuple[str, int], where: float, acked: Callable[[int], None]) -> None:
    """Delete the record that lies at a fraction of the log, if there is one; `acked` is told its offset
    once the mark is committed."""
    partition = life.partitions.get(key)
    if partition is None or partition.role is not Role.LEADER or partition.under_min_isr:
        return
    log = partition.log
    start, stable = log.log_start_offset, log.last_stable_offset
    target = start + int(where * (stable - start))
    try:
        check_bounds(log, target, target + 1)
        not_deleted(log, target, target + 1, skip_deleted=False)
        check_records(log, target, target + 1, wait=True)
    except UndeletableOffset:
        return
    mark = bytearray(build_mark([(target, target + 1)]))
    _, _, _, end, is_committed = partition.append(mark, life.world.now, Origin.COORDINATOR)
    if is_committed:
        acked(target)
    else:
        partition.when_committed(end, lambda code: None if code else acked(target))


def erase(life: Life, log: Log) -> int:
    """Erase what can be, now; the number of records that went."""
    if log.offline is not None or log.deletions is None or log.is_busy:
        return 0
    now = life.world.now
    erasable, is_all = erasable_now(log, life.logs.synced_end(log))
    if not is_all and must_roll(log):
        log.roll(now)
    if not erasable:
        return 0
    dirt = Dirt(log.first_dirty_offset, log.active.base_offset, 0, 0, overdue=False)
    compaction = Compaction(log, dirt, now, 0, FAST, erasable, is_all)
    outcome = run_over(compaction.job, log.files)
    assert not outcome.skipped
    for replacement in outcome.replacements:
        swap = compaction.swap(replacement)
        assert swap is not None
        swap.run()
        assert swap.retired is not None
        swap.retired.remove()
    compaction.finish(outcome)
    life.logs.compacted(log, ())
    return outcome.records_dropped


def marked_in(log: Log) -> OffsetSet:
    """What the marks in a log hide, the marks with it: found anew."""
    found = OffsetSet()
    for offset, ranges in marks_from(log.segments, log.log_start_offset):
        found.add_all(ranges)
        found.add(offset, offset + 1)
    return found
