"""What all kinds of groups have in common, and what is asked of each.

A group id belongs to one group, of one kind. The offsets of a group are kept beside it, the same for
all kinds; only who may commit, and when offsets grow old, differs.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from ottla.coordinator.groups.offsets import CommittedOffset
    from ottla.coordinator.groups.records import RecordPair


class GroupKind(Enum):
    """The values are what clients are shown."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


class Caller(NamedTuple):
    """Who sent a request, for members to be known by, and in which version."""

    version: int
    client_id: str = ""
    client_host: str = ""


class Committer(NamedTuple):
    """Who a commit claims to come from."""

    member_id: str
    instance_id: str | None
    # The generation of a classic group, the member's epoch in a consumer group, -1 for outsiders.
    generation: int
    transactional: bool
    version: int  # of the request


# Of a commit that is not good for every partition: raises ProtocolError for those (topic id,
# partition) that it is not good for.
PartitionCheck: TypeAlias = Callable[[bytes, int], None]


class Group(Protocol):
    """What every kind of group offers. `check_` methods raise ProtocolError, the client's error."""

    @property
    def group_id(self) -> str: ...

    @property
    def kind(self) -> GroupKind: ...

    @property
    def is_empty(self) -> bool:
        """Whether it has no members, so that it may be deleted and its offsets expire."""

    @property
    def state_name(self) -> str: ...

    @property
    def listed_protocol_type(self) -> str: ...

    def check_commit(self, committer: Committer) -> PartitionCheck | None:
        """Check a committer. Returns a check for each partition; None if it may commit for any."""

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None: ...

    def check_offset_delete(self) -> None: ...

    def check_delete(self) -> None: ...

    def subscribes_to(self, topic: str) -> bool:
        """Whether a member subscribes to the topic: then its offsets do not expire, nor can they be
        deleted."""

    def expires_from(self, committed: CommittedOffset) -> int | None:
        """The (wall) time from which an offset's retention counts; None: it does not expire now."""

    def tombstones(self) -> list[RecordPair]:
        """The records that delete the group (not its offsets)."""
