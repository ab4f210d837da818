"""From a stream of bytes to frames, without I/O and without copying what is large.

The stream's bytes are received into buffers that this module hands out. Small frames arrive many at
a time in one buffer and are copied out of it; a frame that is larger than that buffer gets one of
exactly its own size, into which the rest of it is received directly. What is given on is a view of
that buffer: the records of a Fetch answer are never copied on their way to whoever decodes them.

A large buffer is used again once nobody holds a view of it any more: memory that the kernel has to map
and clear page by page takes longer than receiving into it. For the same reason it is made of huge pages
where the system has them, and cleared as it is filled, when the interpreter's lock is not held.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from struct import Struct
from typing import Final, TypeAlias

from ottla.protocol.message import Buffer

SMALL: Final = 64 * 1024  # bytes of the buffer for small frames
_KEPT_BUFFERS: Final = 4
_KEPT_FROM: Final = 1024 * 1024  # bytes
_KEPT_UNIT: Final = 1024 * 1024  # their sizes are multiples: the next frame may be a little larger
_REUSED_ABOVE: Final = 0.5  # of a kept buffer's size: a smaller frame would pin a larger buffer

_MADVISE_HUGE: Final = getattr(mmap, "MADV_HUGEPAGE", None)

_Memory: TypeAlias = bytearray | mmap.mmap

_unpack_length = Struct(">i").unpack_from


class UnacceptableFrame(ValueError):
    """A frame whose length is negative or beyond the limit: the stream makes no sense any more."""


class FrameReceiver:
    """Receives one stream: fill what `buffer()` gives, say so to `received()`, take the frames."""

    __slots__ = ("_end", "_filled", "_kept", "_large", "_limit", "_small", "_small_view", "_start")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._small = bytearray(SMALL)
        self._small_view = memoryview(self._small)
        # Bytes start..end of the small buffer are received and not yet given on.
        self._start = 0
        self._end = 0
        # The large frame under way and how much of it is there; _start == _end meanwhile.
        self._large: memoryview | None = None
        self._filled = 0
        self._kept: list[_Memory] = []

    def buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._large is not None:
            return self._large[self._filled :]
        return self._small_view[self._end :]

    def received(self, count: int) -> Iterator[Buffer]:
        """The frames, without their lengths, that `count` more bytes have completed."""
        large = self._large
        if large is not None:
            self._filled += count
            if self._filled == len(large):
                self._large = None
                yield large.toreadonly()
            return
        self._end += count
        small = self._small
        while self._end - self._start >= 4:
            (length,) = _unpack_length(small, self._start)
            if not 0 <= length <= self._limit:
                raise UnacceptableFrame(f"a frame of {length} bytes, {self._limit} are the limit")
            begin = self._start + 4
            if begin + length <= self._end:
                self._start = begin + length
                yield bytes(self._small_view[begin : begin + length])
            elif length > SMALL - 4:
                self._begin_large(begin, length)
                return
            else:
                break
        self._compact()

    def _begin_large(self, begin: int, length: int) -> None:
        self._large = large = self._take_buffer(length)
        self._filled = self._end - begin
        large[: self._filled] = self._small_view[begin : self._end]
        self._start = self._end = 0

    def _take_buffer(self, length: int) -> memoryview:
        if length < _KEPT_FROM:
            return memoryview(bytearray(length))
        misfit = None  # the place of one that is too small or too large
        for place, kept in enumerate(self._kept):
            if not length <= len(kept) <= length / _REUSED_ABOVE:
                misfit = place
            elif _is_free(kept):
                return memoryview(kept)[:length]
        fresh = _allocated(-(-length // _KEPT_UNIT) * _KEPT_UNIT)
        if len(self._kept) < _KEPT_BUFFERS:
            self._kept.append(fresh)
        elif misfit is not None:
            self._kept[misfit] = fresh
        return memoryview(fresh)[:length]

    def _compact(self) -> None:
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start:
            rest = self._end - self._start
            self._small_view[:rest] = self._small_view[self._start : self._end]
            self._start, self._end = 0, rest


def _allocated(size: int) -> _Memory:
    if _MADVISE_HUGE is None:
        return bytearray(size)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(_MADVISE_HUGE)
    return memory


def _is_free(memory: _Memory) -> bool:
    """Whether no view of the memory is left. Views are all that is ever given out of it."""
    # Python refuses to resize what anybody looks at.
    try:
        if isinstance(memory, mmap.mmap):
            memory.resize(len(memory))
        else:
            memory.append(memory.pop())
    except BufferError:
        return False
    return True
