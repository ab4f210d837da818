"""What lasts of one transactional id, and each step that it can take.

A step gives a new value and changes nothing; whoever takes it stores the value as a record, and what
is read back from that record is the state. Whether a step is allowed in a state is decided by the
table in `states`.

Every producer that takes over a transactional id gets the next epoch, which fences those before it.
With the second transaction protocol each end of a transaction takes the next epoch too, so that a
write or a marker that was delayed can never land in a later transaction. When the epochs of a
producer id are used up, the producer gets a new id.

With two-phase commit a transaction can change hands while it is open: the new holder's identity is
kept beside the one that the transaction's records were written with, and becomes the identity of the
transactional id when the transaction has ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

from ottla.coordinator.transactions.states import FOLLOWING, PREPARED, State

NO_PRODUCER: Final = -1
NO_EPOCH: Final = -1
# The last epoch is never given to a producer: the coordinator needs one more to fence with.
LAST_EPOCH: Final = 2**15 - 1
# The timeout of a transaction that is prepared elsewhere: it is never aborted for its age.
NO_TIMEOUT: Final = 2**31 - 1

# From this level of the feature transaction.version on, each end of a transaction bumps the epoch.
FIRST_WITH_EPOCH_BUMP: Final = 2

# Topic and index.
TopicPartition: TypeAlias = tuple[str, int]


class Identity(NamedTuple):
    producer_id: int
    epoch: int

    @property
    def is_exhausted(self) -> bool:
        """Whether the next producer needs a new producer id."""
        return self.epoch >= LAST_EPOCH - 1


NOBODY: Final = Identity(NO_PRODUCER, NO_EPOCH)


@dataclass(frozen=True, slots=True)
class Transaction:
    """The lasting state of one transactional id."""

    transactional_id: str
    # With which the records of the current transaction are written, and its markers.
    producer_id: int
    epoch: int
    timeout_ms: int
    state: State
    # Always none while EMPTY or COMPLETE.
    partitions: frozenset[TopicPartition] = frozenset()
    # Wall clock in milliseconds; -1: no transaction has begun.
    started: int = -1
    updated: int = -1
    # The transaction protocol in use: 2 if each end bumps the epoch.
    version: int = 0
    # The producer id before the last change of it, by which a retry is recognised; -1: there was none.
    previous_producer_id: int = NO_PRODUCER
    # The identity that follows when the transaction has ended, if it is another one.
    next_producer_id: int = NO_PRODUCER
    next_epoch: int = NO_EPOCH

    @property
    def holder(self) -> Identity:
        """The identity that the producer knows, or will have known when the transaction has ended."""
        if self.next_producer_id < 0:
            return Identity(self.producer_id, self.epoch)
        # Other writers of this format leave the epoch out: a new producer id begins with 0.
        return Identity(self.next_producer_id, max(self.next_epoch, 0))

    @property
    def former_id(self) -> int:
        """The producer id before the last change of it."""
        return self.producer_id if self.previous_producer_id < 0 else self.previous_producer_id

    @property
    def changed_hands(self) -> bool:
        """Whether it is open, and held by another producer than the one that wrote its records."""
        return self.state is State.ONGOING and self.next_producer_id >= 0

    @property
    def is_two_phase(self) -> bool:
        return self.timeout_ms == NO_TIMEOUT

    @property
    def is_ending(self) -> bool:
        return self.state in PREPARED

    # Steps --------------------------------------------------------------------------------------

    def begun(self, holder: Identity, timeout_ms: int, now: int) -> Transaction:
        """A producer takes the id over while no transaction is open."""
        previous = self.previous_producer_id
        if holder.producer_id != self.producer_id:
            previous = self.producer_id
        return self._step(
            State.EMPTY,
            producer_id=holder.producer_id,
            epoch=holder.epoch,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            started=-1,
            updated=now,
            previous_producer_id=previous,
        )

    def added(self, partitions: Iterable[TopicPartition], version: int, now: int) -> Transaction:
        return self._step(
            State.ONGOING,
            partitions=self.partitions.union(partitions),
            started=self.started if self.state is State.ONGOING else now,
            updated=now,
            version=version,
        )

    def handed_over(self, holder: Identity, now: int) -> Transaction:
        """Another producer becomes responsible for a transaction that is open."""
        return self._step(
            State.ONGOING,
            updated=now,
            previous_producer_id=self.holder.producer_id,
            next_producer_id=holder.producer_id,
            next_epoch=holder.epoch,
        )

    def ended(self, committed: bool, version: int, new_id: int, now: int) -> Transaction:
        """Its producer has decided. `new_id` is used if the epochs are used up."""
        holder = self.holder
        started = self.started if self.state is State.ONGOING else now
        epoch, following = self.epoch, NOBODY
        if version >= FIRST_WITH_EPOCH_BUMP:
            epoch += 1
            if holder.is_exhausted:
                following = Identity(new_id, 0)
            elif self.next_producer_id >= 0:
                following = Identity(holder.producer_id, holder.epoch + 1)
        elif self.next_producer_id >= 0:
            following = holder
        return self._step(
            State.PREPARE_COMMIT if committed else State.PREPARE_ABORT,
            epoch=epoch,
            started=started,
            updated=now,
            version=version,
            previous_producer_id=holder.producer_id,
            next_producer_id=following.producer_id,
            next_epoch=following.epoch,
        )

    def fenced(self, version: int, now: int) -> Transaction:
        """The transaction once it is aborted by somebody else than its producer, which that fences."""
        following = NOBODY
        if self.next_producer_id >= 0:
            following = Identity(self.holder.producer_id, self.holder.epoch + 1)
        return self._step(
            State.PREPARE_ABORT,
            epoch=self.epoch + 1,
            updated=now,
            version=version if version >= FIRST_WITH_EPOCH_BUMP else 0,
            previous_producer_id=self.holder.producer_id,
            next_producer_id=following.producer_id,
            next_epoch=following.epoch,
        )

    def completed(self, now: int) -> Transaction:
        """The transaction once every partition has its marker."""
        holder = self.holder
        return self._step(
            State.COMPLETE_COMMIT if self.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT,
            producer_id=holder.producer_id,
            epoch=holder.epoch,
            partitions=frozenset(),
            updated=now,
            previous_producer_id=self.former_id,
            next_producer_id=NO_PRODUCER,
            next_epoch=NO_EPOCH,
        )

    def _step(self, state: State, **changes: object) -> Transaction:
        assert state in FOLLOWING[self.state], (self, state)
        return replace(self, state=state, **changes)  # type: ignore[arg-type]
