"""Processes as /proc shows them: what a broker and its children hold and use. Linux only."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from ottla.server.disk.priority import ask_for_slices, run_when_nobody_else_does

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")
_SHORTEST_SLICE = 100_000  # nanoseconds, of those that Linux has


class _Stat(NamedTuple):
    parent: int
    cpu_seconds: float


def _stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in brackets may hold anything, so count from the last bracket.
    fields = text[text.rindex(")") + 2 :].split()
    # Time of children that have ended is part of what the broker took.
    ticks = sum(int(fields[at]) for at in (11, 12, 13, 14))
    return _Stat(int(fields[1]), ticks / _TICKS)


def family(root: int) -> list[int]:
    """A process and all its descendants that are alive."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))) is not None:
            children.setdefault(stat.parent, []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found


def cpu_seconds(root: int) -> float:
    """Processor time taken so far by a process and its descendants."""
    return sum(stat.cpu_seconds for pid in family(root) if (stat := _stat(pid)) is not None)


class Others:
    """What others than this process and its children take of the processors, from here on."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._before = self._seconds()

    @staticmethod
    def _seconds() -> float:
        user, nice, system = (_PROC / "stat").read_text().split()[1:4]
        return (int(user) + int(nice) + int(system)) / _TICKS - cpu_seconds(os.getpid())

    def cores(self) -> float:
        return (self._seconds() - self._before) / (time.monotonic() - self._since)


def resident_bytes(root: int) -> int:
    """Resident memory of a process and its descendants, added up as `ps` shows it.

    Pages that several of them share count several times.
    """
    total = 0
    for pid in family(root):
        with contextlib.suppress(OSError):
            for line in (_PROC / str(pid) / "status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    total += int(line.split()[1]) * 1024
    return total


def step_aside() -> None:
    """For a process that stands for another machine: whoever else wants a processor has it at once.

    Linux weighs sessions against each other before it looks at who is in them, and a broker has a
    session of its own. So this process gets one, too, and that is given the least weight.
    """
    os.setsid()
    with contextlib.suppress(OSError):  # a system that does not know of it
        (_PROC / "self" / "autogroup").write_text("19")
    run_when_nobody_else_does()


@contextlib.contextmanager
def let_in_at_once() -> Iterator[None]:
    """For the process that measures how long answers take: it has a processor as soon as one is there.

    It stands for another machine, too. Linux often wakes it on the processor of the broker that has
    answered it. There it would wait until the broker has nothing more to do or its time slice ends, for
    up to a millisecond, though the other processor be idle, and count that as the broker's. Whoever asks
    for short slices is let in at once (Linux 6.12 and later).
    """
    ask_for_slices(_SHORTEST_SLICE, alone=True)
    try:
        yield
    finally:
        ask_for_slices(0, alone=True)


class PeakMemory:
    """Looks at the memory of families every 50 ms while the block runs; `peak` is the most they held."""

    def __init__(self, *roots: int) -> None:
        self._roots = roots
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak = 0

    def _watch(self) -> None:
        while True:
            self.peak = max(self.peak, sum(resident_bytes(root) for root in self._roots))
            if self._stop.wait(0.05):
                return

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()


def settle_disk(timeout: float = 60.0) -> None:
    """Write back what is dirty, so that no round pays for the one before it."""
    os.sync()
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        waiting = 0
        for line in (_PROC / "meminfo").read_text().splitlines():
            if line.startswith(("Dirty:", "Writeback:")):
                waiting += int(line.split()[1])
        if waiting < 64 << 10:
            return
        time.sleep(0.1)


def evict(paths: list[Path]) -> None:
    """Drop what the page cache holds of these files; only pages that are on disk can go."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def cached_fraction(paths: list[Path], samples: int = 200) -> float:
    """How much of these files the page cache holds, from samples that read only what is there."""
    asked = cached = 0
    page = bytearray(4096)
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDONLY)
            try:
                # A read that is refused starts the kernel's read-ahead all the same.
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
                size = os.fstat(fd).st_size
                step = max(4096, size // samples // 4096 * 4096)
                for position in range(0, size, step):
                    asked += 1
                    try:
                        cached += os.preadv(fd, [page], position, os.RWF_NOWAIT) > 0
                    except BlockingIOError:
                        pass
                    except OSError:
                        return float("nan")  # a file system that cannot say
            finally:
                os.close(fd)
    return cached / asked if asked else 0.0
