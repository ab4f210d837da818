"""What a broker does by the clock: flush, checkpoint, retention, removal of what was deleted.

Decisions are taken on the loop, where the logs live; the system calls run in threads. A slow flush of
one log holds up neither the flush of another nor the loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ottla.storage.folders import CheckpointJob
from ottla.storage.log.flush import FlushJob
from ottla.storage.logs import Job, Logs
from ottla.storage.removal import RemovalJob

if TYPE_CHECKING:
    from ottla.storage.log.log import Log

log = logging.getLogger("ottla.periodic")

TICK_SECONDS = 1.0
# Logs that retention looks at before the loop gets its turn.
RETENTION_STEPS = 20
SURVEY_STEPS = 5
EXPIRE_PRODUCERS_SECONDS = 600.0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class PeriodicWork:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, logs: Logs, threads: ThreadPoolExecutor
    ) -> None:
        self._loop = loop
        self._logs = logs
        self._threads = threads
        self._tasks: list[asyncio.Task[None]] = []
        self._jobs: set[asyncio.Task[None]] = set()
        # One round of checkpoints at a time: each writes all offsets of its folder.
        self._checkpoints = asyncio.Lock()
        # Called when a flush of a log came to its end, or failed.
        self.on_flushed: Callable[[Log], None] | None = None

    def start(self, retention_seconds: float) -> None:
        self._logs.on_flush_wanted = self._flush_soon
        self._tasks = [
            self._loop.create_task(self._survey()),
            self._loop.create_task(self._repeat("periodic work", self._tick, TICK_SECONDS)),
            self._loop.create_task(self._repeat("retention", self._retain, retention_seconds)),
            self._loop.create_task(
                self._repeat("producer expiry", self._expire, EXPIRE_PRODUCERS_SECONDS)
            ),
        ]

    async def stop(self) -> None:
        """Starts no more rounds; jobs that have begun are finished."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while self._jobs:
            await asyncio.wait(self._jobs)

    async def checkpoint(self) -> OSError | None:
        """Store log starts and the other checkpoints now; what went wrong, if anything did."""
        async with self._checkpoints:
            while True:
                jobs = self._logs.checkpoint(now_ms())
                await self._run_all(jobs)
                error = next((job.error for job in jobs if job.error is not None), None)
                # One that came to nothing, because a log was truncated or deleted meanwhile, is followed
                # by another.
                if error is not None or all(job.was_stored for job in jobs):
                    return error

    async def _repeat(self, name: str, work: Callable[[], Awaitable[None]], seconds: float) -> None:
        """Repeats a job; after a round that fails there is another one."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except Exception:
                log.exception("background work failed, it goes on with the next round: %s", name)

    async def _tick(self) -> None:
        async with self._checkpoints:
            checkpoints = []
            removals = []
            for job in self._logs.due(now_ms()):
                if isinstance(job, CheckpointJob):
                    checkpoints.append(job)
                elif isinstance(job, RemovalJob) and job.folders:
                    removals.append(job)
                else:
                    self._spawn(job)
            if removals:
                # Not all at once: flushes want the threads, too.
                self._keep(self._loop.create_task(self._run_all(removals)))
            await self._run_all(checkpoints)

    async def _survey(self) -> None:
        """Logs, once after the start, which logs lack a segment."""
        for step, _ in enumerate(self._logs.survey()):
            if step % SURVEY_STEPS == 0:
                await asyncio.sleep(0)

    async def _retain(self) -> None:
        for step, job in enumerate(self._logs.retention(now_ms())):
            if job is not None:
                await self._run(job)
            elif step % RETENTION_STEPS == 0:
                await asyncio.sleep(0)

    async def _expire(self) -> None:
        self._logs.expire_producers(now_ms())

    def _flush_soon(self, wanted: Log) -> None:
        """Begin the flush that a log asks for (`flush.messages`), in the loop's next turn."""
        self._loop.call_soon(self._flush, wanted)

    def _flush(self, wanted: Log) -> None:
        if wanted.offline is None and wanted.flushing is None:
            job = self._logs.flush_now(wanted, now_ms())
            if job is not None:
                self._spawn(job)

    def _spawn(self, job: Job) -> None:
        self._keep(self._loop.create_task(self._run(job)))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._jobs.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._jobs.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a background job failed", exc_info=task.exception())

    async def _run(self, job: Job) -> None:
        await self._loop.run_in_executor(self._threads, job.run)
        self._logs.finish(job)
        if isinstance(job, FlushJob):
            self._flushed(job)

    def _flushed(self, job: FlushJob) -> None:
        """Report a flush, and begin the next one if `flush.messages` was reached again meanwhile:
        all appends that came during a sync share the one after it. One that failed for want of room
        is tried again by the clock."""
        log = job.log
        if job.error is None and log.log_end_offset >= log.flush_at_offset:
            self._flush(log)
        if self.on_flushed is not None:
            self.on_flushed(log)

    async def _run_all(self, jobs: Iterable[Any]) -> None:
        for job in jobs:
            await self._run(job)
