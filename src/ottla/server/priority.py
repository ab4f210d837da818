"""How processes that work beside the broker's loop give way to it.

Imported by those processes themselves, so it stays clear of the server's other modules.
"""

from __future__ import annotations

import os
import struct
import sys

# What such a process gets of a processor that others want too: about a third of an equal share. Less
# would let producers to topics that are recompressed starve on a busy machine.
NICENESS = 5
# Nanoseconds; the longest time slice that Linux has.
_LONGEST_SLICE = 100_000_000
# size, policy, flags, niceness, realtime priority, runtime (the slice), deadline, period
_SCHEDULING = struct.Struct("=IIQiIQQQ")
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "riscv64": 274}


def give_way() -> None:
    """Take a small share of the processor, and leave it the moment that the loop wants it.

    Niceness is about shares. Who is woken while somebody else is running may still have to wait for
    the end of a time slice, a millisecond or more, unless its own slices are shorter (Linux 6.12 and
    later): so ours are the longest. Where there is nothing like it, niceness has to do.
    """
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
