"""How processes that work beside the broker's loop give way to it.

Niceness is about shares of a busy processor. Whoever is woken while somebody else is running may still
have to wait for the end of a time slice, a millisecond or more, unless its own slices are shorter
(Linux 6.12 and later). So those who do the heavy work ask for the longest: the loop then has the
processor back the moment it wants it. Where there is nothing like it, niceness has to do.

Not for threads of the broker itself: one that is made to wait while it holds the interpreter's lock
makes the loop wait too.
"""

from __future__ import annotations

import os
import struct
import sys

# What a worker gets of a processor that others want too: about a third of an equal share. With less,
# producers to topics that are recompressed would starve on a busy machine.
NICENESS = 5
# Nanoseconds; the longest time slice that Linux has.
_LONGEST_SLICE = 100_000_000
# size, policy, flags, niceness, realtime priority, runtime (the slice), deadline, period
_SCHEDULING = struct.Struct("=IIQiIQQQ")
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "riscv64": 274}


def give_way() -> None:
    """Lowers this process's priority: other processes get the processor first."""
    os.nice(NICENESS)
    number = _SCHED_SETATTR.get(os.uname().machine)
    if sys.platform != "linux" or number is None:
        return
    import ctypes

    wish = _SCHEDULING.pack(
        _SCHEDULING.size,
        os.sched_getscheduler(0),
        0,
        os.getpriority(os.PRIO_PROCESS, 0),
        0,
        _LONGEST_SLICE,
        0,
        0,
    )
    # A kernel that does not know it, or does not allow it, says so and changes nothing.
    ctypes.CDLL(None).syscall(number, 0, wish, 0)
