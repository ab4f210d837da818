"""Ends the processes that a program leaves running when it ends, however it ends.

    process = subprocess.Popen(command)
    end_with_this_program(process.pid)

A killed test run cannot stop the brokers it has started. So the first call starts a guardian, a process
that reads from a pipe whose other end only this program holds: once the program is gone the pipe ends,
and the guardian kills (SIGKILL) whatever of the program's processes still runs. (The kernel's own way,
PR_SET_PDEATHSIG, goes by the thread that started a process instead, and Linux alone has it.)
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable

from ottla.testing.process_identity import ProcessIdentity, identify, runs, send

# A guardian forgets processes that have ended when it knows this many.
_MANY = 64

_PROGRAM = "import sys; from ottla.testing.guardian import guard; guard(sys.stdin)"

_turn = threading.Lock()
_guardian: subprocess.Popen[str] | None = None


def end_with_this_program(pid: int) -> None:
    """Has a child process killed when this program ends, unless it has ended by then."""
    child = identify(pid)
    if child is None:
        return  # over already
    with _turn:
        stdin = _running_guardian().stdin
        assert stdin is not None
        # Without a guardian the program goes on, and cleans up after itself as far as it gets.
        with contextlib.suppress(BrokenPipeError):
            stdin.write(f"{child.pid} {child.started}\n")
            stdin.flush()


def _running_guardian() -> subprocess.Popen[str]:
    global _guardian
    if _guardian is None or _guardian.poll() is not None:
        _guardian = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            # Ctrl-C at the terminal, or the end of a shell's job, is meant for others.
            start_new_session=True,
        )
    return _guardian


def guard(lines: Iterable[str]) -> None:
    """The guardian's work: reads who is to be ended, and ends them when there is no more to read."""
    children: list[ProcessIdentity] = []
    for line in lines:
        pid, _, started = line.strip().partition(" ")
        children.append(ProcessIdentity(int(pid), started))
        if len(children) >= _MANY:
            children = [child for child in children if runs(child)]
    for child in children:
        send(child, signal.SIGKILL)
