"""Appends that cannot be done at once.

Most appends are a `pwrite` into the page cache, a few microseconds on the loop. Two kinds are not:
batches that must be recompressed or converted first (done in a worker process), and any append to a
folder whose disk is behind (a write may then stand still for seconds in the kernel). Those go through
a lane: per partition, in order, one at a time, with the slow part off the loop. While a partition has
a lane, every append to it has to queue there, or it would overtake.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.server.failures import let_go_of_frames
from ottla.server.observability.limited_log import LimitedLog
from ottla.storage.errors import StorageError
from ottla.storage.producer_state import Origin

if TYPE_CHECKING:
    from ottla.replication.partition import Appended, Partition

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
        lane = partition.lane
        if lane is None:
            lane = partition.lane = Lane(self, partition)
            self.open.add(lane)
        assert isinstance(lane, Lane)
        lane.add(batches, done, transform, origin)

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
        self._items: deque[tuple[Batches, Done, Transform | None, Origin]] = deque()
        # Whom to tell of the append that was begun.
        self._under_way: Done | None = None
        self.task: asyncio.Task[None] = lanes.loop.create_task(self._run())

    def add(
        self, batches: Batches, done: Done, transform: Transform | None, origin: Origin
    ) -> None:
        self._items.append((batches, done, transform, origin))

    def abandon(self) -> None:
        """Fails all waiting appends: the broker stops and does not wait for workers or disks."""
        log.warning(
            "the stop does not wait for appends: topic=%s partition=%d queued=%d",
            self._partition.topic, self._partition.index, len(self._items) + 1,
        )  # fmt: skip
        self.task.cancel()

    async def _run(self) -> None:
        try:
            while self._items:
                batches, done, transform, origin = self._items.popleft()
                self._under_way = done
                try:
                    if transform is not None:
                        batches = await transform(batches)
                    result: Appended | Exception = await self._append(batches, origin)
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
                del batches, transform
                self._answer(done, result)
                del done, result
        finally:
            self._partition.lane = None
            self._lanes.open.discard(self)
            self._refuse_the_rest()

    def _refuse_the_rest(self) -> None:
        """Whoever still waits when the lane ends before its time. A client may send again."""
        if self._under_way is not None:
            opened = self._partition.opened
            if opened is not None and opened.is_busy:
                # A thread is still writing: what the disk holds is for the next start to find out.
                opened.go_offline("the broker stopped in the middle of a write")
            self._answer(self._under_way, ProtocolError(ErrorCode.REQUEST_TIMED_OUT))
        for _, done, _, _ in self._items:
            self._answer(done, ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def _answer(self, done: Done, result: Appended | Exception) -> None:
        try:
            done(result)
        except Exception as error:  # noqa: BLE001 - our mistake; one answer is missing, the queue goes on
            limited_log.error("an append could not be answered", exc_info=error)

    async def _append(self, batches: Batches, origin: Origin) -> Appended:
        partition, lanes = self._partition, self._lanes
        log = partition.log
        now_ms = time.time_ns() // 1_000_000
        if len(batches) <= DIRECT_BYTES and not lanes.is_slow(log.folder):
            return partition.append(batches, now_ms, origin)
        append = partition.prepare(batches, now_ms, origin)
        if append.duplicate:
            return partition.commit(append)

        def write() -> float:
            # Measured here: waiting for a free thread says nothing about the disk.
            started = time.monotonic()
            log.write(append)
            return time.monotonic() - started

        log.hand_out(append)
        took = await lanes.loop.run_in_executor(lanes.threads, write)
        if took > SLOW_WRITE_SECONDS:
            lanes.mark_slow(log.folder, took)
        elif took < QUICK_WRITE_SECONDS and lanes.slow:
            # It was only a moment, or no disk at all: a thread of another process had the processor.
            lanes.mark_quick(log.folder)
        return partition.commit(append)
