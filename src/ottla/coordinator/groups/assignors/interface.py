"""What an assignor is told, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, TypeAlias

# Partition numbers by topic id.
Partitions: TypeAlias = Mapping[bytes, frozenset[int]]


class MemberSubscription(NamedTuple):
    """What an assignor may know of a member."""

    topic_ids: frozenset[bytes]
    assigned: Partitions  # its target until now; may name what is no longer there
    instance_id: str | None = None  # of a static member
    rack: str | None = None


class Assignor(Protocol):
    """Gives each partition of each topic that has subscribers to exactly one of them."""

    @property
    def name(self) -> str: ...

    def assign(
        self, members: Mapping[str, MemberSubscription], topics: Mapping[bytes, int]
    ) -> Mapping[str, Partitions]:
        """The partitions of every member; a topic of which it has none is not named.

        `topics` has the number of partitions of each topic. A subscription to a topic that is not
        among them counts for nothing.
        """
