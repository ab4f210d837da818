"""Fetch requests and responses about one partition, packed and read in one go.

Who follows one busy partition, as a replica or as a consumer, sends the same request again and again,
but for the epoch of its session and where it stands now; and what it is sent differs in a few numbers
and the records. All other fields have no more than one value here: one topic, known by its id, one
partition, no error, no tagged fields. What is not of this kind is left to the message classes, to which
a test holds these layouts.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.protocol.message import MalformedMessage
from ottla.protocol.wiretypes import unsigned_varint, unsigned_varint_at

if TYPE_CHECKING:
    from ottla.protocol.message import Buffer
    from ottla.protocol.messages.fetch import FetchRequest

# From these versions on requests and responses have these places.
FIRST_REQUEST_VERSION: Final = 15
FIRST_RESPONSE_VERSION: Final = 13

# Where a request has the epoch of its session and the offset; and the counts of topics and partitions,
# each of which is one more than that (KIP-482).
_EPOCH_AT, _EPOCH_END = 17, 21
_TOPICS_AT, _PARTITIONS_AT = 21, 38
_OFFSET_AT, _OFFSET_END = 47, 55
_ONE = 2
_read_place = Struct(f">i{_OFFSET_AT - _EPOCH_END}xq").unpack_from

# Throttle time, error, session id | one topic, its id | one partition: index, error, high watermark,
# last stable offset, log start offset, no aborted transactions, no preferred replica; then the records.
_ANSWER = Struct(">ihiB16sBihqqqBi")
_pack_answer = _ANSWER.pack
_read_answer = _ANSWER.unpack_from
_ANSWER_SIZE = _ANSWER.size
# No tags of the partition, of the topic, of the response.
_ANSWER_END = bytes(3)
_NO_REPLICA = -1


class RequestTemplate:
    """A request of which all but the session's epoch and the fetch offset are always the same."""

    __slots__ = ("_after", "_before", "_between", "_pack", "size")

    def __init__(self, body: bytes) -> None:
        self.size = len(body)
        self._before = body[:_EPOCH_AT]
        self._between = body[_EPOCH_END:_OFFSET_AT]
        self._after = body[_OFFSET_END:]
        self._pack = Struct(f">{len(self._before)}si{len(self._between)}sq{len(self._after)}s").pack

    def filled(self, session_epoch: int, fetch_offset: int) -> bytes:
        return self._pack(self._before, session_epoch, self._between, fetch_offset, self._after)

    def places_of(self, body: bytes) -> tuple[int, int] | None:
        """Session epoch and fetch offset of another request like this one; None if it is not."""
        if (
            len(body) != self.size
            or body[_EPOCH_END:_OFFSET_AT] != self._between
            or body[_OFFSET_END:] != self._after
            or body[:_EPOCH_AT] != self._before
        ):
            return None
        places: tuple[int, int] = _read_place(body, _EPOCH_AT)
        return places


def template_of(body: bytes, version: int, request: FetchRequest) -> RequestTemplate | None:
    """For requests like this one, of an incremental session; None if it is not about one partition."""
    if (
        version < FIRST_REQUEST_VERSION
        or request.session_epoch <= 0
        or len(request.topics) != 1
        or len(request.topics[0].partitions) != 1
        or body[_TOPICS_AT] != _ONE
        or body[_PARTITIONS_AT] != _ONE
    ):
        return None  # or a count is written longer than it has to be
    return RequestTemplate(body)


class OnePartition(NamedTuple):
    """What a response says of its one partition, beside the records."""

    session_id: int
    topic_id: bytes
    partition: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


def pack_response(about: OnePartition, size: int) -> tuple[bytes, bytes]:
    """What stands before and after so many bytes of records."""
    session_id, topic_id, partition, high_watermark, last_stable_offset, log_start_offset = about
    before = _pack_answer(
        0, 0, session_id, _ONE, topic_id, _ONE, partition, 0, high_watermark, last_stable_offset,
        log_start_offset, 0, _NO_REPLICA,
    )  # fmt: skip
    return before + unsigned_varint(size + 1), _ANSWER_END


def read_response(frame: Buffer, at: int) -> tuple[OnePartition, memoryview] | None:
    """What the response says that begins there, and its records; None if it is of another kind, or
    none at all."""
    stop = len(frame)
    if stop - at <= _ANSWER_SIZE:
        return None
    (
        throttle_ms, error, session_id, topics, topic_id, partitions, partition, code, high_watermark,
        last_stable_offset, log_start_offset, aborted, replica,
    ) = _read_answer(frame, at)  # fmt: skip
    if (
        throttle_ms
        or error
        or topics != _ONE
        or partitions != _ONE
        or code
        or aborted
        or replica != _NO_REPLICA
    ):
        return None
    try:
        size, start = unsigned_varint_at(frame, at + _ANSWER_SIZE)
    except (MalformedMessage, IndexError):
        return None
    end = start + size - 1
    if not size or end + 3 != stop or bytes(frame[end:stop]) != _ANSWER_END:
        return None
    about = OnePartition(
        session_id, topic_id, partition, high_watermark, last_stable_offset, log_start_offset
    )
    return about, memoryview(frame)[start:end]
