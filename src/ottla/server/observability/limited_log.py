"""Log lines whose number somebody else decides: at most a few a second for each cause.

A client that sends garbage, or an operation that is tried again and again, must not fill the disk
with log lines. `LimitedLog` lets the first lines of a cause through, counts the others, and says
every period how many there were, with the last of them as an example.

A cause is a message before its values are put in ("malformed request: peer=%s …"): all lines that
one statement writes share it, so there are as many causes as statements.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from types import TracebackType

# Lines of one cause that are written in one period.
LINES = 3
PERIOD_SECONDS = 1.0

_Failure = tuple[type[BaseException], BaseException, TracebackType | None]


class _Cause:
    """How often one cause came up in the period that began last."""

    __slots__ = ("begun", "example", "level", "reporting", "suppressed", "written")

    def __init__(self, level: int) -> None:
        self.level = level
        self.begun = float("-inf")
        self.written = 0
        self.suppressed = 0
        # The last suppressed line, without a traceback: that would keep a request in memory.
        self.example = ""
        # The loop that has a timer to report what was suppressed.
        self.reporting: asyncio.AbstractEventLoop | None = None


class LimitedLog:
    """A logger that limits the lines of each cause; otherwise used like one."""

    def __init__(self, log: logging.Logger, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._causes: dict[str, _Cause] = {}

    def info(self, message: str, *values: object) -> None:
        self._write(logging.INFO, message, values, None)

    def warning(self, message: str, *values: object) -> None:
        self._write(logging.WARNING, message, values, None)

    def error(self, message: str, *values: object, exc_info: BaseException | None = None) -> None:
        self._write(logging.ERROR, message, values, exc_info)

    def _write(
        self, level: int, message: str, values: tuple[object, ...], error: BaseException | None
    ) -> None:
        cause = self._causes.get(message)
        if cause is None:
            cause = self._causes[message] = _Cause(level)
        now = self._clock()
        if now - cause.begun >= PERIOD_SECONDS:
            self._report(cause)
            cause.begun = now
            cause.written = 0
        if cause.written < LINES:
            cause.written += 1
            failure: _Failure | None = None
            if error is not None:
                failure = (type(error), error, error.__traceback__)
            self._log.log(level, message, *values, exc_info=failure, stacklevel=3)
            return
        cause.suppressed += 1
        cause.example = message % values
        self._report_later(cause)

    def _report_later(self, cause: _Cause) -> None:
        """Schedules a line with the count, in case the cause does not come up again."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # in a thread: reported with the next line of this cause
        if cause.reporting is loop:
            return
        # Not yet, or by a loop that ended before its timer came up.
        cause.reporting = loop
        loop.call_later(PERIOD_SECONDS, self._timed_report, cause)

    def _timed_report(self, cause: _Cause) -> None:
        cause.reporting = None
        self._report(cause)

    def _report(self, cause: _Cause) -> None:
        if cause.suppressed:
            others = cause.suppressed - 1
            cause.suppressed = 0
            self._log.log(cause.level, "%s (and %d more like it)", cause.example, others)
            cause.example = ""
