"""What a connection is used for, as far as its requests have told.

For those who ask who is connected (ListClients); nothing else depends on it. Produce and Fetch write
here what they have at hand anyway. What of it still holds is found out when somebody asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ottla.protocol.messages.fetch import FetchTopic
    from ottla.server.sessions import FetchSession

# Of topics that a connection has produced to, the first are forgotten beyond so many.
MOST_TOPICS: Final = 1000
# A client has one member on a connection; a proxy may have some more.
MOST_MEMBERSHIPS: Final = 16


class Activity:
    __slots__ = ("memberships", "produced", "reading", "replica_id", "transactional_id")

    def __init__(self) -> None:
        # Topics by the keys that Produce requests name them with: their names in bytes, or their ids.
        self.produced: dict[bytes, None] | None = None
        self.transactional_id: str | None = None
        # What the last Fetch was about: its session, or its own topics.
        self.reading: FetchSession | Sequence[FetchTopic] = ()
        # Which replica the Fetch requests say they are of; negative: none.
        self.replica_id = -1
        # Groups and members for which somebody spoke here; they may be members no more.
        self.memberships: dict[tuple[str, str], None] | None = None

    def note_produced(self, key: bytes) -> None:
        if self.produced is None:
            self.produced = {}
        elif len(self.produced) >= MOST_TOPICS:
            del self.produced[next(iter(self.produced))]
        self.produced[key] = None

    def note_member(self, group_id: str, member_id: str) -> None:
        """A member of a group has spoken; members that have no id yet are not known."""
        known = self.memberships
        if known is None:
            known = self.memberships = {}
        key = group_id, member_id
        if key in known or not member_id:
            return
        if len(known) >= MOST_MEMBERSHIPS:
            del known[next(iter(known))]
        known[key] = None
