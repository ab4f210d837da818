"""Where a reader's log diverges from its leader's, and what a replica's position counts for there.

A replica that asks for what begins at an offset says that its log ends there. That alone is no word
about what is before: a leader of an earlier term may have written other records there, which the
replica has yet to cut off. So a position counts (for the high watermark, and for joining the in-sync
set) only

- in the leader epoch in which the replica knows this leader, which must be the current one;
- if the replica's last batch is of an epoch that the leader's log has up to that offset: then all
  before it is the same in both (KIP-595). A replica whose log is empty has no epoch to compare.

Every way by which a position comes to a leader ends in `note`: a request that names it, one that repeats
the request before it, and a session that stands where it stood.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.replication.partition import Role
from ottla.storage.errors import OffsetOutOfRange

if TYPE_CHECKING:
    from ottla.replication.partition import Partition


class ReportedPosition(Protocol):
    """Where a reader stands, as its request says."""

    @property
    def fetch_offset(self) -> int: ...

    @property
    def current_leader_epoch(self) -> int:
        """The leader epoch in which it knows the leader; -1 if it does not say."""

    @property
    def last_fetched_epoch(self) -> int:
        """The leader epoch of its last batch; -1 if it has none, or does not say."""

    @property
    def flushed_offset(self) -> int:
        """What it has synced; -1 if it does not say."""

    @property
    def reader_start(self) -> int:
        """Where its log begins; -1 for consumers."""


def divergence(partition: Partition, offset: int, last_epoch: int) -> tuple[int, int] | None:
    """Where a log that ends at `offset` with a batch of `last_epoch` diverges from this one: the largest
    epoch that both may share, and where that ends here. None if all before `offset` is the same.
    OffsetOutOfRange if there is nothing in common to go back to."""
    log = partition.log
    start = log.log_start_offset
    if last_epoch == log.epochs.latest_epoch and start <= offset <= log.log_end_offset:
        return None  # as nearly all who follow a leader
    epoch, end = partition.end_offset_for_epoch(last_epoch)
    if epoch < 0 or offset < start:
        raise OffsetOutOfRange(offset, start, log.log_end_offset)
    return (epoch, end) if epoch < last_epoch or end < offset else None


def note(
    partition: Partition, replica: int, replica_epoch: int, reported: ReportedPosition, now_ms: int
) -> None:
    """A replica, of this life of its broker, stands there: see the module. What does not count is left
    for the answer to say. ProtocolError if it is no replica of this partition."""
    if (
        partition.role is not Role.LEADER
        or reported.current_leader_epoch != partition.leader_epoch
        or (
            reported.last_fetched_epoch >= 0
            and reported.last_fetched_epoch != partition.log.epochs.latest_epoch
            and divergence(partition, reported.fetch_offset, reported.last_fetched_epoch)
            is not None
        )
    ):
        return
    partition.fetched(
        replica,
        reported.fetch_offset,
        replica_epoch,
        now_ms,
        reported.flushed_offset,
        reported.reader_start,
    )
