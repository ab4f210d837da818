"""The slow background scrub: every closed segment is read again from time to time, checksums and all.

A damaged batch is named in the log once and counted in `ottla_log_damaged_batches` until it is gone:
replaced by compaction, dropped by retention, mended from a copy by hand, or, where there are other
replicas, fetched again (replication/repair.py). Nothing is changed here. Reading
is done in a worker process, a few MiB at a time with rests between them, so that it takes what
`log.scrub.bytes.per.second` allows and a stop need not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.logfiles.names import DAMAGED_LOGS, SWAP_SUFFIX
from ottla.server.disk.workers import Workers

if TYPE_CHECKING:
    from ottla.logfiles.folders import SegmentFiles
    from ottla.server.configuration.broker_config import BrokerConfig
    from ottla.storage.folders import DataFolder, Key
    from ottla.storage.logs import Logs
    from ottla.storage.scrub import Finding, ScrubProgress

log = logging.getLogger("ottla.scrub")


class Scrubber:
    """Starts and stops with the broker. Imports what it needs with the first round."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        logs: Logs,
        config: Callable[[], BrokerConfig],
    ) -> None:
        self._loop = loop
        self._logs = logs
        self._config = config
        self._task: asyncio.Task[None] | None = None
        self._workers: Workers | None = None
        # What the last look at each log found.
        self.damaged: dict[Key, tuple[Finding, ...]] = {}
        self.bytes_read = 0
        self.rounds = 0
        # Called with each log that was found damaged, in each round.
        self.on_damage: Callable[[Key], None] = lambda _: None

    def start(self) -> None:
        folders = [each for each in self._logs.folders if each.offline is None]
        noted = [each for each in folders if self._logs.files.exists(f"{each.path}/{DAMAGED_LOGS}")]
        if noted or self._config().log_scrub_interval_ms > 0:
            self._task = self._loop.create_task(self._run(noted), name="scrub")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._workers is not None:
            self._workers.stop()

    async def _run(self, noted: list[DataFolder]) -> None:
        for folder in noted:
            await self._scrub_noted(folder)
        while self._config().log_scrub_interval_ms > 0:
            await asyncio.sleep(self._config().log_scrub_interval_ms / 1000)
            try:
                await self.scrub_all()
            except Exception:
                log.exception("a round of the scrub failed, the next one begins anew")

    async def _scrub_noted(self, folder: DataFolder) -> None:
        """Scrub the logs that `ottla log scrub` found damaged while no broker ran here."""
        from ottla.storage.scrub import forget_noted_damage, noted_damage

        files = self._logs.files
        try:
            for key in noted_damage(folder.path, files):
                await self._scrub_log(key)
            forget_noted_damage(folder.path, files)
        except OSError as error:
            log.warning("notes of damaged logs: folder=%s %s", folder.path, error)

    async def scrub_all(self) -> None:
        """One round over all logs."""
        keys = self._logs.keys()
        for gone in self.damaged.keys() - set(keys):
            del self.damaged[gone]
        for key in keys:
            await self._scrub_log(key)
        self.rounds += 1

    async def _scrub_log(self, key: Key) -> None:
        found = await self._look_at(key)
        if found and not set(found).issubset(self.damaged.get(key, ())):
            # The log may have been cut off and written on while it was read, which looks like damage.
            # What is damaged is so at a second look, too.
            again = await self._look_at(key)
            found = again and tuple(each for each in again if each in found)
        if found is not None:
            self._report(key, found)

    async def _look_at(self, key: Key) -> tuple[Finding, ...] | None:
        """What is wrong in a log; None if it cannot be read, or is not the same log in the end: one
        that was fetched again has nothing to do with what was found in the log before it."""
        from ottla.storage.scrub import ScrubProgress, missing_after, segments_among

        if key not in self._logs:
            return None
        files, path = self._logs.files, self._logs.folder_of(*key).log_path(key)
        try:
            identity = files.identity(path)
            names = files.names(path)
        except OSError:
            return None  # deleted, or its folder is offline: said elsewhere
        found: list[Finding] = []
        before: ScrubProgress | None = None
        # A segment that is just being put in the place of another has no name of its own.
        has_gaps = self._logs.may_have_gaps(key) or any(
            name.endswith(SWAP_SUFFIX) for name in names
        )
        segments = segments_among(Path(path), names)
        for segment in segments:
            if before is not None and not has_gaps:
                missing = missing_after(before, segment)
                if missing is not None:
                    found.append(missing)
            if segment is segments[-1]:
                break  # it takes appends
            progress = ScrubProgress()
            while not progress.over:
                part = await self._read(segment, progress)
                if part is None:
                    return None
                progress, findings = part
                found += findings
            before = progress
        try:
            same = key in self._logs and files.identity(path) == identity
        except OSError:
            same = False
        return tuple(found) if same else None

    async def _read(
        self, segment: SegmentFiles, progress: ScrubProgress
    ) -> tuple[ScrubProgress, tuple[Finding, ...]] | None:
        """One part, and the rest after it; None if it cannot be read."""
        from ottla.storage.scrub import scrub_part

        if self._workers is None:
            self._workers = Workers(self._loop, 1)
        try:
            part = await self._workers.run(partial(scrub_part, segment, progress))
        except OSError as error:
            log.warning("a segment cannot be scrubbed: file=%s %s", segment.log, error)
            return None
        count = part[0].position - progress.position
        self.bytes_read += count
        await asyncio.sleep(count / self._config().log_scrub_bytes_per_second)
        return part

    def forget(self, key: Key) -> None:
        """Forget the damage of a log that was replaced."""
        self.damaged.pop(key, None)

    def _report(self, key: Key, found: tuple[Finding, ...]) -> None:
        known = self.damaged.pop(key, ())
        if found:
            self.damaged[key] = found
            self.on_damage(key)
        for finding in found:
            if finding not in known:
                log.error(
                    "damage at rest: topic=%s partition=%d file=%s position=%d offset=%d %s",
                    *key, finding.file, finding.position, finding.offset, finding.reason,
                )  # fmt: skip
