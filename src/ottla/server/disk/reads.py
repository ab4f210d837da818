"""Bytes of segments on their way out: from memory at once, from the disk by a detour.

Before a range is trusted to be in the page cache it is probed. What is not in memory is brought there
by a process beside the broker, or by a thread (warming.py); then it is sent like anything else. On
systems without such a probe every range counts as held, and the loop waits where the kernel's
read-ahead did not suffice.

A probe takes samples. While the kernel reads ahead of somebody who goes through old data, there are
gaps between them, and a `sendfile` into such a gap would hold up everybody. So a reader that met the
disk once takes the detour from there on, until everything was found in memory for a while. The disk
is also asked for what such a reader wants next. What it gets of the loop's time is limited: see
old_data.py.

An answer may wait for a socket whose peer takes nothing, and memory may lose it meanwhile. So it is
probed once more before it is sent, if the peer was silent for long (network/connection.py).
"""

from __future__ import annotations

import asyncio
import errno
import sys
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ottla.server.disk.old_data import OldData
from ottla.server.disk.warming import Warming
from ottla.server.network.file_range import FileRange
from ottla.storage.segments.file import OPEN_DESCRIPTORS

if TYPE_CHECKING:
    from ottla.storage.errors import NotInMemory
    from ottla.storage.segments.file import Slice

# Up to this size a copy costs less than two more system calls.
INLINE_BYTES = 16 << 10
# A range that begins so little after one that came from the disk is of the same reader.
NEARBY_BYTES = 4 << 20
# So many ranges in a row were in memory: the reader has caught up with what the cache holds.
TRUSTED_AFTER = 64
# So much more is brought: the next search then finds a batch header in memory, and it is not
# the loop that meets the page at which the kernel starts to read the next megabytes.
BEYOND_BYTES = 128 << 10
# Of somebody who goes through old data, so much of what follows is asked for, too: it comes from the
# disk while this is sent. (`python -m bench cold` measures it.)
AHEAD_BYTES = 4 << 20
# What is copied of a range, beyond its first batch, where there are no descriptors to keep it open; and
# what is read on the loop, if memory has it, for those who look into it.
COPIED_BYTES = 64 << 10
# Files of which it is known that somebody reads them from the disk.
REMEMBERED_FILES = 64


class _ColdStretch:
    """Where somebody reads from the disk, up to where the disk was asked for what follows, and for how
    many ranges it was not needed lately."""

    __slots__ = ("asked", "end", "held")

    def __init__(self) -> None:
        self.asked = 0
        self.end = 0
        self.held = 0


class Reads:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        threads: ThreadPoolExecutor,
        descriptors: int = sys.maxsize,
        produced: Callable[[], int] = lambda: 0,
    ) -> None:
        """`descriptors`: how many segment files may be open, with those that answers hold.
        `produced`: how many requests have come from producers."""
        self.old_data = OldData(loop, produced)
        self.warming = Warming(loop, threads)
        self._loop = loop
        self._threads = threads
        self._descriptors = descriptors
        # By descriptor. One that is another file's by now costs that one's readers a few detours.
        self._cold: OrderedDict[int, _ColdStretch] = OrderedDict()

    @property
    def has_descriptors(self) -> bool:
        """Whether answers may keep more files open until they are sent."""
        return len(OPEN_DESCRIPTORS) < self._descriptors

    def _without_file(self, piece: Slice) -> Slice:
        """The part of a range that is copied rather than sent from its file."""
        return piece._replace(length=min(piece.length, max(piece.first_size, COPIED_BYTES)))

    def take(self, piece: Slice) -> bytes | FileRange | None:
        """The range (or the beginning of it) as something to send, or None if the disk has to be
        asked first."""
        length = piece.length
        if length <= INLINE_BYTES:
            return self._from_memory(piece)
        if not self.has_descriptors:
            return self._from_memory(self._without_file(piece))
        if self._cold:
            stretch = self._cold.get(piece.file.fd)
            if stretch is not None and 0 <= piece.position - stretch.end < NEARBY_BYTES:
                return None
        if not piece.file.seems_in_memory(piece.position, length):
            return None
        return FileRange(piece.file, piece.position, length)

    def _from_memory(self, piece: Slice) -> bytes | None:
        data = piece.file.read_in_memory(piece.length, piece.position)
        return None if data is None else self._whole(data, piece.length)

    async def _from_disk(self, piece: Slice) -> bytes:
        data = await self._loop.run_in_executor(self._threads, piece.read)
        return self._whole(data, piece.length)

    @staticmethod
    def _whole(data: bytes, length: int) -> bytes:
        if len(data) != length:
            raise OSError(errno.EIO, f"read {len(data)} of {length} bytes")
        return data

    def read_at_once(self, piece: Slice) -> bytes | None:
        """The bytes themselves, for callers that have to look into them; None if they are many, or the
        disk has to be asked."""
        return self._from_memory(piece) if piece.length <= COPIED_BYTES else None

    async def read(self, piece: Slice) -> bytes:
        """The bytes themselves, from memory or from the disk."""
        held = self.read_at_once(piece)
        return await self._from_disk(piece) if held is None else held

    async def load(self, missing: NotInMemory, size: int) -> None:
        """Reads what a search found missing in memory, so that it can be tried again."""
        await self._loop.run_in_executor(self._threads, missing.load, size)

    async def take_cold(self, piece: Slice) -> bytes | FileRange:
        """Has the range brought into memory, then takes it."""
        if piece.length <= INLINE_BYTES:
            return await self._from_disk(piece)
        if not self.has_descriptors:
            return await self._from_disk(self._without_file(piece))
        ahead = self._ahead(piece)
        # At least the sockets are looked at, after the request was handled.
        await asyncio.sleep(self.old_data.delay(piece.length))
        asked = await self.warming.bring_into_memory(
            piece.file, piece.position, piece.length + BEYOND_BYTES, ahead
        )
        self._remember(piece, asked, ahead.stop)
        return FileRange(piece.file, piece.position, piece.length, is_from_disk=True)

    def page_in(self, part: FileRange, size: int) -> asyncio.Future[bool]:
        """Reads the beginning of a range into the page cache in a thread: it has waited for its socket
        for so long that it is not there any more."""
        return self._loop.run_in_executor(
            self._threads, part.file.bring_into_memory, part.position, size
        )

    def _ahead(self, piece: Slice) -> range:
        """What follows the range and was not asked for yet, if its reader goes through old data."""
        end = piece.position + piece.length + BEYOND_BYTES
        stretch = self._cold.get(piece.file.fd)
        if stretch is None or not 0 <= piece.position - stretch.end < NEARBY_BYTES:
            return range(end, end)
        return range(max(end, min(stretch.asked, end + AHEAD_BYTES)), end + AHEAD_BYTES)

    def _remember(self, piece: Slice, asked: bool, asked_until: int) -> None:
        fd = piece.file.fd
        stretch = self._cold.pop(fd, None)
        if stretch is None:
            stretch = _ColdStretch()
        stretch.held = 0 if asked else stretch.held + 1
        if stretch.held < TRUSTED_AFTER:
            # Ranges end inside of batches: the next one begins a little before this end.
            stretch.end = piece.position + piece.length // 2
            stretch.asked = asked_until
            self._cold[fd] = stretch
            if len(self._cold) > REMEMBERED_FILES:
                self._cold.popitem(last=False)
