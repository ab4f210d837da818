"""Log compaction by the clock: which log next, its work in a worker process, its new segments in place.

The dirtiest log goes first, `log.cleaner.threads` of them at a time. Deciding and swapping happen on the
loop, where the logs live; reading and writing of segments in worker processes of their own, so that a
long pass keeps no produced batch waiting; syncs in threads. When nothing is dirty enough, the next look
is after `log.cleaner.backoff.ms`.

Records that were deleted one by one are erased by the same means, before anything is compacted, in any
log (storage/compaction/erasing.py), also in one that cannot be compacted. One that can
be is compacted first, as far as what is to be erased lies in its dirty part.

Only logs that are loaded are looked at. After a clean start that is a log which somebody uses; the
others have nothing new, and retention loads them within its interval.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.server.disk.workers import Workers
from ottla.server.observability.limited_log import LimitedLog
from ottla.server.upkeep.periodic import now_ms
from ottla.storage.errors import CorruptFile, LogOffline, StorageError, is_full_disk, passes

if TYPE_CHECKING:
    from ottla.record.offset_set import OffsetRange
    from ottla.server.configuration.broker_config import BrokerConfig
    from ottla.storage.compaction.plan import Dirt
    from ottla.storage.compaction.rewrite import Outcome
    from ottla.storage.compaction.swap import Compaction, Swap
    from ottla.storage.log.log import Log
    from ottla.storage.log.retention import Retired
    from ottla.storage.logs import Logs

log = logging.getLogger("ottla.compaction")
limited_log = LimitedLog(log)

# After a pass that failed for no fault of the log (a full disk, a worker that was killed).
RETRY_MS = 60_000
# The same for erasing on a full disk, as long as it gets on: replaced files are removed by then.
RETRY_CRAMPED_SECONDS = 2.0
# Between attempts at one step of a swap, while there are no descriptors or no room.
RETRY_STEP_SECONDS = 1.0
# Logs that are looked at before the loop gets its turn.
LOGS_AT_ONCE = 50


class Compactor:
    """Starts and stops with the broker. Imports what it needs when the first log wants it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        logs: Logs,
        threads: ThreadPoolExecutor,
        config: Callable[[], BrokerConfig],
    ) -> None:
        self._loop = loop
        self._logs = logs
        self._threads = threads
        self._config = config
        self._task: asyncio.Task[None] | None = None
        # Each with the pass that it is about. A log is in it until its job has ended, also when the
        # compaction was stopped.
        self._passes: dict[Log, asyncio.Task[None]] = {}
        self._running: dict[Log, Compaction] = {}
        # Logs that cannot be compacted, and why; those that are to be left alone for a while.
        self.uncleanable: dict[Log, str] = {}
        self._not_before: dict[Log, float] = {}
        # The same for erasing, which goes on in a log that cannot be compacted: segments of a log from
        # which nothing can be erased, by their offsets, and logs that are to be left alone for a while.
        self.unerasable: dict[Log, dict[OffsetRange, str]] = {}
        self._erase_not_before: dict[Log, float] = {}
        # Logs for which a pass found no room: the next ones take a segment at a time. With the number of
        # records that were to be erased then.
        self._cramped: dict[Log, int] = {}
        self._workers: Workers | None = None
        self._processes = 0
        # Passes that came to their end, for tests and metrics; those that erased are not among them.
        self.passes = 0
        self.erasures = 0

    def start(self) -> None:
        if self._config().log_cleaner_enable:
            self._task = self._loop.create_task(self._run(), name="compaction")

    async def stop(self) -> None:
        """No more passes; what is under way ends at once, with the old segments or the new."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for compaction in self._running.values():
            compaction.stop()
        if self._passes:
            await asyncio.wait(self._passes.values())
        if self._workers is not None:
            self._workers.stop()

    # Which log

    async def _run(self) -> None:
        while True:
            config = self._config()
            try:
                await self._begin_passes(config.log_cleaner_threads)
            except Exception:
                # Our mistake. Without this task nothing would be compacted or erased any more.
                log.exception("looking for logs to compact failed, and is tried again")
            seconds = max(config.log_cleaner_backoff_ms / 1000, 0.01)
            if self._passes:
                await asyncio.wait(
                    self._passes.values(),
                    timeout=seconds,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            else:
                await asyncio.sleep(seconds)

    async def _begin_passes(self, most: int) -> None:
        while len(self._passes) < most and self._erase_some():
            pass
        while len(self._passes) < most:
            found = await self._dirtiest()
            if found is None or not self._begin(found):
                break

    async def _dirtiest(self) -> Log | None:
        now = now_ms()
        best: Log | None = None
        best_ratio = -1.0
        loaded = self._logs.loaded()
        known: dict[Log, Any]
        for known in (
            self.uncleanable,
            self._not_before,
            self.unerasable,
            self._erase_not_before,
            self._cramped,
        ):
            for gone in known.keys() - set(loaded):
                del known[gone]
        looked_at = 0
        for each in loaded:
            if not each.config.compacts or len(each.segments) < 2 or each.offline is not None:
                continue
            if each in self._passes or each in self.uncleanable or each.truncation is not None:
                continue
            if each in self._logs.relocating:
                continue
            if self._not_before.get(each, 0.0) > self._loop.time():
                continue
            dirt = self._assess(each, now)
            if dirt is not None and dirt.ratio > best_ratio:
                best, best_ratio = each, dirt.ratio
            looked_at += 1
            if looked_at % LOGS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return best

    def _assess(self, each: Log, now: int) -> Dirt | None:
        """The dirty ratio of a log, if it is high enough for a pass."""
        from ottla.storage.compaction.plan import wants_cleaning
        from ottla.storage.compaction.swap import dirt_of

        try:
            dirt = dirt_of(each, self._logs.synced_end(each), now)
        except (OSError, CorruptFile) as error:
            self._failed(each, error)
            return None
        return dirt if wants_cleaning(dirt, each.config) else None

    def _failed(self, each: Log, error: OSError | CorruptFile) -> None:
        if isinstance(error, OSError) and passes(error):
            self._put_off(each)
        else:
            self._set_aside(each, str(error))

    def _put_off(self, each: Log) -> None:
        self._not_before[each] = self._loop.time() + RETRY_MS / 1000

    def _set_aside(self, each: Log, reason: str) -> None:
        self.uncleanable[each] = reason
        log.error("cannot be compacted: log=%s %s", each.name, reason)

    # Erasing

    def _erase_some(self) -> bool:
        """Begins to erase what is due in some log; False if there is none."""
        now = now_ms()
        for each in self._logs.loaded():
            if (
                each.deletions is None
                or not each.deletions.since_ms
                or each.offline is not None
                or each.compaction is not None
                or each.is_busy
                or each in self._passes
                or self._erase_not_before.get(each, 0.0) > self._loop.time()
            ):
                continue
            try:
                if self._erase(each, now):
                    return True
            except (OSError, StorageError) as error:
                self._put_erasing_off(each, error)
        return False

    def _put_erasing_off(self, each: Log, error: Exception) -> None:
        limited_log.warning("erasing in %s is put off: %s", each.name, error)
        seconds = RETRY_MS / 1000
        if isinstance(error, OSError) and is_full_disk(error) and each.deletions is not None:
            left = each.deletions.unerased.count
            if left != self._cramped.get(each):
                # A single segment may find room, once the files that it takes the place of are gone.
                seconds = RETRY_CRAMPED_SECONDS
            self._cramped[each] = left
        self._erase_not_before[each] = self._loop.time() + seconds

    def _erase(self, each: Log, now: int) -> bool:
        """Whether a pass over the log was begun."""
        from ottla.storage.compaction.erasing import erasable_now, is_due, is_overdue, must_roll
        from ottla.storage.compaction.plan import Dirt
        from ottla.storage.compaction.swap import Compaction

        if not is_due(each, now):
            return False
        synced_end = self._logs.synced_end(each)
        most_bytes = 1 if each in self._cramped else None
        erasable, is_all = erasable_now(each, synced_end, self.unerasable.get(each, ()), most_bytes)
        if not is_all and must_roll(each):
            each.roll(now)  # it is looked at again once it is synced
        if not erasable:
            if is_all and each.deletions is not None:
                # What cannot be read does not make all that is marked from now on due at once.
                each.deletions.erased(erasable, now)
            return False
        state = self._to_compact_first(each, synced_end, now)
        if state is not None:
            if erasable.first_in(state.first_dirty, state.first_uncleanable) is not None:
                return self._begin_with(each, state, now)
            if not is_overdue(each, now):
                # An open transaction, or replicas that are behind, may hold compaction up for a while.
                erasable, is_all = erasable.within(0, state.first_dirty), False
                if not erasable:
                    return False
        config = self._config()
        rate = config.log_cleaner_io_max_bytes_per_second / max(config.log_cleaner_threads, 1)
        dirt = Dirt(each.first_dirty_offset, each.active.base_offset, 0, 0, overdue=False)
        self._start(Compaction(each, dirt, now, 0, rate, erasable, is_all))
        return True

    def _to_compact_first(self, each: Log, synced_end: int, now: int) -> Dirt | None:
        """How dirty a log is of which nothing should be erased that no pass has collected the keys of:
        once the bytes are gone nobody knows of which key they were, and older records of it would stay,
        here and not on replicas that were compacted before. None if the log is not compacted, or cannot
        be now."""
        from ottla.storage.compaction.swap import dirt_of

        if (
            not each.config.compacts
            or each in self.uncleanable
            or self._not_before.get(each, 0.0) > self._loop.time()
        ):
            return None
        try:
            dirt = dirt_of(each, synced_end, now)
        except (OSError, CorruptFile) as error:
            self._failed(each, error)
            return None
        if each in self._logs.relocating:
            return dirt._replace(first_uncleanable=dirt.first_dirty)  # nothing, for a while
        return dirt

    # One pass

    def _begin(self, each: Log) -> bool:
        """False if it is not to be looked at again now."""
        now = now_ms()
        # Assessed anew: other work was done since it was found.
        dirt = None if each.offline is not None else self._assess(each, now)
        if dirt is None or each.compaction is not None or each.truncation is not None:
            return False
        if each in self._logs.relocating:
            return False
        self._begin_with(each, dirt, now)
        return True

    def _begin_with(self, each: Log, dirt: Dirt, now: int) -> bool:
        """Whether a pass over a log in this state was begun."""
        from ottla.storage.compaction.swap import Compaction

        config = self._config()
        threads = max(config.log_cleaner_threads, 1)
        try:
            compaction = Compaction(
                each,
                dirt,
                now,
                int(
                    config.log_cleaner_dedupe_buffer_size
                    / threads
                    * config.log_cleaner_io_buffer_load_factor
                ),
                config.log_cleaner_io_max_bytes_per_second / threads,
            )
        except (OSError, CorruptFile) as error:
            self._failed(each, error)
            return False
        self._start(compaction)
        return True

    def _start(self, compaction: Compaction) -> None:
        each = compaction.log
        self._running[each] = compaction
        task = self._loop.create_task(self._compact(compaction), name=f"compaction of {each.name}")
        self._passes[each] = task
        task.add_done_callback(partial(self._ended, each))

    def _ended(self, each: Log, task: asyncio.Task[None]) -> None:
        self._passes.pop(each, None)
        compaction = self._running.pop(each, None)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if compaction is not None and compaction.job.only_erases:
            self._put_erasing_off(each, RuntimeError(repr(error)))
        else:
            self._set_aside(each, repr(error))
        log.error("compaction of %s failed", each.name, exc_info=error)

    async def _compact(self, compaction: Compaction) -> None:
        from ottla.storage.compaction.rewrite import Cancelled, Uncleanable, run

        each = compaction.log
        outcome = None
        try:
            outcome = await self._pool().run(partial(run, compaction.job))
            await self._put_in_place(compaction, outcome)
        except Cancelled:
            pass  # truncated, deleted, or the broker stops
        except Uncleanable as error:
            self._set_aside(each, str(error))
        except OSError as error:
            if compaction.stopped:
                pass
            elif compaction.job.only_erases:
                self._put_erasing_off(each, error)
            else:
                limited_log.warning("compaction of %s is put off: %s", each.name, error)
                self._put_off(each)
        finally:
            compaction.stop()
            if outcome is not None:
                await self._loop.run_in_executor(self._threads, compaction.discard, outcome)

    async def _put_in_place(self, compaction: Compaction, outcome: Outcome) -> None:
        each = compaction.log
        before = each.size
        retired: list[Retired] = []
        complete = True
        try:
            for replacement in outcome.replacements:
                swap = compaction.swap(replacement)
                if swap is None or not await self._swap(swap):
                    complete = False
                if swap is not None and swap.retired is not None:
                    retired.append(swap.retired)
                if not complete and not compaction.job.only_erases:
                    # What stays as it is may have older records of keys whose tombstones, or deleted
                    # records, are not in the segments after it any more.
                    break
        except LogOffline:
            complete = False
        finally:
            complete = complete and not compaction.stopped
            compaction.finish(outcome if complete else None)
            self._logs.compacted(each, retired)
        if complete and compaction.job.only_erases:
            for offsets, why in outcome.skipped:
                self.unerasable.setdefault(each, {})[offsets] = why
                log.error(
                    "deleted records cannot be erased: log=%s offsets=%d-%d %s",
                    each.name, offsets[0], offsets[1] - 1, why,
                )  # fmt: skip
            if compaction.job.erases_all:
                self._cramped.pop(each, None)
            self.erasures += 1
            log.info("erased: log=%s records=%d", each.name, outcome.records_dropped)
        elif complete:
            self.unerasable.pop(each, None)  # its segments are others now
            self.passes += 1
            log.info(
                "compacted: log=%s first_dirty=%d bytes=%d bytes_before=%d records_dropped=%d",
                each.name, outcome.first_dirty, each.size, before, outcome.records_dropped,
            )  # fmt: skip

    async def _swap(self, swap: Swap) -> bool:
        """Replaces the segments with the new one; whether that succeeded."""
        from ottla.storage.compaction.swap import Stage

        while not swap.over:
            try:
                if swap.blocks:
                    await self._loop.run_in_executor(self._threads, swap.step)
                else:
                    swap.step()
            except OSError as error:
                if swap.may_be_retried(error):
                    log.warning("a step of a compaction is tried again: %s", error)
                    await asyncio.sleep(RETRY_STEP_SECONDS)
                    continue
                swap.failed(error)
                return False
        return swap.stage is Stage.DONE

    def _pool(self) -> Workers:
        processes = max(self._config().log_cleaner_threads, 1)
        if self._workers is None or processes != self._processes:
            if self._workers is not None:
                self._workers.stop()
            self._workers = Workers(self._loop, processes)
            self._processes = processes
        return self._workers
