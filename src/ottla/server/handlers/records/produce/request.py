"""The layout of Produce requests: where the records of each partition stand.

    v0+: acks | timeout | topics [ name | partitions [ index | records ] ]
    v3+: transactional id before all that
    v9+: compact lengths, tagged fields after each part
    v13: topics by id

One reader for all of them (`read`): it goes through the topics and their partitions, and has three
functions for what differs between versions (`_LAYOUTS`). It stops where it has read as much as the loop
has time for, and goes on from there when it is called again. Nothing is copied but names, and there is
no object for a record or a batch: only positions. Bytes after the request are ignored, as in Kafka.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from ottla.protocol.message import MalformedMessage
from ottla.protocol.wiretypes import LONGEST_STRING, skip_tags, unsigned_varint_at
from ottla.server.network.connection import MalformedRequest
from ottla.server.turns import ENTRIES_IN_A_STEP

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

# Topics and partitions that are read at once.
MANY: Final = 2_000

# Of one request, as of requests of other kinds: more than a cluster has partitions.
MOST_ENTRIES: Final = 2_000_000


class Unread(NamedTuple):
    """A request of which a part has been read."""

    # What has been read of it. Its last topic is not at its end.
    found: Parts
    # Topics after that one, partitions of that one, and where the first of these stands.
    topics_left: int
    partitions_left: int
    at: int
    # Topics and partitions that have been read.
    entries: int


class LongRequest(Exception):
    """It names so many partitions that the loop must have its turn before it is read to the end."""

    def __init__(self, unread: Unread) -> None:
        super().__init__()
        self.unread = unread


def read(
    view: memoryview, version: int, limit: int | None = None, unread: Unread | None = None
) -> Parts:
    """The parts of the request with which the view begins. Positions are those in the view.

    After `limit` topics and partitions (MANY) it stops at a partition: LongRequest tells what is
    `unread`, and with that it goes on. MalformedRequest if it is no request.
    """
    read_start, read_topic, read_partition, has_tags = _LAYOUTS[version]
    # Negative once there is more than may be read.
    room = limit = MANY if limit is None else limit
    try:
        if unread is None:
            transactional_id, acks, timeout_ms, topics_left, at = read_start(view)
            if topics_left < 0:
                raise _malformed("no array of topics")
            topics: list[TopicParts] = []
            goes_on = False
        else:
            (transactional_id, acks, timeout_ms, topics), topics_left, count, at, _ = unread
            topics_left += 1
            parts = topics[-1][1]
            goes_on = True
        # Loops that count down: a range for one topic of one partition would cost as much as the rest.
        while topics_left:
            topics_left -= 1
            if goes_on:
                goes_on = False
            else:
                key, count, at = read_topic(view, at)
                if count < 0:
                    raise _malformed("no array of partitions")
                parts = []
                topics.append((key, parts))
                room -= 1
            room -= count
            left = 0
            if room < 0:
                left = min(count, -room)
                count -= left
            while count:
                count -= 1
                part, at = read_partition(view, at)
                parts.append(part)
            if room < 0:
                found = transactional_id, acks, timeout_ms, topics
                entries = limit - room - left + (0 if unread is None else unread.entries)
                raise _too_long(Unread(found, topics_left, left, at, entries))
            if has_tags:
                tags = view[at]
                at += 1
                if tags:
                    at = skip_tags(view, at, tags, len(view))
        if has_tags and view[at]:
            skip_tags(view, at + 1, view[at], len(view))
        elif at > len(view):
            raise _malformed("records are cut short")
    except (IndexError, struct.error):
        raise _malformed("it is cut short") from None
    except (MalformedMessage, UnicodeDecodeError) as error:
        raise _malformed(str(error)) from None
    return transactional_id, acks, timeout_ms, topics


def read_on(view: memoryview, version: int, unread: Unread) -> Steps[Parts]:
    """What is unread of a request, with a pause after some of its entries."""
    while True:
        try:
            return read(view, version, ENTRIES_IN_A_STEP, unread)
        except LongRequest as more:
            unread = more.unread
        yield


def _too_long(unread: Unread) -> Exception:
    if unread.entries + unread.partitions_left + unread.topics_left > MOST_ENTRIES:
        return _malformed("it has too many entries")
    return LongRequest(unread)


def _malformed(what: str) -> MalformedRequest:
    return MalformedRequest(f"ProduceRequest: {what}")


# What differs between versions. A position beyond the view ends in an IndexError or a struct.error at
# the next thing that is read.

# Transactional id, acks, timeout, number of topics, and where the first of them stands.
_Start: TypeAlias = tuple[str | None, int, int, int, int]
# Name or id, number of partitions, and where the first of them stands.
_Topic: TypeAlias = tuple[bytes, int, int]

_unpack_short = struct.Struct(">h").unpack_from
_unpack_int = struct.Struct(">i").unpack_from
# acks, timeout, topics
_unpack_start = struct.Struct(">hii").unpack_from
_START = 10
# length of the transactional id, and the same: as they stand if there is no transaction
_unpack_start_v3 = struct.Struct(">hhii").unpack_from
# index, size of the records
_unpack_partition = struct.Struct(">ii").unpack_from
_PARTITION = 8
# length of the transactional id, acks, timeout, topics: as they stand if there is no transaction
_unpack_flexible_start = struct.Struct(">BhiB").unpack_from
_FLEXIBLE_START = 8
# acks, timeout
_unpack_flexible_rest = struct.Struct(">hi").unpack_from
_FLEXIBLE_REST = 6
# topic id, partitions
_unpack_topic_id = struct.Struct(">16sB").unpack_from
_TOPIC_ID = 16
# index, the first two bytes of the size of the records
_unpack_flexible_partition = struct.Struct(">iBB").unpack_from


def _start_v0(view: memoryview) -> _Start:
    acks, timeout_ms, count = _unpack_start(view)
    return None, acks, timeout_ms, count, _START


def _start_v3(view: memoryview) -> _Start:
    length, acks, timeout_ms, count = _unpack_start_v3(view)
    if length < 0:
        return None, acks, timeout_ms, count, 2 + _START
    at = 2 + length
    transactional_id = str(view[2:at], "utf-8")
    acks, timeout_ms, count = _unpack_start(view, at)
    return transactional_id, acks, timeout_ms, count, at + _START


def _start_v9(view: memoryview) -> _Start:
    length, acks, timeout_ms, count = _unpack_flexible_start(view)
    if not length and 0 < count < 128:
        return None, acks, timeout_ms, count - 1, _FLEXIBLE_START
    transactional_id, at = None, 1
    if length:
        length, at = _string_length(view, 0)
        transactional_id = str(view[at : at + length], "utf-8")
        at += length
    acks, timeout_ms = _unpack_flexible_rest(view, at)
    count, at = unsigned_varint_at(view, at + _FLEXIBLE_REST)
    return transactional_id, acks, timeout_ms, count - 1, at


def _topic_v0(view: memoryview, at: int) -> _Topic:
    length = _unpack_short(view, at)[0]
    if length < 0:
        raise _malformed("a topic without a name")
    end = at + 2 + length
    name = bytes(view[at + 2 : end])
    if not name.isascii():
        name.decode()  # no topic has such a name, but it goes back in the answer
    return name, _unpack_int(view, end)[0], end + 4


def _topic_v9(view: memoryview, at: int) -> _Topic:
    length, start = view[at] - 1, at + 1
    if not 0 <= length < 127:
        length, start = _string_length(view, at)
    end = start + length
    name = bytes(view[start:end])
    if not name.isascii():
        name.decode()
    count, at = view[end], end + 1
    if count > 127:
        count, at = unsigned_varint_at(view, end)
    return name, count - 1, at


def _topic_v13(view: memoryview, at: int) -> _Topic:
    key, count = _unpack_topic_id(view, at)
    at += _TOPIC_ID + 1
    if count > 127:
        count, at = unsigned_varint_at(view, at - 1)
    return key, count - 1, at


def _partition_v0(view: memoryview, at: int) -> tuple[Part, int]:
    index, size = _unpack_partition(view, at)
    start = end = at + _PARTITION
    if size > 0:
        end += size
    elif size < -1:
        raise _malformed(f"records of {size} bytes")
    return (index, start, end), end


def _partition_v9(view: memoryview, at: int) -> tuple[Part, int]:
    index, low, high = _unpack_flexible_partition(view, at)
    if low >= 0x80 > high:
        # A size of two bytes, as most are.
        size, start = low - 0x80 + (high << 7), at + 6
    else:
        size, start = unsigned_varint_at(view, at + 4)
    end = start + size - 1 if size else start
    tags = view[end]
    if tags:
        return (index, start, end), skip_tags(view, end + 1, tags, len(view))
    return (index, start, end), end + 1


def _string_length(view: memoryview, at: int) -> tuple[int, int]:
    """The compact length of a string that must not be null, and where it begins."""
    length, at = unsigned_varint_at(view, at)
    if not 0 < length <= LONGEST_STRING + 1:
        raise _malformed(f"a string of {length - 1} bytes")
    return length - 1, at


class _Layout(NamedTuple):
    read_start: Callable[[memoryview], _Start]
    read_topic: Callable[[memoryview, int], _Topic]
    read_partition: Callable[[memoryview, int], tuple[Part, int]]
    has_tags: bool


_LAYOUTS: Final = (
    *(_Layout(_start_v0, _topic_v0, _partition_v0, has_tags=False),) * FIRST_FORMAT_2,
    *(_Layout(_start_v3, _topic_v0, _partition_v0, has_tags=False),)
    * (FIRST_FLEXIBLE - FIRST_FORMAT_2),
    *(_Layout(_start_v9, _topic_v9, _partition_v9, has_tags=True),)
    * (FIRST_TOPIC_IDS - FIRST_FLEXIBLE),
    _Layout(_start_v9, _topic_v13, _partition_v9, has_tags=True),
)
