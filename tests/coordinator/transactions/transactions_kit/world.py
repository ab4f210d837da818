"""A world around one shard: its log, its clock, and markers that are written when the test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ottla.coordinator.shard import Effects, Instant, Replayed
from ottla.coordinator.transactions.ending import Ending
from ottla.coordinator.transactions.settings import TransactionSettings
from ottla.coordinator.transactions.shard import TransactionShard
from ottla.coordinator.transactions.states import State
from ottla.coordinator.transactions.takeover import PRODUCER_ID_WANTED, Takeover
from ottla.coordinator.transactions.transaction import NOBODY, Identity, TopicPartition, Transaction
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.end_txn import EndTxnResponse

NONE = ErrorCode.NONE


class Answer(NamedTuple):
    code: ErrorCode
    holder: Identity = NOBODY
    ongoing: Identity = NOBODY


class World:
    """Does what a shard asks for, as the runtime would."""

    def __init__(
        self, *, level: int = 2, settings: TransactionSettings | None = None, epoch: int = 0
    ) -> None:
        self.level = level
        self.settings = settings or TransactionSettings(transaction_two_phase_commit_enable=True)
        self.epoch = epoch
        self.records: list[tuple[bytes, bytes | None]] = []
        # Endings whose markers have not been written.
        self.endings: list[Ending] = []
        self.monotonic = 1_000
        self.wall = 1_700_000_000_000
        # The next appends fail.
        self.failing = False
        # What waits until the log is committed; None: it is at once.
        self._waiting: list[Effects] | None = None
        self._next_id = 1_000
        self._answers: dict[int, object] = {}
        self._told: list[Answer | dict[TopicPartition, ErrorCode]] = []
        self.load()

    # The runtime --------------------------------------------------------------------------------

    def load(self) -> None:
        """A broker takes the partition over: nothing but the log is left."""
        self.endings = []
        self.shard = TransactionShard(
            self.settings,
            coordinator_epoch=self.epoch,
            level=lambda: self.level,
            write_markers=lambda ending: self.endings.append(ending),
        )
        for offset, (key, value) in enumerate(self.records):
            self.shard.replay(Replayed(key, value, offset, self.wall))
        self.run(self.shard.loaded(self.now))

    def crash(self) -> None:
        self.epoch += 1
        self.load()

    @property
    def now(self) -> Instant:
        return Instant(self.monotonic, self.wall)

    def run(self, effects: Effects) -> None:
        following: Effects | None = effects
        while following is not None:
            current, following = following, None
            if current.records:
                if self.failing:
                    if current.failed is not None:
                        following = current.failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
                    continue
                for key, value in current.records:
                    self.records.append((key, value))
                    self.shard.replay(Replayed(key, value, len(self.records), self.wall))
            if self._waiting is not None:
                self._waiting.append(current)
                break
            following = self._finish(current)

    def _finish(self, effects: Effects) -> Effects | None:
        for ticket, response in effects.answers:
            assert ticket not in self._answers, "answered twice"
            self._answers[ticket] = response
        return None if effects.then is None else effects.then()

    @contextmanager
    def uncommitted(self) -> Iterator[None]:
        """What is written meanwhile is committed only at the end."""
        self._waiting = []
        yield
        waiting, self._waiting = self._waiting, None
        for effects in waiting:
            following = self._finish(effects)
            if following is not None:
                self.run(following)

    def pass_time(self, milliseconds: int) -> None:
        """Time goes by, and the shard is called whenever it asked to be."""
        end = self.monotonic + milliseconds
        while True:
            deadline = self.shard.next_deadline()
            if deadline is None or deadline > end:
                break
            step = max(0, deadline - self.monotonic)
            self.monotonic += step
            self.wall += step
            self.run(self.shard.tick(self.now))
        self.wall += end - self.monotonic
        self.monotonic = end

    def write_markers(self) -> list[Ending]:
        """All markers that were asked for are written; which."""
        written, self.endings = self.endings, []
        for ending in written:
            self.run(self.shard.markers_written(ending, self.now))
        return written

    # Requests -----------------------------------------------------------------------------------

    def _answer(
        self, code: ErrorCode, holder: Identity = NOBODY, ongoing: Identity = NOBODY
    ) -> Message:
        self._told.append(Answer(code, holder, ongoing))
        return EndTxnResponse(producer_id=len(self._told) - 1)

    def _partitions_answer(self, codes: object) -> Message:
        self._told.append(dict(codes))  # type: ignore[call-overload]
        return EndTxnResponse(producer_id=len(self._told) - 1)

    def _take(self, ticket: int) -> object:
        response = self._answers.pop(ticket)
        if response is PRODUCER_ID_WANTED:
            return response
        assert isinstance(response, EndTxnResponse)
        return self._told[response.producer_id]

    def _ticket(self) -> int:
        self._last = getattr(self, "_last", 0) + 1
        return self._last

    def new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def init(
        self,
        transactional_id: str = "t",
        *,
        timeout: int = 60_000,
        expected: Identity = NOBODY,
        two_phase: bool = False,
        keep: bool = False,
    ) -> Answer:
        takeover = Takeover(transactional_id, timeout, expected, two_phase, keep)
        for new_id in (-1, self.new_id()):
            ticket = self._ticket()
            self.run(self.shard.init_producer(ticket, takeover, self._answer, self.now, new_id))
            answer = self._take(ticket)
            if answer is not PRODUCER_ID_WANTED:
                assert isinstance(answer, Answer)
                return answer
        raise AssertionError("a new id was not enough")

    def init_later(self, *, expected: Identity = NOBODY) -> Callable[[], Answer]:
        """A request that is perhaps not answered at once; what gives the answer."""
        ticket = self._ticket()
        self.run(
            self.shard.init_producer(
                ticket, Takeover("t", 60_000, expected), self._answer, self.now
            )
        )
        return lambda: self._answer_to(ticket)

    def _answer_to(self, ticket: int) -> Answer:
        response = self._answers[ticket]
        assert isinstance(response, EndTxnResponse)
        answer = self._told[response.producer_id]
        assert isinstance(answer, Answer)
        return answer

    def add(
        self,
        producer: Identity,
        *partitions: TopicPartition,
        version: int = 2,
        transactional_id: str = "t",
    ) -> ErrorCode:
        ticket = self._ticket()
        self.run(
            self.shard.add_partitions(
                ticket,
                transactional_id,
                producer,
                partitions or [("a", 0)],
                version,
                self._answer,
                self.now,
            )
        )
        answer = self._take(ticket)
        assert isinstance(answer, Answer)
        return answer.code

    def verify(
        self, producer: Identity, *partitions: TopicPartition, transactional_id: str = "t"
    ) -> dict[TopicPartition, ErrorCode]:
        ticket = self._ticket()
        self.run(
            self.shard.verify_partitions(
                ticket, transactional_id, producer, partitions, self._partitions_answer
            )
        )
        answer = self._take(ticket)
        assert isinstance(answer, dict)
        return answer

    def end(
        self,
        producer: Identity,
        committed: bool = True,
        *,
        version: int = 2,
        transactional_id: str = "t",
    ) -> Answer:
        for new_id in (-1, self.new_id()):
            ticket = self._ticket()
            self.run(
                self.shard.end(
                    ticket,
                    transactional_id,
                    producer,
                    committed,
                    version,
                    self._answer,
                    self.now,
                    new_id,
                )
            )
            answer = self._take(ticket)
            if answer is not PRODUCER_ID_WANTED:
                assert isinstance(answer, Answer)
                return answer
        raise AssertionError("a new id was not enough")

    # What is there ------------------------------------------------------------------------------

    def transaction(self, transactional_id: str = "t") -> Transaction:
        return self.shard.transactions[transactional_id]

    def state(self, transactional_id: str = "t") -> State:
        return self.transaction(transactional_id).state

    def begun(self, transactional_id: str = "t", **settings: object) -> Identity:
        """A producer that has its identity."""
        answer = self.init(transactional_id, **settings)  # type: ignore[arg-type]
        assert answer.code is NONE, answer
        return answer.holder

    def ongoing(
        self, transactional_id: str = "t", *, version: int = 2, **settings: object
    ) -> Identity:
        """A producer with a transaction open."""
        producer = self.begun(transactional_id, **settings)
        code = self.add(
            producer, ("a", 0), ("b", 1), version=version, transactional_id=transactional_id
        )
        assert code is NONE, code
        return producer

    def stored_is_kept(self) -> None:
        """What a replay of the log gives is what is there."""
        other = TransactionShard(
            self.settings,
            coordinator_epoch=self.epoch,
            level=lambda: self.level,
            write_markers=lambda _: None,
        )
        for offset, (key, value) in enumerate(self.records):
            other.replay(Replayed(key, value, offset, self.wall))
        assert other.transactions == self.shard.transactions
