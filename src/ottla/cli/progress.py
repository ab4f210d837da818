"""A progress bar on standard error for long work; silent unless somebody can see it."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

SHOW_AFTER = 0.5  # seconds: short work shows nothing
UPDATE_EVERY = 0.1  # seconds


class Progress:
    """Counts of one piece of work.

    `total` is None when nobody knows it. With `in_bytes` the counts are shown as sizes.
    """

    def __init__(
        self, what: str, total: int | None = None, *, wanted: bool = True, in_bytes: bool = False
    ) -> None:
        self._what = what
        self._total = total
        self._in_bytes = in_bytes
        self._done = 0
        self._enabled = wanted and sys.stderr.isatty()
        self._next = time.monotonic() + SHOW_AFTER
        self._bar: Any = None
        self._task: Any = None

    def advance(self, amount: int) -> None:
        self._done += amount
        if not self._enabled:
            return
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + UPDATE_EVERY
        if self._bar is None:
            self._start()
        self._bar.update(self._task, completed=self._done)

    def _start(self) -> None:
        from rich import progress
        from rich.console import Console

        columns: list[str | progress.ProgressColumn] = ["{task.description}"]
        if self._total is not None:
            columns += [progress.BarColumn(), progress.TaskProgressColumn()]
        if self._in_bytes:
            columns += [progress.DownloadColumn(), progress.TransferSpeedColumn()]
        else:
            columns += ["{task.completed:,.0f} records"]
        columns.append(
            progress.TimeElapsedColumn() if self._total is None else progress.TimeRemainingColumn()
        )
        self._bar = progress.Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(self._what, total=self._total)
        self._bar.start()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
