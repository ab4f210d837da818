"""What is said when appends are refused because a disk is full, or the process is out of descriptors.

Clients send such a batch again and again: a line for each refusal would be a flood. One line names the
first log that was refused in a data folder, and why; the next one comes when nothing was refused there
for a minute, and says so.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

log = logging.getLogger("ottla.disk")

# A client that asks again does so more often than this.
OVER_AFTER_SECONDS = 60.0


class Shortage(NamedTuple):
    folder: str  # the data folder
    errno: int


class Shortages:
    """What is short now. Belongs to the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # When an append was refused last.
        self._refused: dict[Shortage, float] = {}
        self._looking: asyncio.TimerHandle | None = None

    def refused(self, topic: str, partition: int, folder: str, error: OSError) -> None:
        """Log, once for each shortage, that an append was refused; its log is as it was."""
        shortage = Shortage(folder, error.errno or 0)
        if shortage not in self._refused:
            log.error(
                "appends are refused, producers get KAFKA_STORAGE_ERROR: topic=%s partition=%d "
                "folder=%s %s (the first one in this folder; others are not named)",
                topic, partition, folder, error.strerror,
            )  # fmt: skip
        self._refused[shortage] = self._loop.time()
        if self._looking is None:
            self._look_again()

    def _look_again(self) -> None:
        self._looking = self._loop.call_later(OVER_AFTER_SECONDS / 4, self._look)

    def _look(self) -> None:
        self._looking = None
        before = self._loop.time() - OVER_AFTER_SECONDS
        for shortage, refused_at in list(self._refused.items()):
            if refused_at < before:
                del self._refused[shortage]
                log.info(
                    "no append was refused in the last %.0f s: folder=%s",
                    OVER_AFTER_SECONDS,
                    shortage.folder,
                )
        if self._refused:
            self._look_again()

    def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
