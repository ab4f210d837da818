"""Appends that cannot be done at once.

Most appends are a `pwrite` into the page cache, a few microseconds on the loop. Two kinds are not:
batches that must be recompressed or converted first (done in a worker process), and any append to a
folder whose disk is behind (a write may then stand still for seconds in the kernel). Those go through
a lane: per partition, in order, one at a time, with the slow part off the loop. While a partition has
a lane, every append to it has to queue there, or it would overtake.

A follower's work comes here for the same reasons: its appends while the disk is behind, and always when
its log is cut, which waits for several syncs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.replication import following
from ottla.server.failures import let_go_of_frames
from ottla.server.observability.limited_log import LimitedLog
from ottla.storage.errors import StorageError
from ottla.storage.log.producer_state import Origin

if TYPE_CHECKING:
    from ottla.replication.partition import Appended, Partition
    from ottla.storage.log.truncation import Steps

log = logging.getLogger("ottla.lanes")
limited_log = LimitedLog(log)

# A write into the page cache takes 1 µs to 1 ms; beyond this the disk is holding writers back.
SLOW_WRITE_SECONDS = 0.02
# A larger batch that has waited in a lane anyhow is written by a thread: a copy of a megabyte is half
# a millisecond for which the loop would serve nobody else.
DIRECT_BYTES = 64 << 10
# How long a folder counts as slow after such a write, unless a quick one comes first.
SLOW_PERIOD_SECONDS = 2.0
QUICK_WRITE_SECONDS = 0.002

# Batches on their way; the memory is the append's own until its `Done` is called.
Batches = bytearray | memoryview
Transform = Callable[[Batches], Awaitable[Batches]]
Done = Callable[["Appended | Exception"], None]
Work = Callable[[], Awaitable[Any]]


class Lanes:
    """Decides whether an append goes straight or through a lane."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: ThreadPoolExecutor) -> None:
        self.loop = loop
        self.threads = threads
        # Data folder -> until when it counts as slow.
        self.slow: dict[str, float] = {}
        self._held_back_until = float("-inf")
        self.open: set[Lane] = set()

    def is_slow(self, log_folder: str) -> bool:
        """Whether writes to the disk of this log's folder have been held back lately."""
        if not self.slow:
            return False
        folder = os.path.dirname(log_folder)
        until = self.slow.get(folder)
        if until is None:
            return False
        if until < time.monotonic():
            del self.slow[folder]
            return False
        return True

    def mark_slow(self, log_folder: str, seconds: float) -> None:
        folder = os.path.dirname(log_folder)
        if folder not in self.slow:
            log.debug(
                "slow disk: a write took %.0f ms, appends move to threads: folder=%s",
                seconds * 1e3,
                folder,
            )
        self.slow[folder] = time.monotonic() + SLOW_PERIOD_SECONDS

    def hold_back(self, folders: Iterable[str]) -> None:
        """Has appends to these data folders done by threads for a while, however quick they are. Any
        thread may ask for it."""
        self._held_back_until = until = time.monotonic() + SLOW_PERIOD_SECONDS
        for folder in folders:
            self.slow[folder] = until

    def mark_quick(self, log_folder: str) -> None:
        if time.monotonic() >= self._held_back_until:
            self.slow.pop(os.path.dirname(log_folder), None)

    def append(
        self,
        partition: Partition,
        batches: Batches,
        done: Done,
        transform: Transform | None = None,
        origin: Origin = Origin.CLIENT,
    ) -> None:
        """Queue an append; `done` is called on the loop with its result or its error."""
        self._lane_of(partition).add(
            partial(self._append, partition, batches, transform, origin), done
        )

    def work(
        self,
        partition: Partition,
        steps: Steps,
        done: Callable[[Exception | None], None],
        measured: str | None = None,
    ) -> None:
        """Queue the steps of a follower's work; `done` is called on the loop with None or their
        error. `measured`: the log's folder, if each step is a write to it."""
        self._lane_of(partition).add(partial(self._take_steps, steps, measured), done)

    def _lane_of(self, partition: Partition) -> Lane:
        lane = partition.lane
        if lane is None:
            lane = partition.lane = Lane(self, partition)
            self.open.add(lane)
        assert isinstance(lane, Lane)
        return lane

    async def _append(
        self,
        partition: Partition,
        batches: Batches,
        transform: Transform | None,
        origin: Origin,
    ) -> Appended:
        if transform is not None:
            batches = await transform(batches)
        log = partition.log
        now_ms = time.time_ns() // 1_000_000
        if len(batches) <= DIRECT_BYTES and not self.is_slow(log.folder):
            return partition.append(batches, now_ms, origin)
        append = partition.prepare(batches, now_ms, origin)
        if append.duplicate:
            return partition.commit(append)
        log.hand_out(append)
        took = await self._run(partial(log.write, append))
        self.wrote(log.folder, took)
        return partition.commit(append)

    async def _take_steps(self, steps: Steps, measured: str | None) -> None:
        try:
            step = next(steps)
            while True:
                try:
                    took = await self._run(step)
                    if measured is not None:
                        self.wrote(measured, took)
                except Exception as error:  # noqa: BLE001 - the steps decide what becomes of it
                    step = steps.throw(error)
                else:
                    step = next(steps)
        except StopIteration:
            pass

    async def _run(self, call: Callable[[], None]) -> float:
        """Have a call done by a thread; returns the seconds that it took."""

        def timed() -> float:
            # Measured here: waiting for a free thread says nothing about the disk.
            started = time.monotonic()
            call()
            return time.monotonic() - started

        return await self.loop.run_in_executor(self.threads, timed)

    def wrote(self, log_folder: str, seconds: float) -> None:
        """Take note of how long a write to this log's folder took, in a thread."""
        if seconds > SLOW_WRITE_SECONDS:
            self.mark_slow(log_folder, seconds)
        elif seconds < QUICK_WRITE_SECONDS and self.slow:
            # It was only a moment, or no disk at all: a thread of another process had the processor.
            self.mark_quick(log_folder)

    async def drained(self, seconds: float) -> bool:
        """Wait until everything that was queued has been answered. What has not after that time is
        answered with errors, and False says so."""
        deadline = self.loop.time() + seconds
        while self.open:
            left = deadline - self.loop.time()
            if left <= 0:
                break
            await asyncio.wait([lane.task for lane in self.open], timeout=left)
        abandoned = [lane.task for lane in self.open]
        for lane in self.open:
            lane.abandon()
        if abandoned:
            await asyncio.wait(abandoned)
        return not abandoned


