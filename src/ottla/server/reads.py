"""Bytes of segments on their way out: from memory at once, from the disk by way of a thread.

Before a range is trusted to be in the page cache it is probed (`preadv` with RWF_NOWAIT fails rather
than wait for the disk). What is not in memory is read once in a thread, which brings it there; then
it is sent like anything else. On systems without such a probe every range counts as hot up to the
kernel's read-ahead; that is the portable fall-back.
"""

from __future__ import annotations

import asyncio
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ottla.server.platform import READ_WITHOUT_WAITING
from ottla.server.ranges import FileRange

if TYPE_CHECKING:
    from ottla.storage.segment_file import Slice

# Up to this size a copy costs less than two more system calls.
INLINE_BYTES = 16 << 10
# A page is probed every so often: the kernel reads ahead at least this much at a time.
PROBE_STRIDE = 128 << 10
_NO_PROBE = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


class Reads:
    def __init__(self, loop: asyncio.AbstractEventLoop, threads: ThreadPoolExecutor) -> None:
        self._loop = loop
        self._threads = threads
        # False once the kernel or the file system said that it cannot tell.
        self._can_probe = bool(READ_WITHOUT_WAITING)
        self._one = [bytearray(1)]

    def take(self, piece: Slice) -> bytes | FileRange | None:
        """The range as something to send, or None if the disk has to be asked first."""
        length = piece.length
        if length <= INLINE_BYTES:
            if not self._can_probe:
                return self._whole(os.pread(piece.file.fd, length, piece.position), length)
            buffer = bytearray(length)
            try:
                read = os.preadv(piece.file.fd, [buffer], piece.position, READ_WITHOUT_WAITING)
            except BlockingIOError:
                return None
            except OSError as error:
                if error.errno not in _NO_PROBE:
                    raise
                self._can_probe = False
                return self.take(piece)
            # Short: the rest of the range is not in memory (or the file was cut off).
            return bytes(buffer) if read == length else None
        if self._can_probe and not self._is_hot(piece):
            return None
        return FileRange(piece.file, piece.position, length)

    def _is_hot(self, piece: Slice) -> bool:
        fd = piece.file.fd
        one = self._one
        last = piece.position + piece.length - 1
        try:
            for at in range(piece.position, last, PROBE_STRIDE):
                os.preadv(fd, one, at, READ_WITHOUT_WAITING)
            os.preadv(fd, one, last, READ_WITHOUT_WAITING)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_PROBE:
                raise
            self._can_probe = False
        return True

    @staticmethod
    def _whole(data: bytes, length: int) -> bytes:
        if len(data) != length:
            raise OSError(errno.EIO, f"read {len(data)} of {length} bytes")
        return data

    async def read(self, piece: Slice) -> bytes:
        """The bytes themselves, for those who have to look into them."""

        def read() -> bytes:
            data = os.pread(piece.file.fd, piece.length, piece.position)
            return self._whole(data, piece.length)

        return await self._loop.run_in_executor(self._threads, read)

    async def take_cold(self, piece: Slice) -> bytes | FileRange:
        """Bring the range into memory without holding up the loop, then take it."""
        if piece.length <= INLINE_BYTES:
            return await self.read(piece)

        def warm() -> None:
            fd = piece.file.fd
            at, end = piece.position, piece.position + piece.length
            while at < end:
                got = len(os.pread(fd, min(1 << 20, end - at), at))
                if not got:
                    raise OSError(errno.EIO, "segment shorter than its range")
                at += got

        await self._loop.run_in_executor(self._threads, warm)
        return FileRange(piece.file, piece.position, piece.length)
