"""The process that brings old data into the page cache, beside the broker (see warming.py).

It gets a descriptor and two ranges at a time: what somebody waits for, and what will be wanted next. It
is started for the first reader of old data and ends with the broker. So it imports little.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ottla.server.disk.priority import run_when_nobody_else_does
from ottla.storage.files import OS_FILES

# Its standard input is a socket to the broker.
LINE: Final = 0
# Number, position and size of what is waited for, position and size of what follows.
JOB: Final = struct.Struct("=QQQQQ")
# Number, whether the disk was asked, and the number of the error, if there was one.
DONE: Final = struct.Struct("=Q?i")
_DESCRIPTOR = struct.Struct("=i")
# So many jobs are taken at once: the disk is asked for all of them before one is waited for.
_TAKEN_AT_ONCE = 16


class _Job:
    def __init__(self, fd: int, data: bytes) -> None:
        self._fd = fd
        self._number, self._position, self._size, *ahead = JOB.unpack(data)
        self._ahead_position, self._ahead_size = ahead
        self._was_needed = False
        self._error = 0

    def ask(self) -> None:
        """Ask the disk, without waiting."""
        with self._noting_errors():
            self._was_needed = OS_FILES.read_ahead(self._fd, self._position, self._size)
            if self._ahead_size:
                self._was_needed |= OS_FILES.read_ahead(
                    self._fd, self._ahead_position, self._ahead_size
                )

    def bring_into_memory(self) -> bytes:
        """Wait for the disk; what there is to say about it."""
        with self._noting_errors():
            OS_FILES.bring_into_memory(self._fd, self._position, self._size)
        os.close(self._fd)
        return DONE.pack(self._number, self._was_needed, self._error)

    @contextmanager
    def _noting_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._error = error.errno or errno.EIO


def _take(line: socket.socket) -> list[_Job]:
    """The jobs that are there; waits for the first. None at all: the broker is gone."""
    jobs: list[_Job] = []
    while len(jobs) < _TAKEN_AT_ONCE:
        try:
            data, beside, _, _ = line.recvmsg(
                JOB.size,
                socket.CMSG_LEN(_DESCRIPTOR.size),
                # `socket.recv_fds` would not pass this on.
                socket.MSG_DONTWAIT if jobs else 0,
            )
        except BlockingIOError:
            break
        if not data:
            return []
        if beside:
            ((_, _, descriptor),) = beside
            jobs.append(_Job(_DESCRIPTOR.unpack(descriptor)[0], data))
        else:
            # This process may have no more of them.
            line.send(DONE.pack(JOB.unpack(data)[0], False, errno.EMFILE))
    return jobs


def serve(line: socket.socket) -> None:
    """Does what it is asked to until the broker closes its end."""
    while jobs := _take(line):
        for job in jobs:
            job.ask()
        for job in jobs:
            line.send(job.bring_into_memory())


def main() -> None:
    # Ctrl-C in a terminal reaches all of its processes; it is the broker that decides what follows.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run_when_nobody_else_does()
    with socket.socket(fileno=LINE) as line:
        try:
            serve(line)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the broker is gone
