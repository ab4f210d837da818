"""One member of a consumer group (KIP-848), as it is stored.

A member that speaks the new protocol tells what it subscribes to and what it holds; the coordinator
tells it what to hold. On the way from one assignment to the next it is in one of three states:

              nothing to give up
      ┌────────────────────────────────────┐
      │                                    ▼
    STABLE ── something to give up ──▶ UNREVOKED_PARTITIONS
      ▲                                    │ it holds them no longer
      │  all others have let go            ▼
      └──────────────────────────── UNRELEASED_PARTITIONS
                                    (only if others still hold what it is to get)

While it gives up partitions it stays in its epoch, so that it can commit for them; then it is in the
epoch of the target assignment, and gets what is free of it, now or later.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

# topic id -> partition -> the epoch in which the member got it.
Owned: TypeAlias = Mapping[bytes, Mapping[int, int]]

NOTHING_OWNED: Final[Owned] = {}

# Epochs with a meaning of their own, in requests and in records.
JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
# A static member is away for a while: its partitions are kept for it until its session ends.
AWAY_EPOCH: Final = -2


class MemberState(IntEnum):
    """The numbers are those of the records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    # Written by a later version: the member has to give up all and join again.
    UNKNOWN = 127

    @classmethod
    def of_record(cls, number: int) -> MemberState:
        return cls(number) if number in _KNOWN_STATES else cls.UNKNOWN


_KNOWN_STATES: Final = frozenset(int(state) for state in MemberState)


class ClassicSupport(NamedTuple):
    """What a member that (still) speaks the classic protocol said when it joined."""

    session_timeout: int  # milliseconds
    # name -> metadata, the one it likes best first.
    protocols: tuple[tuple[str, bytes], ...]

    @property
    def preferred(self) -> str:
        return self.protocols[0][0]


class ConsumerMember(NamedTuple):
    """A member of a consumer group; immutable: each change makes a new one."""

    id: str
    epoch: int = JOIN_EPOCH
    # In case that the answer with the last epoch was lost on its way.
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack: str | None = None
    rebalance_timeout: int = -1  # milliseconds
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()  # by name
    pattern: str | None = ""  # and by regular expression; empty or None: none
    assignor: str | None = None
    assigned: Owned = NOTHING_OWNED
    # What it was told to give up, and may hold still. Disjoint from `assigned`.
    revoking: Owned = NOTHING_OWNED
    classic: ClassicSupport | None = None

    @property
    def uses_classic_protocol(self) -> bool:
        return self.classic is not None

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def moved_to(
        self, epoch: int, state: MemberState, assigned: Owned, revoking: Owned = NOTHING_OWNED
    ) -> ConsumerMember:
        return self._replace(
            epoch=epoch,
            previous_epoch=self.epoch,
            state=state,
            assigned=assigned,
            revoking=revoking,
        )

    def away(self) -> ConsumerMember:
        """A static member that will be back. What it had may be committed for in any later epoch."""
        return self._replace(
            epoch=AWAY_EPOCH,
            assigned={
                topic_id: dict.fromkeys(partitions, 0)
                for topic_id, partitions in self.assigned.items()
            },
            revoking=NOTHING_OWNED,
        )

    @property
    def holdings(self) -> dict[bytes, frozenset[int]]:
        """All that it has, or was told to give up and may have still."""
        return {
            topic_id: frozenset(
                (*self.assigned.get(topic_id, ()), *self.revoking.get(topic_id, ()))
            )
            for topic_id in self.assigned.keys() | self.revoking.keys()
        }

    def epoch_of(self, topic_id: bytes, partition: int) -> int | None:
        """Since when it holds a partition; None if it does not."""
        for owned in (self.assigned, self.revoking):
            epoch = owned.get(topic_id, {}).get(partition)
            if epoch is not None:
                return epoch
        return None


def owns_any(owned: Mapping[bytes, frozenset[int]] | None, of: Owned) -> bool:
    """Whether the member may hold some of these. `owned` is what it says; None: it does not say."""
    if owned is None:
        return True
    return any(
        not partitions.isdisjoint(of[topic_id])
        for topic_id, partitions in owned.items()
        if topic_id in of
    )


def owns_only(owned: Mapping[bytes, frozenset[int]] | None, of: Owned) -> bool:
    """Whether the member says that it holds nothing but (some of) these."""
    if owned is None:
        return False
    return all(
        topic_id in of and partitions <= of[topic_id].keys()
        for topic_id, partitions in owned.items()
    )
