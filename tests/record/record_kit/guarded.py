"""Bytes for a kernel that is run as plain Python, with its accesses checked."""

from __future__ import annotations


class Guarded:
    """Bytes of which only those from `start` to `stop` may be read."""

    def __init__(self, data: bytes, start: int = 0, stop: int | None = None) -> None:
        self._data = data
        self._start = start
        self._stop = len(data) if stop is None else stop

    def __getitem__(self, at: int) -> int:
        assert self._start <= at < self._stop
        return self._data[at]
