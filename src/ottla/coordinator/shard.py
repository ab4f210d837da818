"""What a coordinator's state machine looks like from outside.

A shard is the state machine of one partition of an internal topic: the groups whose offsets live in
`__consumer_offsets-N`, or the transactional ids of `__transaction_state-N`. It touches no socket, no
file and no clock. It is given requests and the time, and answers with effects: records to append to its
partition, and responses to send once they are committed.

There are two kinds of state:

- *lasting* state changes only in `replay`, which is given every record of the partition, when a broker
  takes the partition over and again, one by one, as soon as records that the shard asked for are
  appended. So what a replay rebuilds is, by construction, what was there before.
- *passing* state (who waits for a rebalance, deadlines) may change while a request is handled. It is
  lost when the partition moves, and clients find back by themselves, as in Kafka.

When an append fails, the answers that hung on it are not sent; `Effects.failed` says what to do
instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from ottla.protocol.errors import ErrorCode
    from ottla.protocol.message import Message

# Names one waiting request; made by the runtime, opaque to the shard.
Ticket = int


class Instant(NamedTuple):
    """The time, as a shard is told it, in milliseconds."""

    monotonic: int  # for deadlines: never jumps
    wall: int  # for timestamps in records and responses

    def is_within(self, duration: int, since: int) -> bool:
        """Whether it is less than a duration since a time that was stored. One in the future was
        stored by a clock that has been set back since: it counts as long ago."""
        return since <= self.wall < since + duration


class Replayed(NamedTuple):
    """One record of the shard's partition."""

    key: bytes
    value: bytes | None  # None: the key is deleted
    offset: int
    timestamp: int
    # Of a transactional record, which counts only when its transaction commits; else -1.
    producer_id: int = -1
    producer_epoch: int = -1


class Effects:
    """What a shard wants done: append the records as one batch, replay them, then send the answers."""

    __slots__ = ("answers", "asking", "can_be_gathered", "failed", "producer", "records", "then")

    def __init__(
        self,
        *answers: tuple[Ticket, Message],
        records: list[tuple[bytes, bytes | None]] | None = None,
        producer: tuple[int, int] | None = None,
        failed: Callable[[ErrorCode], Effects] | None = None,
        then: Callable[[], Effects] | None = None,
        asking: tuple[Ticket, ...] = (),
    ) -> None:
        self.answers: list[tuple[Ticket, Message]] = list(answers)
        self.records: list[tuple[bytes, bytes | None]] = records or []
        # Id and epoch, if the batch belongs to a producer's transaction.
        self.producer = producer
        # Called instead of sending the answers when the append failed (the error is what a client
        # should see, e.g. COORDINATOR_NOT_AVAILABLE). Without it the waiting requests get the error
        # by the runtime, which knows how to put it into each response.
        self.failed = failed
        # Called after the records were replayed and the answers sent: what follows from them.
        self.then = then
        # Requests that only what follows will answer. If it does not come to that, or takes too long,
        # they are refused as those with an answer here are, and nothing follows.
        self.asking = asking
        # The records may be appended and replayed with those of requests that come a moment later
        # and are of the same kind: no request of that kind looks at what they change.
        self.can_be_gathered = False


NOTHING = Effects()


class Shard(Protocol):
    """Implemented by ottla.coordinator.groups and ottla.coordinator.transactions."""

    def replay(self, record: Replayed) -> None:
        """Change the lasting state by one record. Unknown kinds of records are skipped."""

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """A transaction that has records in this partition has ended."""

    def loaded(self, now: Instant) -> Effects:
        """The replay is over: sessions of the members that were found begin now."""

    def next_deadline(self) -> int | None:
        """When `tick` should be called, in monotonic milliseconds; may be asked often."""

    def tick(self, now: Instant) -> Effects:
        """The deadline has passed: time out what has timed out."""

    def reconfigured(self, settings: Any) -> Effects:
        """Settings of the broker were changed while it runs; of the shard's own kind of settings."""

    def unloaded(self) -> Effects:
        """The partition goes to another broker: tell those who wait NOT_COORDINATOR."""
