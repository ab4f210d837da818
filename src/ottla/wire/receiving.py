"""From a stream of bytes to frames, without I/O and without copying what is large.

The stream's bytes are received into buffers that this module hands out. Small frames arrive many at
a time in one buffer and are copied out of it; a frame that is larger than that buffer gets one of
exactly its own size, into which the rest of it is received directly. What is given on is a view of
that buffer: the records of a Fetch answer are never copied on their way to whoever decodes them.

A large buffer is used again once nobody holds a view of it any more: memory that the kernel has to map
and clear costs as much as receiving into it.

Whoever wants to look at a large frame before it is whole sets `on_part`, and may answer with a way to
receive the frame's next bytes by itself: see `Pull`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final

from ottla.protocol.message import Buffer

SMALL: Final = 64 * 1024  # bytes of the buffer for small frames
# Bytes that are received at a time: what is done with them then finds them in the processor's cache.
PART: Final = 512 * 1024
_KEPT_BUFFERS: Final = 2
_KEPT_FROM: Final = PART  # bytes
_ROUNDED_TO: Final = 64 * 1024  # answers to like requests are alike, but not the same
_REUSED_ABOVE: Final = 0.5  # of a kept buffer's size: a smaller frame would pin a larger buffer

_unpack_length = Struct(">i").unpack_from


# Given a socket's descriptor, how many bytes of a frame are there, and how many more may come now: puts
# the next ones after them and says how many these are. 0 says no more than to go the ordinary way now,
# less than 0 that this is no way any more: `on_part` is called again, and may know another one.
Pull = Callable[[int, int, int], int]
# Told of a large frame's view and how many bytes of it are there.
OnPart = Callable[[memoryview, int], Pull | None]


class UnacceptableFrame(ValueError):
    """A frame whose length is negative or beyond the limit: the stream makes no sense any more."""


class FrameReceiver:
    """Receives one stream: fill what `buffer()` gives, say so to `received()`, take the frames."""

    __slots__ = (
        "_end",
        "_filled",
        "_kept",
        "_large",
        "_limit",
        "_reported",
        "_small",
        "_small_view",
        "_start",
        "on_part",
        "pull",
        "pulls",
    )

    def __init__(self, limit: int) -> None:
        self.on_part: OnPart | None = None
        # Whoever receives can call `pull_from`; then `on_part` need not be told of what is pulled.
        self.pulls = False
        self.pull: Pull | None = None  # of the large frame under way
        self._limit = limit
        self._small = bytearray(SMALL)
        self._small_view = memoryview(self._small)
        # Bytes start..end of the small buffer are received and not yet given on.
        self._start = 0
        self._end = 0
        # The large frame under way and how much of it is there; _start == _end meanwhile.
        self._large: memoryview | None = None
        self._filled = 0
        self._reported = 0  # how much was there when `on_part` was called last
        self._kept: list[bytearray] = []

    def buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._large is not None:
            return self._large[self._filled : self._filled + PART]
        return self._small_view[self._end :]

    @property
    def missing(self) -> int:
        """Bytes of a large frame that are still to come; 0 where no such frame is under way."""
        return 0 if self._large is None else len(self._large) - self._filled

    def pull_from(self, descriptor: int, most: int) -> int:
        """Have up to `most` of the large frame's bytes received by who set `pull`; how many came."""
        if self.pull is None or self._large is None:
            return 0
        # The last byte comes the ordinary way, which knows what to do with a whole frame.
        most = min(most, len(self._large) - self._filled - 1)
        count = self.pull(descriptor, self._filled, most) if most > 0 else 0
        if count < 0:
            self.pull = None
            return 0
        self._filled += count
        self._reported = self._filled
        return count

    def received(self, count: int) -> Iterator[Buffer]:
        """The frames, without their lengths, that `count` more bytes have completed."""
        large = self._large
        if large is not None:
            self._filled += count
            if self._filled == len(large):
                self._large = self.pull = None
                yield large.toreadonly()
            elif (
                self.pull is None
                and self.on_part is not None
                and self._filled - self._reported >= PART
            ):
                self._reported = self._filled
                pull = self.on_part(large.toreadonly(), self._filled)
                self.pull = pull if self.pulls else None
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

    def close(self) -> None:
        """Let go of what is large; nothing more will be received."""
        self.on_part = None
        self._large = self.pull = None
        self._kept.clear()

    def _begin_large(self, begin: int, length: int) -> None:
        self._large = large = self._take_buffer(length)
        self._filled = self._end - begin
        self._reported = 0
        large[: self._filled] = self._small_view[begin : self._end]
        self._start = self._end = 0

    def _take_buffer(self, length: int) -> memoryview:
        for position, kept in enumerate(self._kept):
            if length <= len(kept) and length >= _REUSED_ABOVE * len(kept) and _is_free(kept):
                self._kept.append(self._kept.pop(position))
                return memoryview(kept)[:length]
        if length < _KEPT_FROM:
            return memoryview(bytearray(length))
        fresh = bytearray(-(-length // _ROUNDED_TO) * _ROUNDED_TO)
        if len(self._kept) == _KEPT_BUFFERS:
            del self._kept[0]
        self._kept.append(fresh)
        return memoryview(fresh)[:length]

    def _compact(self) -> None:
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start:
            rest = self._end - self._start
            self._small_view[:rest] = self._small_view[self._start : self._end]
            self._start, self._end = 0, rest


def _is_free(buffer: bytearray) -> bool:
    """Whether no view of the buffer is left. Views are all that is ever given out of one."""
    try:
        # Python refuses to resize a bytearray that anybody looks at.
        last = buffer.pop()
    except BufferError:
        return False
    buffer.append(last)
    return True
