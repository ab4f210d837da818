"""Incremental decoding of a Fetch answer, while it is still coming in.

A large answer takes milliseconds to come. Its records are looked at three times: received, summed up,
copied into columns. While the bytes of the last half megabyte are in the processor's cache the second
and the third time cost a fraction of what they cost later, on another processor most of all. So what
has come is decoded at once, beside the bytes that are still under way, in the thread that receives; what
the kernels do not read by themselves (compressed batches, for one) is left until the answer is whole.

Nothing that is found out here is believed before the whole answer has been decoded and looked at as any
other: this only has some of the rows ready by then.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.protocol.message import MalformedMessage
from ottla.protocol.wiretypes import skip_tags, unsigned_varint_at

if TYPE_CHECKING:
    from ottla.client.consumer.rows import IncrementalRows
    from ottla.wire.receiving import Pull

# Records of less than this are decoded when the answer is whole.
_WORTH_BEGINNING: Final = 1024 * 1024
# So much of an answer is left for when it is whole: decoded while the broker is at work on the next one.
_LEFT_FOR_LATER: Final = 1024 * 1024

_FLEXIBLE_SINCE: Final = 12
_OLDEST: Final = 5  # older answers have other fields before the records
_SESSIONS_SINCE: Final = 7
_PREFERRED_REPLICA_SINCE: Final = 11
_TOPIC_IDS_SINCE: Final = 13

# Partition, error, high watermark, last stable offset, log start offset.
_PARTITION = Struct(">ihqqq")
_ABORTED = Struct(">qq")
_INT16 = Struct(">h")
_INT32 = Struct(">i")


class Head(NamedTuple):
    """What an answer says of a partition before its records."""

    topic: str | bytes  # the name, or the id
    partition: int
    error_code: int
    aborted: list[tuple[int, int]]  # producer id and first offset
    preferred_replica: int
    start: int  # of the records, in the answer
    size: int  # of the records; 0 if there are none


class Outline:
    """Goes through an answer from partition to partition, as far as it has come."""

    def __init__(self, version: int, at: int) -> None:
        self._version = version
        self._flexible = version >= _FLEXIBLE_SINCE
        self._at = at  # all before is understood
        self._topics = -1  # still to come; -1 before their number is known
        self._partitions = 0  # of the topic at hand that are still to come
        self._topic: str | bytes = ""

    def next(self, arrived: memoryview) -> Head | None:
        """The next partition's head; None if it has not come, or there is none."""
        try:
            return self._next(arrived)
        except (IndexError, struct_error, UnicodeDecodeError, MalformedMessage):
            return None  # not all of it is there, or it makes no sense: then it never will

    def _next(self, arrived: memoryview) -> Head | None:
        if self._topics < 0:
            at = self._at + (10 if self._version >= _SESSIONS_SINCE else 4)
            self._topics, self._at = self._length(arrived, at)
        while self._partitions <= 0:
            if self._topics <= 0:
                return None
            self._begin_topic(arrived)
        return self._partition(arrived)

    def _begin_topic(self, arrived: memoryview) -> None:
        at = self._at
        if self._version >= _TOPIC_IDS_SINCE:
            topic: str | bytes = bytes(arrived[at : at + 16])
            at += 16
        else:
            if self._flexible:
                length, at = self._length(arrived, at)
            else:
                (length,) = _INT16.unpack_from(arrived, at)
                at += 2
            topic = str(arrived[at : at + length], "utf-8")
            at += length
        partitions, at = self._length(arrived, at)
        if partitions <= 0:
            at = self._past_tags(arrived, at)
        self._topic, self._partitions, self._at = topic, partitions, at
        self._topics -= 1

    def _partition(self, arrived: memoryview) -> Head:
        at = self._at
        index, error_code, *_ = _PARTITION.unpack_from(arrived, at)
        at += _PARTITION.size
        aborted: list[tuple[int, int]] = []
        count, at = self._length(arrived, at)
        for _ in range(count):
            aborted.append(_ABORTED.unpack_from(arrived, at))
            at = self._past_tags(arrived, at + _ABORTED.size)
        preferred = -1
        if self._version >= _PREFERRED_REPLICA_SINCE:
            (preferred,) = _INT32.unpack_from(arrived, at)
            at += 4
        size, start = self._length(arrived, at)
        size = max(size, 0)
        head = Head(self._topic, index, error_code, aborted, preferred, start, size)
        self._at = start + size
        self._partitions -= 1
        return head

    def pass_records(self, arrived: memoryview) -> bool:
        """Go past the tags after a partition's records; False if these have not come yet."""
        if len(arrived) <= self._at:
            return False
        try:
            at = self._past_tags(arrived, self._at)
            if self._partitions <= 0:
                at = self._past_tags(arrived, at)
        except (IndexError, MalformedMessage):
            return False
        self._at = at
        return True

    def _length(self, arrived: memoryview, at: int) -> tuple[int, int]:
        """A length or a number of entries, -1 for none, and where it ends."""
        if self._flexible:
            number, at = unsigned_varint_at(arrived, at)
            return number - 1, at
        return _INT32.unpack_from(arrived, at)[0], at + 4

    def _past_tags(self, arrived: memoryview, at: int) -> int:
        if not self._flexible:
            return at
        count = arrived[at]
        return skip_tags(arrived, at + 1, count, len(arrived)) if count else at + 1


# Given what an answer says of a partition and the place of its records; None if they are not wanted.
Begin = Callable[[Head, memoryview], "IncrementalRows | None"]


class IncrementalAnswer:
    """Decodes one answer as it comes: whoever waits for it has this called for each part."""

    def __init__(self, version: int, begin: Begin) -> None:
        self._version = version
        self._begin = begin
        self._outline: Outline | None = None
        self._head: Head | None = None  # of the records that are coming in
        self._rows: IncrementalRows | None = None

    def __call__(self, frame: memoryview, at: int, arrived: int) -> Pull | None:
        """The first `arrived` bytes of the answer's frame are there; its message starts at `at`.

        Gives a way to receive the next ones if who decodes them can receive them, too.
        """
        if self._version < _OLDEST:
            return None
        if self._outline is None:
            self._outline = Outline(self._version, at)
        part = frame[:arrived]
        while True:
            head = self._head
            if head is None:
                self._head = head = self._outline.next(part)
                if head is None:
                    return None
                end = head.start + head.size
                if head.size >= _WORTH_BEGINNING and end <= len(frame):
                    self._rows = self._begin(head, frame[head.start : end])
            if self._rows is not None and len(frame) - arrived >= _LEFT_FOR_LATER:
                self._rows.advance(min(arrived - head.start, head.size))
            if not self._outline.pass_records(part):
                if self._rows is None or len(frame) - arrived < _LEFT_FOR_LATER:
                    return None
                return _pull(self._rows, head, len(frame))
            self._head = self._rows = None


def _pull(rows: IncrementalRows, head: Head, size: int) -> Pull:
    """A way to receive what is still to come of a partition's records."""
    until = min(head.start + head.size, size - _LEFT_FOR_LATER)

    def pull(descriptor: int, arrived: int, most: int) -> int:
        most = min(most, until - arrived)
        return rows.receive(descriptor, arrived - head.start, most) if most > 0 else -1

    return pull
