"""How processes that work beside the broker's loop give way to it.

Niceness is about shares of a busy processor. Whoever is woken while somebody else is running may still
have to wait for the end of a time slice, a millisecond or more, unless its own slices are shorter
(Linux 6.12 and later). So those who do the heavy work ask for the longest: the loop then has the
processor back the moment it wants it. Where there is nothing like it, niceness has to do.

Linux weighs sessions and control groups against each other before it looks at who is in them. So neither
niceness nor the idle policy says anything to a client on the same machine; the slices do.

Not for threads of the broker itself: one that is made to wait while it holds the interpreter's lock
makes the loop wait too.
"""

from __future__ import annotations

import os
import struct
import sys
from typing import Final

# What a worker gets of a processor that others want too: about a third of an equal share. With less,
# producers to topics that are recompressed would starve on a busy machine.
NICENESS = 5
# Nanoseconds; the longest time slice that Linux has.
_LONGEST_SLICE = 100_000_000
_RESET_ON_FORK: Final = 1
# size, policy, flags, niceness, realtime priority, runtime (the slice), deadline, period
_SCHEDULING = struct.Struct("=IIQiIQQQ")
# The numbers of system calls that Python has no name for.
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "riscv64": 30}
_THIS_PROCESS: Final = 1
# What every process has that did not ask for anything else: best effort, in the middle.
_USUAL_DISK_PRIORITY: Final = 2 << 13 | 4


def give_way() -> None:
    """Lowers this process's priority: other processes get the processor first."""
    os.nice(NICENESS)
    ask_for_slices(_LONGEST_SLICE)


def run_when_nobody_else_does() -> None:
    """Lowers this process's priority as far as it goes: it has the processor while nobody else of the
    broker wants it. What it reads from the disk comes as soon as before."""
    ask_for_slices(_LONGEST_SLICE)
    # The idle policy would have the disk serve everybody else first, too.
    if sys.platform == "linux" and _system_call(
        _IOPRIO_SET, _THIS_PROCESS, 0, _USUAL_DISK_PRIORITY
    ):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(NICENESS)


def ask_for_slices(nanoseconds: int, *, alone: bool = False) -> None:
    """Asks for time slices of this length, 0 for the usual one. `alone`: not for processes that this one
    starts from now on."""
    if sys.platform != "linux":
        return
    wish = _SCHEDULING.pack(
        _SCHEDULING.size,
        os.sched_getscheduler(0),
        _RESET_ON_FORK if alone else 0,
        os.getpriority(os.PRIO_PROCESS, 0),
        0,
        nanoseconds,
        0,
        0,
    )
    # A kernel that does not know it, or does not allow it, says so and changes nothing.
    _system_call(_SCHED_SETATTR, 0, wish, 0)


def _system_call(numbers: dict[str, int], *arguments: int | bytes) -> bool:
    """Whether there is such a call here, and it succeeded."""
    number = numbers.get(os.uname().machine)
    if number is None:
        return False
    import ctypes

    return bool(ctypes.CDLL(None).syscall(number, *arguments) == 0)
