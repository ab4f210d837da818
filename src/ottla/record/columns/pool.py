"""Memory for batches and columns that is used again, and never while anybody can still see it.

Fresh memory is dear: the kernel maps and clears it page by page, and the processor's cache does not have
it. A buffer comes back when the last view of it is gone, wherever that was held: by a column that a user
has, a batch that waits for its acknowledgement or for another attempt, a request that timed out, or a
connection that has still to send it. Nobody has to say that it is no longer needed, so nobody can say so
too early.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

# A buffer that is larger than wanted by more than this part of it is left to others.
_SPARE = 4


class Memory:
    """Buffers of any size, of which some bytes are kept for later. Safe to use from several threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # Those that nobody has, the ones that came back last on the right; a deque, because they come
        # back in whatever thread lets go of them, perhaps in the middle of a call of that thread's,
        # where no lock may be waited for.
        self._free: deque[_FreeBuffer] = deque()

    def take(self, size: int) -> npt.NDArray[Any]:
        """At least `size` bytes with no particular contents, and not many more."""
        kept = self._fitting(size)
        # A bytearray would be cleared.
        memory = np.empty(size, np.uint8).data if kept is None else kept.memory
        # Views of this array, and arrays made of it, keep it alive: its base is no array, so that
        # numpy has none to put in its place.
        buffer = np.frombuffer(memory, np.uint8)
        weakref.finalize(buffer, self._give_back, memory).atexit = False
        return buffer

    def _fitting(self, size: int) -> _FreeBuffer | None:
        for kept in reversed(self._all_free()):
            if size <= len(kept.memory) <= size + size // _SPARE:
                try:
                    self._free.remove(kept)
                except ValueError:
                    continue  # another thread was faster
                return kept
        return None

    def _give_back(self, memory: memoryview) -> None:
        self._free.append(_FreeBuffer(memory))
        while self.kept > self._limit:
            try:
                self._free.popleft()
            except IndexError:
                return

    @property
    def kept(self) -> int:
        """Bytes that are kept for later."""
        return sum(len(each.memory) for each in self._all_free())

    def _all_free(self) -> tuple[_FreeBuffer, ...]:
        while True:
            try:
                return tuple(self._free)
            except RuntimeError:
                continue  # something came back meanwhile


class _FreeBuffer:
    """A buffer that is free. It is equal to itself alone, where views compare what is in them."""

    __slots__ = ("memory",)

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory


class BufferPool:
    """Buffers of one size, of which some are kept for later. Safe to use from several threads."""

    def __init__(self, size: int, kept: int) -> None:
        self.size = size
        self._memory = Memory(size * kept)

    def take(self) -> npt.NDArray[Any]:
        """A buffer with no particular contents, the one last used if there is a choice."""
        return self._memory.take(self.size)

    @property
    def free(self) -> int:
        """Buffers that are kept for later."""
        return self._memory.kept // self.size