class Lane:
    """One partition's queue, alive as long as something is in it."""

    __slots__ = ("_items", "_lanes", "_partition", "_under_way", "task")

    def __init__(self, lanes: Lanes, partition: Partition) -> None:
        self._lanes = lanes
        self._partition = partition
        self._items: deque[tuple[Work, Callable[[Any], None]]] = deque()
        # Whom to tell of the work that was begun.
        self._under_way: Callable[[Any], None] | None = None
        self.task: asyncio.Task[None] = lanes.loop.create_task(self._run())

    def add(self, work: Work, done: Callable[[Any], None]) -> None:
        """`done` gets what comes of the work, or its error."""
        self._items.append((work, done))

    def abandon(self) -> None:
        """Fails all that waits: the broker stops and does not wait for workers or disks."""
        log.warning(
            "the stop does not wait for appends: topic=%s partition=%d queued=%d",
            self._partition.topic, self._partition.index, len(self._items) + 1,
        )  # fmt: skip
        self.task.cancel()

    async def _run(self) -> None:
        try:
            while self._items:
                work, done = self._items.popleft()
                self._under_way = done
                try:
                    result = await work()
                except (StorageError, ProtocolError, ValueError, OSError, MemoryError) as error:
                    result = error
                except Exception as error:  # noqa: BLE001
                    # Our mistake. This append fails; the appends that follow are still made.
                    limited_log.error(
                        "append failed: topic=%s partition=%d",
                        self._partition.topic,
                        self._partition.index,
                        exc_info=error,
                    )
                    result = error
                self._under_way = None
                if isinstance(result, Exception):
                    let_go_of_frames(result)
                # The batch is not kept while the next one is waited for.
                del work
                self._answer(done, result)
                del done, result
        finally:
            self._partition.lane = None
            self._lanes.open.discard(self)
            self._refuse_the_rest()

    def _refuse_the_rest(self) -> None:
        """Refuse what still waits when the lane ends before its time. A client may send again."""
        if self._under_way is not None:
            opened = self._partition.opened
            if opened is not None and opened.is_busy:
                # A thread is still writing: what the disk holds is for the next start to find out.
                opened.go_offline("the broker stopped in the middle of a write")
            self._answer(self._under_way, ProtocolError(ErrorCode.REQUEST_TIMED_OUT))
        for _, done in self._items:
            self._answer(done, ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def _answer(self, done: Callable[[Any], None], result: object) -> None:
        try:
            done(result)
        except Exception as error:  # noqa: BLE001 - our mistake; one answer is missing, the queue goes on
            limited_log.error("an append could not be answered", exc_info=error)


class FollowersDisk(following.Disk):
    """Does the work of followers in the lanes of their partitions, where it may wait for a disk."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes

    def log_time(self, now_ms: int) -> int:  # noqa: ARG002 - that of another clock
        return time.time_ns() // 1_000_000

    def is_slow(self, partition: Partition) -> bool:
        lanes = self._lanes
        return bool(lanes.slow) and lanes.is_slow(partition.log.folder)

    def take(
        self, partition: Partition, batches: memoryview, high_watermark: int, now_ms: int
    ) -> None:
        started = time.monotonic()
        partition.take(batches, high_watermark, now_ms)
        took = time.monotonic() - started
        if took > SLOW_WRITE_SECONDS:
            self._lanes.mark_slow(partition.log.folder, took)

    def work(
        self, partition: Partition, steps: Steps, done: following.Done, *, appends: bool
    ) -> None:
        self._lanes.work(partition, steps, done, partition.log.folder if appends else None)
