"""The one exception of the benchmarks."""

from __future__ import annotations


class BenchError(RuntimeError):
    """A row cannot be measured; the message says why and is printed in the row's place."""
