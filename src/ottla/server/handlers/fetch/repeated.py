"""A Fetch request that is like the one before it on its connection, but for its place.

Who follows one busy partition, as a replica or as a consumer, asks for the same again and again: the
next epoch of the session, and where it stands now. The rest of such a request is the same bytes each
time, and is not decoded again.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from ottla.server.sessions import INITIAL_EPOCH

if TYPE_CHECKING:
    from ottla.protocol.messages.fetch import FetchRequest

# From this version on a request has these places.
_FIRST_VERSION = 15
# Where a request that names one partition of one topic, by its id, has the epoch of its session and the
# offset; and the counts of topics and partitions, each of which is one more than that (KIP-482).
_EPOCH_AT, _EPOCH_END = 17, 21
_TOPICS_AT, _PARTITIONS_AT = 21, 38
_OFFSET_AT, _OFFSET_END = 47, 55
_ONE = 2
_read_place = Struct(f">i{_OFFSET_AT - _EPOCH_END}xq").unpack_from


class RepeatedFetch:
    """The last request of a connection, which the next one may repeat."""

    __slots__ = ("_after", "_before", "_between", "_partition", "_request", "_size", "_version")

    def __init__(self, body: bytes, version: int, request: FetchRequest) -> None:
        self._version = version
        self._request = request
        self._partition = request.topics[0].partitions[0]
        self._size = len(body)
        self._before = body[:_EPOCH_AT]
        self._between = body[_EPOCH_END:_OFFSET_AT]
        self._after = body[_OFFSET_END:]

    def read(self, view: memoryview, at: int, stop: int, version: int) -> FetchRequest | None:
        """The request in view[at:stop]; None if it has to be decoded. The one before it, which must have
        been answered, is then no more."""
        if stop - at != self._size or version != self._version:
            return None
        body = bytes(view[at:stop])
        if (
            body[_EPOCH_END:_OFFSET_AT] != self._between
            or body[_OFFSET_END:] != self._after
            or body[:_EPOCH_AT] != self._before
        ):
            return None
        request = self._request
        request.session_epoch, self._partition.fetch_offset = _read_place(body, _EPOCH_AT)
        return request


def repeatable(
    view: memoryview, at: int, stop: int, version: int, request: FetchRequest
) -> RepeatedFetch | None:
    """What may be repeated of a request; None if it is not of this kind."""
    if (
        version < _FIRST_VERSION
        or request.session_epoch <= INITIAL_EPOCH
        or len(request.topics) != 1
        or len(request.topics[0].partitions) != 1
        or view[at + _TOPICS_AT] != _ONE
        or view[at + _PARTITIONS_AT] != _ONE
    ):
        return None  # or a count is written longer than it has to be
    return RepeatedFetch(bytes(view[at:stop]), version, request)
