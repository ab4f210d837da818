"""The short cut of Produce: a request that differs from one before it in partition and records only.

A producer asks for the same again and again: one batch for a partition of this topic, with these acks.
What stands before is then the same bytes each time, and is compared as a whole instead of being read;
a response differs from the one before it in a few numbers, and is packed in one go. Nothing else is
short: the checks and the append are those of every request (`handler`).
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ottla.protocol.wiretypes import unsigned_varint
from ottla.server.handlers.produce.answer import (
    FIRST_LOG_START,
    frame,
    success_piece,
    topic_piece,
)
from ottla.server.handlers.produce.request import FIRST_FLEXIBLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.server.handlers.produce.request import Parts

# One request in so many is looked at for what may be repeated: a client that alternates between topics
# shall not pay for it each time.
LEARNED_ONE_IN = 8

_INDEX_BYTES = 4
_OLD_SIZE_BYTES = 4
# After the records of a flexible request: no tags of the partition, of the topic, of the request.
_NO_TAGS = bytes(3)


class Repeated:
    """What the requests of a connection have in common that bring one batch for one partition."""

    __slots__ = (
        "_acks",
        "_before",
        "_is_flexible",
        "_key",
        "_pack_answer",
        "_read",
        "_size_at",
        "_timeout_ms",
        "_version",
    )

    def __init__(self, version: int, request: Parts, before: bytes) -> None:
        """`before`: the request up to the partition's index."""
        _, self._acks, self._timeout_ms, ((self._key, _),) = request
        self._version = version
        self._before = before
        self._is_flexible = version >= FIRST_FLEXIBLE
        self._read = _reader(len(before), self._is_flexible)
        self._size_at = len(before) + _INDEX_BYTES
        self._pack_answer = _packer_of_answers(version, self._key)

    def read(self, view: memoryview, at: int, stop: int, version: int) -> Parts | None:
        """As `request.read`, of a request that is like the one before; None if it is another one."""
        if version != self._version:
            return None
        start = at + self._size_at
        if start + _OLD_SIZE_BYTES > stop:
            return None
        if self._is_flexible:
            before, index, low, middle, high = self._read(view, at)
            if low < 0x80:
                size, start = low, start + 1
            elif middle < 0x80:
                size, start = low - 0x80 + (middle << 7), start + 2
            elif high < 0x80:
                size, start = low - 0x80 + ((middle - 0x80) << 7) + (high << 14), start + 3
            else:
                return None
            end = start + size - 1
            if end + len(_NO_TAGS) != stop or view[end:stop] != _NO_TAGS:
                return None
        else:
            before, index, size = self._read(view, at)
            start += _OLD_SIZE_BYTES
            end = start + size
            if end != stop:
                return None
        if before != self._before or end <= start:
            return None
        return None, self._acks, self._timeout_ms, [(self._key, [(index, start, end)])]

    def answer(
        self,
        correlation_id: int,
        index: int,
        base_offset: int,
        append_time: int,
        log_start_offset: int,
    ) -> bytes:
        """The response to such a request whose batch was stored."""
        return self._pack_answer(correlation_id, index, base_offset, append_time, log_start_offset)


def repeatable(
    view: memoryview, at: int, stop: int, version: int, request: Parts
) -> Repeated | None:
    """What may come again of a request that was answered; None if it is not of this kind."""
    transactional_id, acks, _, topics = request
    if (
        version < FIRST_LOG_START
        or transactional_id is not None
        or not acks
        or len(topics) != 1
        or len(topics[0][1]) != 1
    ):
        return None
    _, start, end = topics[0][1][0]
    size_bytes = _OLD_SIZE_BYTES
    if version >= FIRST_FLEXIBLE:
        size_bytes = len(unsigned_varint(end - start + 1))
    found = Repeated(version, request, bytes(view[at : start - size_bytes - _INDEX_BYTES]))
    # It may be written otherwise: tags, a size that takes more bytes than it has to, more after it.
    return found if found.read(view, at, stop, version) == request else None


@lru_cache(512)
def _reader(before: int, is_flexible: bool) -> Callable[[memoryview, int], tuple[Any, ...]]:
    """Reads so many bytes, the index of a partition, and the size of its records."""
    return struct.Struct(f">{before}siBBB" if is_flexible else f">{before}sii").unpack_from


@lru_cache(512)
def _packer_of_answers(version: int, key: bytes) -> Callable[[int, int, int, int, int], bytes]:
    """Packs correlation id, index, base offset, append time and log start offset into a response."""
    topic = topic_piece(version, key, 1, 1)
    response = frame(version, 0, [topic, success_piece(version, 0, 0, 0, 0)])
    length = response[:4]
    index_at = response.index(topic, 8) + len(topic)
    # Index, no error (two bytes), three numbers: what stands before and after is the same each time.
    before, after = response[8:index_at], response[index_at + 30 :]
    pack = struct.Struct(f">4si{len(before)}sixxqqq{len(after)}s").pack

    def packed(
        correlation_id: int,
        index: int,
        base_offset: int,
        append_time: int,
        log_start_offset: int,
    ) -> bytes:
        return pack(
            length, correlation_id, before, index, base_offset, append_time, log_start_offset, after
        )

    return packed
