"""What a shard asks for when a transaction has been decided: markers in all of its partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from ottla.coordinator.transactions.states import State
from ottla.coordinator.transactions.transaction import TopicPartition, Transaction


class Ending(NamedTuple):
    """A transaction on its way from PREPARE to COMPLETE."""

    transactional_id: str
    # Of the markers.
    producer_id: int
    epoch: int
    committed: bool
    # Of the coordinator that decided: logs refuse markers of one that was replaced.
    coordinator_epoch: int
    # The transaction protocol: from 2 on a marker has a higher epoch than what it ends.
    version: int
    partitions: tuple[TopicPartition, ...]

    @classmethod
    def of(cls, transaction: Transaction, coordinator_epoch: int) -> Ending:
        assert transaction.is_ending, transaction
        return cls(
            transaction.transactional_id,
            transaction.producer_id,
            transaction.epoch,
            transaction.state is State.PREPARE_COMMIT,
            coordinator_epoch,
            transaction.version,
            tuple(sorted(transaction.partitions)),
        )


# Has the markers written and calls the shard's `markers_written` when all of them are, at once or
# later. It repeats what fails until it succeeds or the shard is gone.
WriteMarkers: TypeAlias = Callable[[Ending], None]
