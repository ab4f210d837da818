"""A Fetch request that is like the one before it on its connection, but for its place.

Who follows one busy partition, as a replica or as a consumer, asks for the same again and again: the
next epoch of the session, and where it stands now. The rest of such a request is the same bytes each
time, and is not decoded again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.one_partition_fetch import RequestTemplate, template_of

if TYPE_CHECKING:
    from ottla.protocol.messages.fetch import FetchRequest


class RepeatedFetch:
    """The last request of a connection, which the next one may repeat."""

    __slots__ = ("_partition", "_request", "_template", "_version")

    def __init__(self, template: RequestTemplate, version: int, request: FetchRequest) -> None:
        self._template = template
        self._version = version
        self._request = request
        self._partition = request.topics[0].partitions[0]

    def read(self, view: memoryview, at: int, stop: int, version: int) -> FetchRequest | None:
        """The request in view[at:stop]; None if it has to be decoded. The one before it, which must have
        been answered, is then no more."""
        if stop - at != self._template.size or version != self._version:
            return None
        places = self._template.places_of(bytes(view[at:stop]))
        if places is None:
            return None
        request = self._request
        request.session_epoch, self._partition.fetch_offset = places
        return request


def repeatable(
    view: memoryview, at: int, stop: int, version: int, request: FetchRequest
) -> RepeatedFetch | None:
    """What may be repeated of a request; None if it is not of this kind."""
    template = template_of(bytes(view[at:stop]), version, request)
    return None if template is None else RepeatedFetch(template, version, request)
