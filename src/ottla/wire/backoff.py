"""Exponential back-off with jitter: how long to wait before the next try.

The wait doubles with every failure from `initial` up to `maximum`, and each wait is spread by
`jitter` (0.2: from 80 % to 120 %), so that clients that failed together do not come back together.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

_LARGEST_EXPONENT: Final = 62  # beyond it a float would only overflow; every maximum is below


@dataclass(frozen=True, slots=True)
class Backoff:
    """The times, in seconds. It keeps no count: `after(failures)` is a function of it."""

    initial: float = 0.1
    maximum: float = 1.0
    jitter: float = 0.2

    def after(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row (1 for the first one)."""
        if failures <= 0 or self.initial <= 0:
            return 0.0
        wait = self.initial * 2.0 ** min(failures - 1, _LARGEST_EXPONENT)
        spread = random.uniform(1 - self.jitter, 1 + self.jitter)
        return float(min(wait, self.maximum) * spread)
