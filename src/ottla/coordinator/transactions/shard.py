"""The transaction coordinator of one partition of `__transaction_state`.

Each transactional id has one record, its newest, which is its state. A request is checked against it
and answered, or leads to a new record. While a record is on its way to the log, other requests for the
same id are told CONCURRENT_TRANSACTIONS, which clients repeat.

The end of a transaction has two records. The first (PREPARE) is the decision: once it is committed the
producer has its answer, and nothing can change the outcome; a coordinator that finds it in its log
after a crash goes on from there. Then a marker is written to each partition of the transaction, and
the second record (COMPLETE) tells that this is done.

The answers (which error in which case) are those of Apache Kafka 4.3; two-phase commit (KIP-939) goes
beyond it and keeps prepared transactions across a restart of their producer, as later versions do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ottla.coordinator.shard import NOTHING, Effects, Instant, Replayed, Ticket
from ottla.coordinator.transactions.claims import (
    ended_before,
    fault_of_end,
    fault_of_member,
    may_be,
)
from ottla.coordinator.transactions.ending import Ending, WriteMarkers
from ottla.coordinator.transactions.records import key_of, read_key, read_value, value_of
from ottla.coordinator.transactions.states import AT_REST, State
from ottla.coordinator.transactions.takeover import PRODUCER_ID_WANTED, Takeover
from ottla.coordinator.transactions.transaction import (
    FIRST_WITH_EPOCH_BUMP,
    LAST_EPOCH,
    NO_EPOCH,
    NO_PRODUCER,
    NO_TIMEOUT,
    NOBODY,
    Identity,
    TopicPartition,
    Transaction,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import MalformedMessage

if TYPE_CHECKING:
    from ottla.coordinator.transactions.settings import TransactionSettings
    from ottla.protocol.message import Message

log = logging.getLogger("ottla.transactions")

# Tombstones that are written as one batch.
EXPIRED_AT_ONCE: Final = 500
# How long the record that a transaction is complete waits for a log that did not take it.
RETRY_MS: Final = 100


class Answer(Protocol):
    """Makes the response to a request out of its outcome."""

    def __call__(self, code: ErrorCode, /) -> Message: ...


class IdentityAnswer(Protocol):
    """Makes a response that has an identity in it, and the one of a transaction still open."""

    def __call__(
        self, code: ErrorCode, holder: Identity = NOBODY, ongoing: Identity = NOBODY, /
    ) -> Message: ...


class PartitionsAnswer(Protocol):
    """Makes a response that has an error for each partition."""

    def __call__(self, codes: Mapping[TopicPartition, ErrorCode], /) -> Message: ...


class _Pending(NamedTuple):
    """A record on its way to the log."""

    state: State
    # The epoch before the one that it leads to, see `_former_epochs`; None: as it was.
    former_epoch: int | None = None


class TransactionShard:
    """The transactions of one partition of __transaction_state (a `Shard`)."""

    def __init__(
        self,
        settings: TransactionSettings,
        *,
        coordinator_epoch: int,
        level: Callable[[], int],
        write_markers: WriteMarkers,
    ) -> None:
        """`level` tells the cluster's level of transaction.version."""
        self.settings = settings
        self.coordinator_epoch = coordinator_epoch
        self._level = level
        self._write_markers = write_markers
        # Lasting state.
        self.transactions: dict[str, Transaction] = {}
        # Passing state from here on. Ids with a record on its way.
        self._pending: dict[str, _Pending] = {}
        # The epoch before the current one, if a producer that still has it may have missed an answer.
        # (As in Kafka it is forgotten when the partition moves: such a producer is then fenced.)
        self._former_epochs: dict[str, int] = {}
        # Those in state ONGOING, in the order in which they began.
        self._ongoing: dict[str, None] = {}
        # Those of them that were looked at: when they began by the wall's clock, and by the one that
        # never jumps.
        self._begun: dict[str, tuple[int, int]] = {}
        # Markers are all written, but the log did not take the record that says so.
        self._unrecorded: dict[str, Ending] = {}
        # Monotonic milliseconds.
        self._next_abort = 0
        self._next_expiry = 0
        self._next_retry = 0

    # Lasting state ------------------------------------------------------------------------------

    def replay(self, record: Replayed) -> None:
        try:
            transactional_id = read_key(record.key)
            if transactional_id is None:
                return
            transaction = (
                None if record.value is None else read_value(transactional_id, record.value)
            )
        except MalformedMessage as error:
            log.error("transaction's record skipped: offset=%d %s", record.offset, error)
            return
        pending = self._pending.pop(transactional_id, None)
        if transaction is None:
            self.transactions.pop(transactional_id, None)
            self._former_epochs.pop(transactional_id, None)
            self._ongoing.pop(transactional_id, None)
            return
        self.transactions[transactional_id] = transaction
        if pending is not None and pending.former_epoch is not None:
            self._former_epochs[transactional_id] = pending.former_epoch
        if transaction.state is State.ONGOING:
            self._ongoing[transactional_id] = None
        else:
            self._ongoing.pop(transactional_id, None)

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """Never called: the topic of transactions has no transactions itself."""

    def loaded(self, now: Instant) -> Effects:
        """Resume after the replay: end the transactions that were decided, and time out open ones from
        their beginning, as before."""
        settings = self.settings
        self._next_abort = (
            now.monotonic + settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
        )
        self._next_expiry = (
            now.monotonic + settings.transaction_remove_expired_transaction_cleanup_interval_ms
        )
        endings = [
            Ending.of(each, self.coordinator_epoch)
            for each in self.transactions.values()
            if each.is_ending
        ]

        def write_markers() -> Effects:
            for ending in endings:
                self._write_markers(ending)
            return NOTHING

        # Once it is committed: a decision at the log's end may be lost with this leader, and the next
        # one decide otherwise, when a part of the markers is there already.
        return Effects(then=write_markers) if endings else NOTHING

    def reconfigured(self, settings: TransactionSettings) -> Effects:
        self.settings = settings
        return NOTHING

    def unloaded(self) -> Effects:
        """Does nothing: no request waits longer than for its record to be written."""
        return NOTHING

    # A producer takes over ----------------------------------------------------------------------

    def init_producer(
        self,
        ticket: Ticket,
        takeover: Takeover,
        answer: IdentityAnswer,
        now: Instant,
        new_id: int = NO_PRODUCER,
    ) -> Effects:
        """Handle InitProducerId. Answers PRODUCER_ID_WANTED if it cannot do without `new_id`."""
        fault = self._fault_of(takeover)
        if fault is not None:
            return Effects((ticket, answer(fault)))
        transactional_id = takeover.transactional_id
        if transactional_id in self._pending:
            return Effects((ticket, answer(ErrorCode.CONCURRENT_TRANSACTIONS)))
        timeout_ms = NO_TIMEOUT if takeover.two_phase else takeover.timeout_ms
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            if new_id < 0:
                return Effects((ticket, PRODUCER_ID_WANTED))
            fresh = Transaction(
                transactional_id, new_id, 0, timeout_ms, State.EMPTY, updated=now.wall
            )
            return self._begin(ticket, fresh, NO_EPOCH, answer)
        expected = takeover.expected
        if expected != NOBODY and not may_be(expected, transaction):
            return Effects((ticket, answer(ErrorCode.PRODUCER_FENCED)))
        if transaction.is_ending:
            return Effects((ticket, answer(ErrorCode.CONCURRENT_TRANSACTIONS)))
        if transaction.state is State.ONGOING:
            if takeover.keep_prepared:
                return self._hand_over(ticket, transaction, answer, now, new_id)
            return self._fence(
                ticket, transaction, answer, now, lambda: answer(ErrorCode.CONCURRENT_TRANSACTIONS)
            )
        holder = transaction.holder
        former = NO_EPOCH if expected == NOBODY else holder.epoch
        is_retry = expected not in (NOBODY, holder) and expected.epoch != holder.epoch
        if is_retry:
            former = expected.epoch
            if former != self._former_epochs.get(transactional_id, NO_EPOCH):
                return Effects((ticket, answer(ErrorCode.PRODUCER_FENCED)))
        if is_retry and holder.epoch < LAST_EPOCH:
            # The answer with the identity was lost.
            following = holder
        elif holder.is_exhausted:
            if new_id < 0:
                return Effects((ticket, PRODUCER_ID_WANTED))
            following = Identity(new_id, 0)
        else:
            following = Identity(holder.producer_id, holder.epoch + 1)
        return self._begin(
            ticket, transaction.begun(following, timeout_ms, now.wall), former, answer
        )

    def _fault_of(self, takeover: Takeover) -> ErrorCode | None:
        settings = self.settings
        if (
            takeover.two_phase or takeover.keep_prepared
        ) and not settings.transaction_two_phase_commit_enable:
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if takeover.keep_prepared:
            if self._level() < FIRST_WITH_EPOCH_BUMP:
                return ErrorCode.UNSUPPORTED_VERSION
            if takeover.expected != NOBODY:
                return ErrorCode.INVALID_REQUEST
        if not takeover.two_phase and not (
            0 < takeover.timeout_ms <= settings.transaction_max_timeout_ms
        ):
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        return None

    def _begin(
        self, ticket: Ticket, transaction: Transaction, former_epoch: int, answer: IdentityAnswer
    ) -> Effects:
        respond = partial(answer, ErrorCode.NONE, transaction.holder)
        return self._store(ticket, transaction, respond, answer, former_epoch=former_epoch)

    def _hand_over(
        self,
        ticket: Ticket,
        transaction: Transaction,
        answer: IdentityAnswer,
        now: Instant,
        new_id: int,
    ) -> Effects:
        """Make the producer that asks the one to end a prepared transaction, which stays open."""
        if not transaction.is_two_phase:
            return Effects((ticket, answer(ErrorCode.INVALID_TXN_STATE)))
        holder = transaction.holder
        if not holder.is_exhausted:
            following = Identity(holder.producer_id, holder.epoch + 1)
        elif new_id >= 0:
            following = Identity(new_id, 0)
        else:
            return Effects((ticket, PRODUCER_ID_WANTED))
        ongoing = Identity(transaction.producer_id, transaction.epoch)
        return self._store(
            ticket,
            transaction.handed_over(following, now.wall),
            partial(answer, ErrorCode.NONE, following, ongoing),
            answer,
        )

    def _fence(
        self,
        ticket: Ticket,
        transaction: Transaction,
        refuse: Answer,
        now: Instant,
        respond: Callable[[], Message],
    ) -> Effects:
        """Abort a transaction on behalf of somebody other than its producer."""
        fenced = transaction.fenced(self._level(), now.wall)
        former = transaction.epoch if fenced.version >= FIRST_WITH_EPOCH_BUMP else NO_EPOCH
        decided = partial(self._decided, fenced.transactional_id)
        effects = self._store(ticket, fenced, respond, refuse, decided)
        self._pending[fenced.transactional_id] = _Pending(State.PREPARE_EPOCH_FENCE, former)
        return effects

    # Partitions ---------------------------------------------------------------------------------

    def add_partitions(
        self,
        ticket: Ticket,
        transactional_id: str,
        producer: Identity,
        partitions: Iterable[TopicPartition],
        version: int,
        answer: Answer,
        now: Instant,
    ) -> Effects:
        """Make partitions part of the transaction; the first ones begin it. `version` is that of the
        transaction protocol which the producer speaks."""
        wanted = frozenset(partitions)
        transaction = self.transactions.get(transactional_id)
        code = fault_of_member(transaction, producer)
        if code is not None or transaction is None:
            return Effects((ticket, answer(code or ErrorCode.INVALID_PRODUCER_ID_MAPPING)))
        if transactional_id in self._pending or transaction.is_ending:
            return Effects((ticket, answer(ErrorCode.CONCURRENT_TRANSACTIONS)))
        if transaction.state is State.ONGOING and wanted <= transaction.partitions:
            return Effects((ticket, answer(ErrorCode.NONE)))
        if transaction.changed_hands:
            # What was prepared grows no more; its former producer comes too late.
            return Effects((ticket, answer(ErrorCode.PRODUCER_FENCED)))
        return self._store(
            ticket,
            transaction.added(wanted, version, now.wall),
            partial(answer, ErrorCode.NONE),
            answer,
        )

    def verify_partitions(
        self,
        ticket: Ticket,
        transactional_id: str,
        producer: Identity,
        partitions: Iterable[TopicPartition],
        answer: PartitionsAnswer,
    ) -> Effects:
        """Check for their leaders whether partitions are part of the open transaction."""
        transaction = self.transactions.get(transactional_id)
        code = fault_of_member(transaction, producer)
        if code is None and transaction is not None and transaction.is_ending:
            code = ErrorCode.CONCURRENT_TRANSACTIONS
        if code is not None or transaction is None:
            fault = code or ErrorCode.INVALID_PRODUCER_ID_MAPPING
            return Effects((ticket, answer(dict.fromkeys(partitions, fault))))
        members = transaction.partitions
        return Effects(
            (
                ticket,
                answer(
                    {
                        each: ErrorCode.NONE if each in members else ErrorCode.TRANSACTION_ABORTABLE
                        for each in partitions
                    }
                ),
            )
        )

    # The end ------------------------------------------------------------------------------------

    def end(
        self,
        ticket: Ticket,
        transactional_id: str,
        producer: Identity,
        committed: bool,
        version: int,
        answer: IdentityAnswer,
        now: Instant,
        new_id: int = NO_PRODUCER,
    ) -> Effects:
        """Handle EndTxn: the producer commits or aborts. Answers PRODUCER_ID_WANTED if it cannot do
        without `new_id`."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            return Effects((ticket, answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)))
        bumps = version >= FIRST_WITH_EPOCH_BUMP
        code = fault_of_end(transaction, producer, bumps)
        if code is None and transactional_id in self._pending:
            code = ErrorCode.CONCURRENT_TRANSACTIONS
        if code is not None:
            return Effects((ticket, answer(code)))
        again = bumps and ended_before(transaction, producer)
        state = transaction.state
        if state is State.ONGOING or (bumps and not committed and not again and state in AT_REST):
            if bumps and transaction.holder.is_exhausted and new_id < 0:
                return Effects((ticket, PRODUCER_ID_WANTED))
            ended = transaction.ended(committed, version, new_id, now.wall)
            holder = ended.holder if bumps else NOBODY
            former = transaction.holder.epoch if bumps else None
            return self._store(
                ticket,
                ended,
                partial(answer, ErrorCode.NONE, holder),
                answer,
                partial(self._decided, transactional_id),
                former,
            )
        outcome = State.COMPLETE_COMMIT if committed else State.COMPLETE_ABORT
        under_way = State.PREPARE_COMMIT if committed else State.PREPARE_ABORT
        if state is outcome and (again or not bumps):
            return Effects(
                (ticket, answer(ErrorCode.NONE, transaction.holder if bumps else NOBODY))
            )
        is_next = bumps and not again and transaction.is_ending
        if state is under_way or is_next:
            # The same end again, or that of the next transaction: this one is not through yet.
            return Effects((ticket, answer(ErrorCode.CONCURRENT_TRANSACTIONS)))
        return Effects((ticket, answer(ErrorCode.INVALID_TXN_STATE)))

    def _decided(self, transactional_id: str) -> Effects:
        """Have the markers of a transaction written, once its decision is stored."""
        transaction = self.transactions.get(transactional_id)
        if transaction is not None and transaction.is_ending:
            self._write_markers(Ending.of(transaction, self.coordinator_epoch))
        return NOTHING

    def markers_written(self, ending: Ending, now: Instant) -> Effects:
        """Every partition of a transaction has its marker."""
        transactional_id = ending.transactional_id
        transaction = self.transactions.get(transactional_id)
        if (
            transaction is None
            or not transaction.is_ending
            or transactional_id in self._pending
            # The news of an ending long past.
            or (transaction.producer_id, transaction.epoch) != (ending.producer_id, ending.epoch)
        ):
            return NOTHING
        completed = transaction.completed(now.wall)
        self._pending[transactional_id] = _Pending(completed.state)

        def failed(_: ErrorCode) -> Effects:
            self._pending.pop(transactional_id, None)
            self._unrecorded[transactional_id] = ending
            self._next_retry = now.monotonic + RETRY_MS
            return NOTHING

        return Effects(
            records=[(key_of(transactional_id), value_of(completed, self._level()))], failed=failed
        )

    # Time ---------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        deadlines = []
        if self._ongoing:
            deadlines.append(self._next_abort)
        if self.transactions:
            deadlines.append(self._next_expiry)
        if self._unrecorded:
            deadlines.append(self._next_retry)
        return min(deadlines, default=None)

    def tick(self, now: Instant) -> Effects:
        settings = self.settings
        if self._unrecorded and now.monotonic >= self._next_retry:
            _, ending = self._unrecorded.popitem()
            return _followed(self.markers_written(ending, now), partial(self.tick, now))
        if now.monotonic >= self._next_abort:
            for transactional_id in self._ongoing:
                transaction = self.transactions[transactional_id]
                if self._is_overdue(transaction, now):
                    return self._time_out(transaction, now)
            for gone in self._begun.keys() - self._ongoing.keys():
                del self._begun[gone]
            self._next_abort = (
                now.monotonic + settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
            )
        if now.monotonic >= self._next_expiry:
            expired = self._expired(now.wall)
            if expired:
                return self._expire(expired, now)
            self._next_expiry = (
                now.monotonic + settings.transaction_remove_expired_transaction_cleanup_interval_ms
            )
        return NOTHING

    def _is_overdue(self, transaction: Transaction, now: Instant) -> bool:
        return (
            not transaction.is_two_phase
            and now.monotonic - self._begun_at(transaction, now) > transaction.timeout_ms
            and transaction.transactional_id not in self._pending
        )

    def _begun_at(self, transaction: Transaction, now: Instant) -> int:
        """When a transaction began, on the clock that never jumps. The record has the wall's time,
        which is compared once; one in the future is forgiven."""
        known = self._begun.get(transaction.transactional_id)
        if known is None or known[0] != transaction.started:
            age = max(0, now.wall - transaction.started)
            known = (transaction.started, now.monotonic - age)
            self._begun[transaction.transactional_id] = known
        return known[1]

    def _time_out(self, transaction: Transaction, now: Instant) -> Effects:
        """Abort one transaction for its age, then look for more."""
        log.info(
            "transaction timed out: id=%s producer=%d epoch=%d",
            transaction.transactional_id, transaction.producer_id, transaction.epoch,
        )  # fmt: skip
        fenced = transaction.fenced(self._level(), now.wall)
        former = transaction.epoch if fenced.version >= FIRST_WITH_EPOCH_BUMP else NO_EPOCH
        transactional_id = transaction.transactional_id
        self._pending[transactional_id] = _Pending(State.PREPARE_EPOCH_FENCE, former)

        def decided() -> Effects:
            return _followed(self._decided(transactional_id), partial(self.tick, now))

        def failed(_: ErrorCode) -> Effects:
            self._pending.pop(transactional_id, None)
            # The others would fail as well: all of them again when it is time.
            self._next_abort = (
                now.monotonic
                + self.settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
            )
            return NOTHING

        return Effects(
            records=[(key_of(transactional_id), value_of(fenced, self._level()))],
            failed=failed,
            then=decided,
        )

    def _expired(self, wall: int) -> list[str]:
        limit = wall - self.settings.transactional_id_expiration_ms
        expired = []
        for transactional_id, transaction in self.transactions.items():
            if (
                transaction.state in AT_REST
                and transaction.updated <= limit
                and transactional_id not in self._pending
            ):
                expired.append(transactional_id)
                if len(expired) == EXPIRED_AT_ONCE:
                    break
        return expired

    def _expire(self, expired: list[str], now: Instant) -> Effects:
        """Forget ids that have not been used for long, then look for more."""
        for transactional_id in expired:
            self._pending[transactional_id] = _Pending(State.DEAD)

        def failed(_: ErrorCode) -> Effects:
            for transactional_id in expired:
                self._pending.pop(transactional_id, None)
            self._next_expiry = (
                now.monotonic
                + self.settings.transaction_remove_expired_transaction_cleanup_interval_ms
            )
            return NOTHING

        return Effects(
            records=[(key_of(each), None) for each in expired],
            failed=failed,
            then=partial(self.tick, now),
        )

    # Questions ----------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> Transaction | None:
        """The transaction of an id; None if there is no such id, or it is about to be forgotten."""
        pending = self._pending.get(transactional_id)
        if pending is not None and pending.state is State.DEAD:
            return None
        return self.transactions.get(transactional_id)

    # Inside -------------------------------------------------------------------------------------

    def _store(
        self,
        ticket: Ticket,
        transaction: Transaction,
        respond: Callable[[], Message],
        refuse: Answer,
        then: Callable[[], Effects] | None = None,
        former_epoch: int | None = None,
    ) -> Effects:
        """Write the new state of an id, then answer."""
        transactional_id = transaction.transactional_id
        self._pending[transactional_id] = _Pending(transaction.state, former_epoch)

        def failed(code: ErrorCode) -> Effects:
            self._pending.pop(transactional_id, None)
            return Effects((ticket, refuse(_failure(code))))

        return Effects(
            (ticket, respond()),
            records=[(key_of(transactional_id), value_of(transaction, self._level()))],
            failed=failed,
            then=then,
        )


def _failure(code: ErrorCode) -> ErrorCode:
    """What a producer is told when the log did not take a record."""
    if code is ErrorCode.INVALID_COMMIT_OFFSET_SIZE:
        # The partitions of the transaction do not fit into one record.
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return code


def _followed(effects: Effects, then: Callable[[], Effects]) -> Effects:
    """The same effects, followed by something else unless they fail."""
    if not effects.records and not effects.answers and effects.then is None:
        return then()
    before, failed = effects.then, effects.failed

    def both() -> Effects:
        return then() if before is None else _followed(before(), then)

    return Effects(*effects.answers, records=effects.records, failed=failed, then=both)
