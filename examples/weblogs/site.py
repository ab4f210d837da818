"""A web server that is not there: its traffic, its access log, and the collector of that log.

The log is rotated as it would be by logrotate, and the collector follows it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ottla.pipeline.collect import Collector
from weblogs.traffic import Traffic

WRITE_EVERY: Final = 0.2  # seconds
ROTATE_AT: Final = 16 * 1024 * 1024  # bytes
RATE_OVER: Final = 5.0  # seconds, over which lines per second are counted


class Site:
    """Writes `folder`/access.log as traffic comes, and collects it into a topic."""

    def __init__(
        self,
        servers: str,
        topic: str,
        folder: Path,
        traffic: Traffic,
        note: Callable[[str], None],
    ) -> None:
        self.log = folder / "access.log"
        self.lines = 0  # that were sent
        self.failure: Exception | None = None
        self._traffic = traffic
        self._stop = threading.Event()
        self._sent: list[tuple[float, int]] = []  # times and counts of the last seconds
        self._collector = Collector(
            servers, topic, [str(self.log)], name="demo", note=note, sent=self._count
        )
        self._threads = [
            threading.Thread(target=self._write, name="ottla-demo-site"),
            threading.Thread(target=self._collect, name="ottla-demo-collector"),
        ]

    def once(self, until: float) -> None:
        """Everything that happens until then, at once."""
        self._write_until(until)
        self._collector.run(threading.Event(), once=True, patience=30)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    @property
    def rate(self) -> float:
        """Lines a second, that were sent in the last few."""
        since = time.monotonic() - RATE_OVER
        return sum(count for at, count in list(self._sent) if at >= since) / RATE_OVER

    def _count(self, lines: int, size: int) -> None:
        del size
        now = time.monotonic()
        self.lines += lines
        self._sent = [each for each in self._sent if each[0] >= now - RATE_OVER]
        self._sent.append((now, lines))

    def _write(self) -> None:
        while not self._stop.is_set():
            self._write_until(time.time())
            self._stop.wait(WRITE_EVERY)

    def _write_until(self, now: float) -> None:
        with self.log.open("a", encoding="ascii") as file:
            file.write("".join(f"{line}\n" for line in self._traffic.until(now)))
            size = file.tell()
        if size > ROTATE_AT:
            self.log.rename(self.log.with_name("access.log.1"))

    def _collect(self) -> None:
        try:
            self._collector.run(self._stop)
        except Exception as failure:  # noqa: BLE001 - told by whoever looks at the site
            self.failure = failure
