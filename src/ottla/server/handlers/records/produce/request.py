"""The layout of Produce requests: where the records of each partition stand.

    v3+: transactional id | acks | timeout | topics [ name or id | partitions [ index | records ] ]

Flexible versions (v9+) have compact lengths and tagged fields after each part. Nothing is copied but
names, and there is no object for a record or a batch: only positions. Bytes after the request are
ignored, as in Kafka.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, TypeAlias

from ottla.protocol.message import MalformedMessage
from ottla.protocol.wiretypes import LONGEST_STRING, skip_tags, unsigned_varint_at
from ottla.server.network.connection import MalformedRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.server.turns import Steps

FIRST_FORMAT_2 = 3
FIRST_FLEXIBLE = 9
FIRST_TOPIC_IDS = 13

# A partition's index, and where its records begin and end. Null is empty: both are refused alike.
Part: TypeAlias = tuple[int, int, int]
# A topic's name as it stands on the wire (its id from v13 on), and its partitions.
TopicParts: TypeAlias = tuple[bytes, list[Part]]
# Transactional id, acks, timeout in milliseconds, topics.
Parts: TypeAlias = tuple[str | None, int, int, list[TopicParts]]

# acks, timeout, topics
_read_old_start = struct.Struct(">hii").unpack_from
_OLD_START = 10
_read_short = struct.Struct(">h").unpack_from
_read_int = struct.Struct(">i").unpack_from
# index, size of the records
_read_old_part = struct.Struct(">ii").unpack_from
_OLD_PART = 8
# length of the transactional id, acks, timeout, topics: as they stand if there is no transaction
_read_flexible_start = struct.Struct(">BhiB").unpack_from
_FLEXIBLE_START = 8
# acks, timeout, topics
_read_flexible_rest = struct.Struct(">hiB").unpack_from
# topic id, partitions
_read_topic_id = struct.Struct(">16sB").unpack_from
# index, the first two bytes of the size of the records
_read_flexible_part = struct.Struct(">iBB").unpack_from


# Topics and partitions that are read at once.
MANY: Final = 2_000


# Of one request, as of requests of other kinds: more than a cluster has partitions.
MOST_ENTRIES: Final = 2_000_000


class LongRequest(Exception):
    """It names so many partitions that the loop must have its turn while it is read."""


def read(view: memoryview, at: int, stop: int, version: int) -> Parts:
    """The parts of a request of any version; MalformedRequest if it is none, LongRequest if it names
    very many."""
    left = MANY
    try:
        if version < FIRST_FLEXIBLE:
            return _read_old(view, at, stop, version >= FIRST_FORMAT_2)
        by_id = version >= FIRST_TOPIC_IDS
        transactional_id = None
        length, acks, timeout_ms, topic_count = _read_flexible_start(view, at)
        if length:
            length, at = _string_length(view, at)
            transactional_id = str(view[at : at + length], "utf-8")
            at += length
            acks, timeout_ms, topic_count = _read_flexible_rest(view, at)
            at += _FLEXIBLE_START - 1
        else:
            at += _FLEXIBLE_START
        if topic_count > 127:
            topic_count, at = unsigned_varint_at(view, at - 1)
        if not topic_count:
            raise _malformed("no array of topics")
        topics: list[TopicParts] = []
        # Loops that count down: a range for one topic of one partition would cost as much as the rest.
        while topic_count > 1:
            topic_count -= 1
            if by_id:
                key, count = _read_topic_id(view, at)
                at += 17
            else:
                length = view[at] - 1
                at += 1
                if not 0 <= length < 127:
                    length, at = _string_length(view, at - 1)
                key = bytes(view[at : at + length])
                if not key.isascii():
                    key.decode()  # no topic has such a name, but it goes back in the answer
                at += length
                count = view[at]
                at += 1
            if count > 127:
                count, at = unsigned_varint_at(view, at - 1)
            if not count or at > stop:
                raise _malformed("no array of partitions")
            left -= count
            if left < 0:
                raise LongRequest
            parts: list[Part] = []
            while count > 1:
                count -= 1
                index, low, high = _read_flexible_part(view, at)
                if low >= 0x80 > high:
                    # A size of two bytes, as most are.
                    size, start = low - 0x80 + (high << 7), at + 6
                else:
                    size, start = unsigned_varint_at(view, at + 4)
                end = start + size - 1 if size else start
                if end >= stop:
                    raise _malformed("records are cut short")
                parts.append((index, start, end))
                tags = view[end]
                at = end + 1
                if tags:
                    at = skip_tags(view, at, tags, stop)
            tags = view[at]
            at += 1
            if tags:
                at = skip_tags(view, at, tags, stop)
            topics.append((key, parts))
        tags = view[at]
        at += 1
        if tags:
            at = skip_tags(view, at, tags, stop)
        if at > stop:
            raise _malformed("it is cut short")
        return transactional_id, acks, timeout_ms, topics
    except (IndexError, struct.error):
        raise _malformed("it is cut short") from None
    except (MalformedMessage, UnicodeDecodeError) as error:
        raise _malformed(str(error)) from None


def _read_old(view: memoryview, at: int, stop: int, has_transactional_id: bool) -> Parts:
    left = MANY
    transactional_id = None
    if has_transactional_id:
        length = _read_short(view, at)[0]
        at += 2
        if length >= 0:
            transactional_id = str(view[at : at + length], "utf-8")
            at += length
    acks, timeout_ms, topic_count = _read_old_start(view, at)
    at += _OLD_START
    if topic_count < 0:
        raise _malformed(f"{topic_count} topics")
    topics: list[TopicParts] = []
    while topic_count:
        topic_count -= 1
        length = _read_short(view, at)[0]
        start = at + 2
        at = start + length
        if length < 0 or at > stop:
            raise _malformed(f"a topic's name of {length} bytes")
        key = bytes(view[start:at])
        if not key.isascii():
            key.decode()  # no topic has such a name, but it goes back in the answer
        count = _read_int(view, at)[0]
        at += 4
        if count < 0:
            raise _malformed(f"{count} partitions")
        left -= count + 1
        if left < 0:
            raise LongRequest
        parts: list[Part] = []
        while count:
            count -= 1
            index, size = _read_old_part(view, at)
            start = at = at + _OLD_PART
            if size > 0:
                at += size
            elif size < -1:
                raise _malformed(f"records of {size} bytes")
            if at > stop:
                raise _malformed("records are cut short")
            parts.append((index, start, at))
        topics.append((key, parts))
    if at > stop:
        raise _malformed("it is cut short")
    return transactional_id, acks, timeout_ms, topics


def read_in_steps(view: memoryview, stop: int, version: int) -> Steps[Parts]:
    """The parts of a request that begins with the view, however many they are, with a pause after each.
    MalformedRequest if it is none."""
    try:
        return (yield from _Reader(view, stop, version).parts())
    except (IndexError, struct.error):
        raise _malformed("it is cut short") from None
    except (MalformedMessage, UnicodeDecodeError) as error:
        raise _malformed(str(error)) from None


class _Reader:
    """Reads what stands next in a request; slower than `read`, and in the same way for each version."""

    def __init__(self, view: memoryview, stop: int, version: int) -> None:
        self._view = view
        self._at = 0
        self._stop = stop
        self._version = version
        self._is_flexible = version >= FIRST_FLEXIBLE
        self._left = MOST_ENTRIES

    def parts(self) -> Steps[Parts]:
        transactional_id = None
        if self._version >= FIRST_FORMAT_2:
            name = self._string()
            transactional_id = None if name is None else name.decode()
        acks = self._number(_read_short, 2)
        timeout_ms = self._number(_read_int, 4)
        topics: list[TopicParts] = []
        for _ in range(self._count("topics")):
            topics.append((self._key(), (yield from self._partitions())))
            yield
        self._end()
        return transactional_id, acks, timeout_ms, topics

    def _partitions(self) -> Steps[list[Part]]:
        parts: list[Part] = []
        for _ in range(self._count("partitions")):
            index = self._number(_read_int, 4)
            size = self._varint() - 1 if self._is_flexible else self._number(_read_int, 4)
            if size < -1:
                raise _malformed(f"records of {size} bytes")
            start = self._at
            self._take(max(size, 0), "records are cut short")
            parts.append((index, start, self._at))
            self._end()
            yield
        self._end()
        return parts

    def _key(self) -> bytes:
        if self._version >= FIRST_TOPIC_IDS:
            return bytes(self._take(16))
        name = self._string()
        if name is None:
            raise _malformed("a topic without a name")
        if not name.isascii():
            name.decode()  # no topic has such a name, but it goes back in the answer
        return name

    def _string(self) -> bytes | None:
        length = self._varint() - 1 if self._is_flexible else self._number(_read_short, 2)
        if not -1 <= length <= LONGEST_STRING:
            raise _malformed(f"a string of {length} bytes")
        return None if length < 0 else bytes(self._take(length))

    def _count(self, of_what: str) -> int:
        count = self._varint() - 1 if self._is_flexible else self._number(_read_int, 4)
        if count < 0:
            raise _malformed(f"{count} {of_what}")
        self._left -= count
        if self._left < 0:
            raise _malformed("it has too many entries")
        return count

    def _varint(self) -> int:
        value, self._at = unsigned_varint_at(self._view, self._at)
        return value

    def _number(self, unpack: Callable[[memoryview, int], tuple[int]], size: int) -> int:
        value = unpack(self._view, self._at)[0]
        self._at += size
        return value

    def _take(self, size: int, problem: str = "it is cut short") -> memoryview:
        start, self._at = self._at, self._at + size
        if self._at > self._stop:
            raise _malformed(problem)
        return self._view[start : self._at]

    def _end(self) -> None:
        """The tagged fields after a part."""
        if self._is_flexible:
            tags = self._varint()
            if tags:
                self._at = skip_tags(self._view, self._at, tags, self._stop)
        if self._at > self._stop:
            raise _malformed("it is cut short")


def _string_length(view: memoryview, at: int) -> tuple[int, int]:
    """The compact length of a string that must not be null, and where it begins."""
    length, at = unsigned_varint_at(view, at)
    if not 0 < length <= LONGEST_STRING + 1:
        raise _malformed(f"a string of {length - 1} bytes")
    return length - 1, at


def _malformed(what: str) -> MalformedRequest:
    return MalformedRequest(f"ProduceRequest: {what}")
