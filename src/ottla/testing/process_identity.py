"""Processes that another command has started: which of them still run, and signals for them alone.

A process is known by its id and by when it began, for ids are given again: after a while, and after
each boot.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

_POLL_INTERVAL: Final = 0.02  # where the end of a process cannot be waited for
_PROC: Final = Path("/proc")


class ProcessIdentity(NamedTuple):
    """One process, and no later one with the same id."""

    pid: int
    started: str  # boot and moment of its start, as far as the system tells


def identify(pid: int) -> ProcessIdentity | None:
    """The process that has this id now; None if none has, or what is left of it is a zombie."""
    started = _started(pid)
    return None if started is None else ProcessIdentity(pid, started)


def runs(process: ProcessIdentity) -> bool:
    """Whether this very process is still there."""
    return identify(process.pid) == process


def send(process: ProcessIdentity, number: signal.Signals) -> bool:
    """Sends a signal to this process and no other. False if it is gone."""
    with contextlib.ExitStack() as stack:
        descriptor = _open(process.pid)
        if descriptor is not None:
            stack.callback(os.close, descriptor)
        # What is held open cannot be replaced by another process after this look at it.
        if not runs(process):
            return False
        try:
            if descriptor is not None:
                signal.pidfd_send_signal(descriptor, number)
            else:
                os.kill(process.pid, number)
        except ProcessLookupError:
            return False
    return True


def wait_for_end(process: ProcessIdentity, timeout: float) -> bool:
    """Waits until the process is gone; False if it is still there after the time."""
    deadline = time.monotonic() + timeout
    descriptor = _open(process.pid)
    if descriptor is not None:
        try:
            if not runs(process):
                return True
            # Not `select`, which takes no descriptor above 1,023: programs that hold brokers have them.
            ended = select.poll()
            ended.register(descriptor, select.POLLIN)
            return bool(ended.poll(timeout * 1000))
        finally:
            os.close(descriptor)
    while runs(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_INTERVAL)
    return True


def _open(pid: int) -> int | None:
    """A descriptor of a process, where the system has such."""
    if sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _started(pid: int) -> str | None:
    if not (_PROC / "self").exists():
        return _started_by_ps(pid)
    try:
        status = (_PROC / str(pid) / "stat").read_text()
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # After the name, which is in parentheses and may contain any: state is the first, start the 20th.
    fields = status.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else f"{boot} {fields[19]}"


def _started_by_ps(pid: int) -> str | None:
    completed = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, started = completed.stdout.strip().partition(" ")
    return None if completed.returncode or state.startswith("Z") else started.strip()
