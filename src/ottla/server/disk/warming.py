"""Old data is brought into the page cache by a process that runs when nobody else wants the processor.

Reading from the disk takes processor time, too: pages are found, entered into the cache and handed to
the driver, half a millisecond for four megabytes. A thread of the broker would have it at the expense of
the loop, and would want the interpreter's lock after each system call. So it is a process, of the
lowest priority.

On a machine without a moment to spare it would never be done. So what has waited for too long is
done by a thread of the broker after all, and so is all that is wanted in the second after it. Threads
also do it on systems where there is no such process, and when it was killed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.server.disk.warming_process import DONE, JOB, LINE
from ottla.server.network.loop import BrokerLoop
from ottla.storage.files import PORTABLE

if TYPE_CHECKING:
    from ottla.storage.segments.file import SegmentFile

log = logging.getLogger("ottla.warming")

# For so long it may take, before a thread does it,
PATIENCE_SECONDS = 0.02
# and for so long nobody waits for it then.
LATE_SECONDS = 1.0
# Without the packages that are installed, and whatever else a Python looks at when it starts.
_FLAGS = ("-I", "-S")
_PROGRAM = f"""
import sys
sys.path.append({str(Path(__file__).parents[3])!r})
from ottla.server.disk.warming_process import main
main()
"""


def bring_into_memory(file: SegmentFile, position: int, size: int, ahead: range) -> bool:
    """Runs in a thread: reads a range into the page cache, and asks for what follows. True if the disk
    was needed."""
    asked = file.bring_into_memory(position, size)
    if ahead and file.read_ahead(ahead.start, len(ahead)):
        return True
    return asked


class _Process:
    """The process, and our end of the line to it. It ends when that is closed."""

    def __init__(self) -> None:
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.line.setblocking(False)
        with theirs:
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, *_FLAGS, "-c", _PROGRAM],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), LINE)],
            )

    def ask(self, number: int, file: SegmentFile, position: int, size: int, ahead: range) -> None:
        job = JOB.pack(number, position, size, ahead.start, len(ahead))
        socket.send_fds(self.line, [job], [file.fd])

    def hear(self) -> tuple[int, bool, int] | None:
        """Which job it has done; None when it is gone. BlockingIOError: none."""
        try:
            answer = self.line.recv(DONE.size)
        except ConnectionResetError:
            return None
        return DONE.unpack(answer) if answer else None

    def has_ended(self) -> bool:
        """Whether the process has ended; if so, the system forgets it now."""
        return os.waitpid(self.pid, os.WNOHANG)[0] != 0


class Warming:
    def __init__(self, loop: asyncio.AbstractEventLoop, threads: ThreadPoolExecutor) -> None:
        self._loop = loop
        self._threads = threads
        # Threads do everything, for good.
        self._is_given_up = PORTABLE or not sys.executable
        self._process: _Process | None = None
        # Processes that are gone, or soon will be.
        self._former: list[_Process] = []
        self._number = 0
        # What it was asked for, and has not said that it has done.
        self._asked: dict[int, asyncio.Future[bool | None]] = {}
        # Something has waited for too long: until then nobody else does.
        self._late_until = 0.0

    async def bring_into_memory(
        self, file: SegmentFile, position: int, size: int, ahead: range
    ) -> bool:
        """Has a range brought into the page cache, and what follows it asked for. True if the disk was
        needed."""
        asked = self._ask(file, position, size, ahead)
        if asked is not None:
            late = self._loop.call_later(PATIENCE_SECONDS, self._runs_late, asked)
            was_needed = await asked
            late.cancel()
            if was_needed is not None:
                return was_needed
        return await self._loop.run_in_executor(
            self._threads, bring_into_memory, file, position, size, ahead
        )

    def _ask(
        self, file: SegmentFile, position: int, size: int, ahead: range
    ) -> asyncio.Future[bool | None] | None:
        """Ask the process; the future tells whether the disk was needed. None: a thread has to do it."""
        if self._is_given_up or self._loop.time() < self._late_until:
            return None
        self._number += 1
        try:
            if self._process is None:
                self._start()
            assert self._process is not None
            self._process.ask(self._number, file, position, size, ahead)
        except OSError as error:
            # It is gone or has too much to do, or there is no memory or no descriptor for it.
            log.debug("a thread reads: %s", error)
            return None
        asked = self._asked[self._number] = self._loop.create_future()
        return asked

    def _runs_late(self, asked: asyncio.Future[bool | None]) -> None:
        if not asked.done():
            self._late_until = self._loop.time() + LATE_SECONDS
            asked.set_result(None)

    def _heard(self) -> None:
        """Take an answer of the process, or notice that it is gone. One answer in a turn of the loop:
        what follows from each takes its time."""
        process = self._process
        assert process is not None
        try:
            done = process.hear()
        except (BlockingIOError, InterruptedError):
            return
        if done is not None:
            number, was_needed, error = done
            asked = self._asked.pop(number)
            if not asked.done():
                # Where it met an error, so will a thread, which raises it.
                asked.set_result(None if error else was_needed)
            return
        log.warning("the process that reads old data died")
        self._let_go()

    # Its life -----------------------------------------------------------------------------------

    def _start(self) -> None:
        self._former = [each for each in self._former if not each.has_ended()]
        self._process = _Process()
        line = self._process.line.fileno()
        self._loop.add_reader(line, self._heard)
        if isinstance(self._loop, BrokerLoop):
            self._loop.serve_after_others(line)

    def _let_go(self) -> None:
        """Let go of the process; the next reader of old data starts another, if it may."""
        process = self._process
        if process is not None:
            self._process = None
            self._loop.remove_reader(process.line.fileno())
            if isinstance(self._loop, BrokerLoop):
                self._loop.serve_like_others(process.line.fileno())
            process.line.close()
            self._former.append(process)
        asked, self._asked = self._asked, {}
        for each in asked.values():
            if not each.done():
                each.set_result(None)

    def stop(self) -> None:
        """Ends the process; threads do what is left."""
        self._is_given_up = True
        self._let_go()
