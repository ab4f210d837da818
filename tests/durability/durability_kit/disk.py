"""Looking at, and damaging, what a broker left on disk."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.logfiles.folders import find_logs
from ottla.logfiles.names import RECOVERY_POINT_CHECKPOINT
from ottla.storage.checkpoints import read_offsets
from ottla.storage.verify import verify_checkpoints, verify_log

PATIENCE = 30.0
# Small segments from little data: an index of three entries, one for each batch, closes a segment.
SMALL_SEGMENTS = {"segment.index.bytes": "24", "index.interval.bytes": "0"}


def await_that(
    condition: Callable[[], bool], what: str, patience: float = PATIENCE, every: float = 0.02
) -> None:
    """For what no event tells: files that another process changes."""
    deadline = time.monotonic() + patience
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {patience:.0f} s in vain: {what}")
        pause.wait(every)


def segments(log: Path) -> list[Path]:
    """The log files of a partition, oldest first."""
    return sorted(log.glob("*.log"))


def digests(folder: Path) -> dict[str, str]:
    """Content of all files below a folder, by path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def flip(path: Path, position: int) -> None:
    """Changes one byte."""
    with path.open("r+b") as file:
        file.seek(position)
        (found,) = file.read(1)
        file.seek(position)
        file.write(bytes([found ^ 0x5A]))


def cut(path: Path, size: int) -> None:
    """Cuts a file to a size (from its end if that is negative)."""
    with path.open("r+b") as file:
        file.truncate(size if size >= 0 else path.stat().st_size + size)


def batch_positions(path: Path) -> list[int]:
    """Where the batches of a segment file begin."""
    data = path.read_bytes()
    found = []
    at = 0
    while len(data) - at >= 12:
        length = int.from_bytes(data[at + 8 : at + 12], "big")
        if length <= 0 or at + 12 + length > len(data):
            break
        found.append(at)
        at += 12 + length
    return found


def stored_recovery_point(data: Path, topic: str, partition: int = 0) -> int:
    return read_offsets(str(data / RECOVERY_POINT_CHECKPOINT)).get((topic, partition), 0)


def problems_in(data: Path) -> dict[str, list[str]]:
    """What `ottla log verify --deep` finds, by log; that of the checkpoints under the empty name."""
    found: dict[str, list[str]] = {}
    ends: dict[str, int | None] = {}
    for folder in find_logs(data):
        verdict = verify_log(folder, deep=True)
        ends[verdict.log] = verdict.end_offset
        if verdict.problems:
            found[verdict.log] = [f"{each.file}: {each.message}" for each in verdict.problems]
    checkpoints = verify_checkpoints(data, ends)
    if checkpoints:
        found[""] = [f"{each.file}: {each.message}" for each in checkpoints]
    return found


def assert_sound(data: Path) -> None:
    found = problems_in(data)
    assert not found, found
