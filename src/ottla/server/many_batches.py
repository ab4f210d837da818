"""Produce requests with batches for several partitions, read and answered in place.

A producer with many partitions on a broker sends all that is due in one request. Its parts are found
here without an object for each, and the answer is packed the same way; what a part needs beyond that
is the log's own work. Only requests without a transaction and without tagged fields: the general way
(handlers/produce.py) has the rest.

Both layouts, old and flexible (v9+), of what is read:

    transactional id (null) | acks | timeout | topics [ name or id | partitions [ index | records ] ]
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ottla.protocol.wiretypes import unsigned_varint, unsigned_varint_at

_FIRST_FLEXIBLE = 9
_FIRST_TOPIC_IDS = 13

# no transactional id, acks, timeout, topics
_read_old_start = struct.Struct(">hhii").unpack_from
_OLD_START = 12
_read_short = struct.Struct(">h").unpack_from
_read_int = struct.Struct(">i").unpack_from
# index, size of the records
_read_old_part = struct.Struct(">ii").unpack_from
_OLD_PART = 8
# no transactional id, acks, timeout
_read_new_start = struct.Struct(">Bhi").unpack_from
# index, the first two bytes of the size of the records
_read_new_part = struct.Struct(">iBB").unpack_from
_NEW_START = 7

_pack_head = struct.Struct(">ii").pack
_pack_int = struct.Struct(">i").pack
_pack_short = struct.Struct(">h").pack
# index, error, base offset, append time | v5: log start offset | v8: record errors, message
_pack_v3 = struct.Struct(">ihqq").pack
_pack_v5 = struct.Struct(">ihqqq").pack
_pack_v8 = struct.Struct(">ihqqqih").pack
# the same as v8 in the flexible form, and the tags
_pack_v9 = struct.Struct(">ihqqqBBB").pack


class TopicBatches(NamedTuple):
    key: bytes  # the topic's name, or its id from v13 on
    # index, and where the records begin and end in the request
    parts: list[tuple[int, int, int]]


def find(
    view: memoryview, at: int, stop: int, version: int
) -> tuple[int, list[TopicBatches]] | None:
    """acks and the batches of a request; None if the general way should have a look at it."""
    try:
        found = (_find_new if version >= _FIRST_FLEXIBLE else _find_old)(view, at, stop, version)
    except (IndexError, struct.error, ValueError):
        return None  # cut short: the general way says how
    return found


def _find_old(
    view: memoryview, at: int, stop: int, _: int
) -> tuple[int, list[TopicBatches]] | None:
    no_transaction, acks, _, count = _read_old_start(view, at)
    if no_transaction != -1:
        return None
    at += _OLD_START
    topics = []
    for _ in range(count):
        length = _read_short(view, at)[0]
        name_at = at + 2
        at = name_at + length
        if length <= 0 or at > stop:
            return None
        key = bytes(view[name_at:at])
        partitions = _read_int(view, at)[0]
        at += 4
        parts = []
        for _ in range(partitions):
            index, size = _read_old_part(view, at)
            start = at + _OLD_PART
            at = start + size
            if size < 0 or at > stop:
                return None
            parts.append((index, start, at))
        topics.append(TopicBatches(key, parts))
    return (acks, topics) if at == stop else None


def _find_new(
    view: memoryview, at: int, stop: int, version: int
) -> tuple[int, list[TopicBatches]] | None:
    by_id = version >= _FIRST_TOPIC_IDS
    no_transaction, acks, _ = _read_new_start(view, at)
    if no_transaction:
        return None
    count, at = unsigned_varint_at(view, at + _NEW_START)
    topics = []
    for _ in range(count - 1):
        if by_id:
            length = 16
        else:
            length, at = unsigned_varint_at(view, at)
            length -= 1
        if length <= 0 or at + length > stop:
            return None
        key = bytes(view[at : at + length])
        partitions, at = unsigned_varint_at(view, at + length)
        parts = []
        for _ in range(partitions - 1):
            index, low, high = _read_new_part(view, at)
            if low >= 0x80 > high:
                # A size of two bytes, as most are.
                size, start = low - 0x80 + (high << 7), at + 6
            else:
                size, start = unsigned_varint_at(view, at + 4)
            end = start + size - 1
            # Behind the records no tagged fields.
            if not size or end >= stop or view[end]:
                return None
            parts.append((index, start, end))
            at = end + 1
        if view[at]:
            return None
        at += 1
        topics.append(TopicBatches(key, parts))
    return (acks, topics) if at == stop - 1 and not view[at] else None


class Answer:
    """The response to such a request, part by part."""

    __slots__ = ("_flexible", "_pieces", "_version")

    def __init__(self, version: int, correlation_id: int, topics: int) -> None:
        self._version = version
        self._flexible = version >= _FIRST_FLEXIBLE
        if self._flexible:
            head = _pack_head(0, correlation_id) + b"\0" + unsigned_varint(topics + 1)
        else:
            head = _pack_head(0, correlation_id) + _pack_int(topics)
        self._pieces = [head]

    def topic(self, key: bytes, partitions: int) -> None:
        """Go on to a topic (the one before it is complete)."""
        pieces = self._pieces
        if not self._flexible:
            pieces.append(_pack_short(len(key)) + key + _pack_int(partitions))
            return
        if len(pieces) > 1:
            pieces.append(b"\0")
        if self._version < _FIRST_TOPIC_IDS:
            pieces.append(unsigned_varint(len(key) + 1))
        pieces.append(key + unsigned_varint(partitions + 1))

    def part(self, index: int, appended: tuple[int, int, int]) -> None:
        """`appended`: base offset, append time and the log's start."""
        version = self._version
        if version >= 9:
            piece = _pack_v9(index, 0, *appended, 1, 0, 0)
        elif version >= 8:
            piece = _pack_v8(index, 0, *appended, 0, -1)
        elif version >= 5:
            piece = _pack_v5(index, 0, *appended)
        else:
            piece = _pack_v3(index, 0, *appended[:2])
        self._pieces.append(piece)

    def frame(self) -> bytes:
        """The whole response, its length before it. The end: tags, throttle time, tags."""
        self._pieces.append(b"\0\0\0\0\0\0" if self._flexible else b"\0\0\0\0")
        frame = bytearray(b"".join(self._pieces))
        frame[:4] = _pack_int(len(frame) - 4)
        return bytes(frame)
