"""A moment until which something must be done."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Self

from ottla.client.errors import OttlaError, TimedOut


@dataclass(frozen=True, slots=True)
class Deadline:
    """A time on the monotonic clock; infinity for "whenever"."""

    at: float
    seconds: float  # the whole time that was given

    @classmethod
    def after(cls, seconds: float) -> Self:
        return cls(time.monotonic() + seconds, seconds)

    @property
    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self.at

    async def pause(self, seconds: float, what: str, problem: OttlaError | None) -> None:
        """Wait so long before the next try; TimedOut if the deadline comes first."""
        if seconds >= self.remaining:
            raise self.missed(what, problem) from problem
        await asyncio.sleep(seconds)

    def missed(self, what: str, problem: OttlaError | None) -> TimedOut:
        """The exception for a deadline that was missed."""
        reason = "" if problem is None else f"; the last problem: {problem}"
        return TimedOut(f"{what} was not done within {self.seconds:g} s{reason}")
