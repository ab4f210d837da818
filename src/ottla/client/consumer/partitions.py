"""What a consumer knows of one partition that it reads, and the rows that wait for its user."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ottla.client.consumer.epochs import NO_EPOCH, UNKNOWN_EPOCH, Epochs
from ottla.client.errors import OttlaError
from ottla.client.positions import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.client.consumer.plain_rows import RecordList

MOST_RESULTS: Final = 64


@dataclass(slots=True, eq=False)
class ReadPartition:
    """A partition under reading.

    `position` ≤ `fetch_offset`: between the two lies what was fetched and not yet handed out.
    """

    partition: TopicPartition
    position: int  # the offset after the last one handed out
    fetch_offset: int  # the next one to fetch
    end_offset: int | None = None  # read no further; None: for ever
    topic_id: bytes = b""  # of the topic when the reading began
    paused: bool = False
    # What was handed out before the user asked for more counts as dealt with: auto-commit goes there.
    dealt_with: int = -1
    committed: int = -1  # what auto-commit has committed last
    # After the last row that the user has got, and what the group has of it, as far as is known here.
    # Where `given` > `saved` rows are read again, should the partition be taken away.
    given: int = -1
    saved: int = -1
    # Epochs of the last records before these three offsets.
    epoch: int = NO_EPOCH
    fetched_epoch: int = NO_EPOCH
    dealt_epoch: int = NO_EPOCH
    # The leader's epoch when it was last fetched from: in another, older brokers are asked first
    # whether they have the record before.
    leader_epoch: int = NO_EPOCH
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    preferred_replica: int = -1  # -1: the leader
    preferred_until: float = 0.0  # on the loop's clock
    largest_fetch: int = 0  # bytes; more than the setting once that proved too small
    # Answers and rows of an older turn are dropped: a seek begins a new one.
    turn: int = 0
    in_flight: bool = False
    not_before: float = 0.0  # on the loop's clock: a pause after an error
    failed: OttlaError | None = None  # it is not fetched from until the user seeks
    ended: bool = False  # `end_offset` was reached
    decoding: asyncio.Task[None] | None = None  # the last of the answers under way
    waiting: int = field(default=0)  # results that wait for the user

    @classmethod
    def starting_at(
        cls, partition: TopicPartition, offset: int, epoch: int = NO_EPOCH
    ) -> ReadPartition:
        """One of which nothing has been handed out yet."""
        return cls(
            partition,
            offset,
            offset,
            dealt_with=offset,
            committed=offset,
            saved=offset,
            epoch=epoch,
            fetched_epoch=epoch,
            dealt_epoch=epoch,
        )

    @property
    def wants_more(self) -> bool:
        """Whether it is to be fetched from at all."""
        return not (self.paused or self.in_flight or self.ended or self.failed is not None)

    def deal_with_all(self) -> None:
        """The user is done with what was handed out."""
        self.dealt_with = self.position
        self.dealt_epoch = self.epoch

    def begin_turn(self, offset: int, epoch: int = NO_EPOCH) -> None:
        """Go on from this offset; what is under way is not wanted any more."""
        self.turn += 1
        self.position = self.fetch_offset = offset
        self.epoch = self.fetched_epoch = epoch
        self.given = -1
        self.deal_with_all()
        self.failed = None
        self.ended = self.end_offset is not None and offset >= self.end_offset
        self.not_before = 0.0
        self.in_flight = False
        self.decoding = None

    def let_go(self) -> None:
        """Give up what was fetched and not handed out: it is fetched again when it is wanted."""
        self.turn += 1
        self.fetch_offset = self.position
        self.fetched_epoch = self.epoch
        self.ended = self.end_offset is not None and self.position >= self.end_offset
        self.in_flight = False
        self.decoding = None


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """Rows of one partition, or the error in their place, or (with neither) a new position alone."""

    source: ReadPartition
    turn: int
    rows: pa.RecordBatch | RecordList | None
    next_offset: int
    epochs: Epochs = UNKNOWN_EPOCH
    charge: int = 0  # bytes that it keeps occupied
    error: OttlaError | None = None

    @property
    def stale(self) -> bool:
        return self.turn != self.source.turn

    def hand_out(self, position: int | None = None) -> None:
        """The reader has got these rows, or those before this position."""
        self.source.position = self.next_offset if position is None else position
        if self.rows is not None and self.rows.num_rows:
            self.source.given = self.source.position
        self.source.epoch = self.epochs.before(self.source.position)


class ReadyQueue:
    """The results of all partitions, in the order in which they came, within a limit of bytes.

    No more is fetched either while MOST_RESULTS wait, or are being made. To fetch, decode and hand out
    a few records takes about as long as thousands of them: a user who is slower than the records come,
    each in an answer of its own, would fall behind ever further. What collects at the brokers meanwhile
    comes in few answers.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.occupied = 0  # bytes, of what waits and of what is being decoded
        self._results: deque[Result] = deque()
        self._unread = 0  # results that are no errors: those stay
        self._decoding = 0  # answers
        self._news = asyncio.Event()
        self._space = asyncio.Event()

    @property
    def is_full(self) -> bool:
        return self.occupied >= self.limit or self._unread + self._decoding >= MOST_RESULTS

    def put(self, result: Result) -> None:
        result.source.waiting += 1
        self._unread += result.error is None
        self._results.append(result)
        self._news.set()

    def begin_decoding(self, size: int) -> None:
        """An answer of so many bytes has come."""
        self._decoding += 1
        self.occupy(size)

    def end_decoding(self, size: int) -> None:
        """All of its results were put here."""
        self._decoding -= 1
        self.release(size)
        self.wake()

    def occupy(self, charge: int) -> None:
        self.occupied += charge

    def release(self, charge: int) -> None:
        self.occupied -= charge
        self._space.set()

    def take(self) -> Result | None:
        """The next result that is wanted still, and is not of a paused partition."""
        held: list[Result] = []
        found: Result | None = None
        while self._results:
            result = self._results.popleft()
            if result.stale:
                self._drop(result)
            elif result.source.paused:
                held.append(result)
            else:
                found = result
                self._drop(result)
                break
        self._results.extendleft(reversed(held))
        if found is None:
            self._news.clear()
        return found

    def sweep(self) -> None:
        """Drop what is not wanted any more."""
        for result in [each for each in self._results if each.stale]:
            self._results.remove(result)
            self._drop(result)

    def _drop(self, result: Result) -> None:
        result.source.waiting -= 1
        self._unread -= result.error is None
        self.release(result.charge)

    def wake(self) -> None:
        """Something other than a result has changed that takers may wait for."""
        self._news.set()

    async def news(self) -> None:
        await self._news.wait()

    async def space(self) -> None:
        self._space.clear()
        if self.is_full:
            await self._space.wait()
