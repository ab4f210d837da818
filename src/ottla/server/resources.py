"""What the operating system lets this process use, and how a broker divides it.

Descriptors (RLIMIT_NOFILE) are shared by segment files, mapped indexes, connections, and the work that
opens a file for a moment: a flush, a checkpoint, a roll. Each gets a part of its own, so that a flood
of connections cannot take the descriptors that writing needs:

    reserved          an eighth of the limit, at least 64, at most 512
    mapped indexes    a sixteenth, at most 256
    answers           an eighth of the rest, at most 1,024: segment files that are kept open only
                      because a client has not taken yet what it is sent from them
    segment files     half of what then remains, at most 8,192
    connections       what is left

Below 128 descriptors so few are left for connections that a broker and its peers and clients keep each
other out: it does not start then. Below 1,024 it says at the start how many connections it takes.

Memory for requests that arrived in part, or wait for a disk, is bounded by `queued.max.request.bytes`;
where that sets no limit, by half of what this process may still allocate, and 1 GiB.
"""

from __future__ import annotations

import contextlib
import os
import resource
from typing import NamedTuple

NEEDED_AT_LEAST = 128
FEW = 1024
RESERVED_AT_LEAST = 64
RESERVED_AT_MOST = 512
MAPPED_INDEXES_AT_MOST = 256
ANSWERS_AT_MOST = 1024
SEGMENT_FILES_AT_MOST = 8192
# Where the system sets no limit, or an absurdly high one.
DESCRIPTORS_AT_MOST = 1 << 20

# Memory for requests: at most, and at least (a broker that takes no large request at all is of no use).
REQUEST_BYTES_AT_MOST = 1 << 30
REQUEST_BYTES_AT_LEAST = 8 << 20

_CGROUP_LIMIT = "/sys/fs/cgroup/memory.max"
_CGROUP_USED = "/sys/fs/cgroup/memory.current"


class Descriptors(NamedTuple):
    """How many descriptors each part of a broker may use."""

    reserved: int
    mapped_indexes: int
    answers: int
    segment_files: int
    connections: int


def raise_descriptor_limit() -> None:
    """Raise the soft limit on descriptors as far as the hard limit and the kernel allow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_AT_MOST if hard == resource.RLIM_INFINITY else hard
    # macOS and some containers refuse what the hard limit seems to allow: then less, or as it is.
    while soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return
        wanted //= 2


def descriptor_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_AT_MOST if soft == resource.RLIM_INFINITY else soft


def shortage_of_descriptors(limit: int) -> str | None:
    """Why no broker can work with so few; None if one can."""
    if limit >= NEEDED_AT_LEAST:
        return None
    return (
        f"this process may have {limit} files and connections open at a time (ulimit -n), "
        f"and a broker needs {NEEDED_AT_LEAST} at least, better {FEW} or more"
    )


def divide_descriptors(limit: int) -> Descriptors:
    reserved = min(max(limit // 8, RESERVED_AT_LEAST), RESERVED_AT_MOST)
    mapped_indexes = min(limit // 16, MAPPED_INDEXES_AT_MOST)
    rest = max(limit - reserved - mapped_indexes, 8)
    answers = min(rest // 8, ANSWERS_AT_MOST)
    rest -= answers
    segment_files = min(rest // 2, SEGMENT_FILES_AT_MOST)
    return Descriptors(reserved, mapped_indexes, answers, segment_files, rest - segment_files)


def request_memory() -> int:
    """Bytes that incomplete and waiting requests may hold where the configuration sets no limit."""
    half = min(_left_of_limits(), _left_of_cgroup()) // 2
    return max(min(half, REQUEST_BYTES_AT_MOST), REQUEST_BYTES_AT_LEAST)


def _left_of_limits() -> int:
    """What RLIMIT_AS and RLIMIT_DATA leave."""
    try:
        with open("/proc/self/statm") as file:
            pages = file.read().split()
        page = os.sysconf("SC_PAGE_SIZE")
        size, data = int(pages[0]) * page, int(pages[5]) * page
    except OSError:
        # Not Linux: what is in use is not known, which makes the rest look larger than it is.
        size = data = 0
    left = 2 * REQUEST_BYTES_AT_MOST
    for kind, used in ((resource.RLIMIT_AS, size), (resource.RLIMIT_DATA, data)):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            left = min(left, max(soft - used, 0))
    return left


def _left_of_cgroup() -> int:
    """What the memory limit of a container leaves."""
    try:
        with open(_CGROUP_LIMIT) as file:
            limit = file.read().strip()
        if limit == "max":
            return 2 * REQUEST_BYTES_AT_MOST
        with open(_CGROUP_USED) as file:
            return max(int(limit) - int(file.read()), 0)
    except (OSError, ValueError):
        return 2 * REQUEST_BYTES_AT_MOST
