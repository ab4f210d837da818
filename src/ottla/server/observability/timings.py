"""How long handlers keep the loop busy."""

from __future__ import annotations

from bisect import bisect_left

# One request in so many is timed: the clock costs as much as some of what it would measure.
TIMED_ONE_IN = 64
BOUNDS = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.01, 0.05, 0.25)


class Timings:
    """How often a call took how long: counts up to each of BOUNDS, and beyond."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds
