"""Transactions: the states of a transactional producer, and its talk with the coordinators.

    state       may                                 becomes
    ---------   ---------------------------------   --------------------------------------------------
    NEW         init                                READY
    READY       begin                               OPEN
    OPEN        send, send offsets                  COMMITTING (commit, prepare), ABORTING (abort),
                                                    BROKEN (something failed)
    COMMITTING  (what was sent is delivered)        READY, PREPARED, BROKEN, FENCED, OPEN (cancelled)
    PREPARED    commit, abort, complete             COMMITTING, ABORTING
    BROKEN      abort                               ABORTING
    ABORTING    (what is in flight is awaited)      READY, BROKEN, FENCED
    FENCED      nothing: another instance took over, or the coordinator forgot this one

Two protocols, by the cluster's feature transaction.version. Below 2, partitions and groups are made part
of a transaction by requests of their own (AddPartitionsToTxn, AddOffsetsToTxn), and the epoch stays from
one transaction to the next. From 2 on (KIP-890) Produce and TxnOffsetCommit do it along the way, and
EndTxn gives the epoch for the next transaction, so that late requests of an old one are refused.

Two-phase commit (KIP-939): `prepare` makes everything durable and leaves the decision to another system;
a new instance that is initialised with `keep_prepared` finds the transaction as it was, and `complete`
commits it if it is the one that the other system knows of, and aborts it otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

from ottla.client.cluster import Cluster, Coordinator
from ottla.client.configuration.clients import ProducerSettings
from ottla.client.errors import (
    ConfigurationError,
    Fenced,
    OttlaError,
    Unsupported,
    broker_error,
)
from ottla.client.producer.batches import NOBODY, PartitionQueue, ProducerIdentity
from ottla.client.producer.errors import InvalidTransactionState, TransactionFailed
from ottla.client.producer.identity import NumberedIdentity
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from ottla.wire.connection import Connection

logger = logging.getLogger(__name__)

_FEATURE = "transaction.version"
_IMPLICIT_PARTITIONS = 2  # the level of the feature from which partitions are added along the way
_CLIENTS_LAST_ADD_PARTITIONS = 3  # later versions are for brokers
_END_WITH_NEW_EPOCH = 5
_COMMIT_OFFSETS_IMPLICITLY = 5
_COMMIT_OFFSETS_AS_MEMBER = 3
_BUMP_EPOCH = 3  # InitProducerId: a producer may ask for its next epoch
_TWO_PHASES = 6  # InitProducerId
_DOOMED = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
    }
)


class TransactionState(Enum):
    NEW = "not initialised"
    READY = "ready to begin"
    OPEN = "open"
    PREPARED = "prepared"
    COMMITTING = "being committed"
    ABORTING = "being aborted"
    BROKEN = "failed: abort it"
    FENCED = "over: another producer has taken this one's place"


_SENDING = frozenset({TransactionState.OPEN, TransactionState.COMMITTING})


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A transaction that waits for its end; `str` and `parse` for another system's keeping."""

    producer_id: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.epoch}"

    @classmethod
    def parse(cls, text: str) -> Self:
        producer_id, _, epoch = text.partition(":")
        return cls(int(producer_id), int(epoch))


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A consumer, as a group knows it: offsets that it commits count only while it is a member."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class Transactions(NumberedIdentity):
    """The transactions of one producer, one after the other."""

    transactional = True

    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerSettings,
        wake: Callable[[], None],
        abandon: Callable[[OttlaError], None],
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__()
        if settings.transactional_id is None:
            raise ConfigurationError("transactions need a transactional.id")
        self._id = settings.transactional_id
        self._cluster = cluster
        self._settings = settings
        self._wake = wake
        self._abandon = abandon
        self._flush = flush
        self._coordinator = Coordinator.of_transaction(self._id)
        self.state = TransactionState.NEW
        self.problem: OttlaError | None = None
        self._level = 0  # of the feature
        self._partitions: set[tuple[str, int]] = set()  # part of the transaction
        self._wanted: set[tuple[str, int]] = set()  # to be made part of it
        self._adding: asyncio.Task[None] | None = None
        self._begun = False  # the coordinator knows of the transaction
        self._left_over: PreparedTransaction | None = None  # found when initialised
        self._may_ask_for_epoch = False  # InitProducerId takes the id and epoch that one has

    # What the sender asks

    @property
    def explicit_partitions(self) -> bool:  # type: ignore[override]
        return self._level < _IMPLICIT_PARTITIONS

    def ready_for(self, queue: PartitionQueue) -> bool:
        if self.state not in _SENDING:
            return False
        place = (queue.topic, queue.partition)
        if place not in self._partitions:
            if self.explicit_partitions:
                self._add(place)
                return False
            self._partitions.add(place)
            self._begun = True
        self._take_over(queue)
        return True

    def batch_failed(self, problem: OttlaError) -> None:
        super().batch_failed(problem)
        self._break(problem)

    def check_open(self) -> None:
        if self.state is TransactionState.BROKEN:
            raise TransactionFailed(self._id, self.problem) from self.problem
        self._require(TransactionState.OPEN, doing="send")

    # What users ask

    async def init(self, *, keep_prepared: bool = False) -> PreparedTransaction | None:
        """Get an id, fence older instances, end what they left open (or keep what is prepared)."""
        self._require(TransactionState.NEW, TransactionState.READY, doing="initialise")
        answer = await self._initialise(NOBODY, keep_prepared=keep_prepared)
        self.state = TransactionState.READY
        self._left_over = None
        if answer.ongoing_txn_producer_id >= 0:
            self._left_over = PreparedTransaction(
                answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch
            )
            self.state = TransactionState.PREPARED
            self._begun = True
        return self._left_over

    def begin(self) -> None:
        self._require(TransactionState.READY, doing="begin a transaction")
        self._partitions.clear()
        self._wanted.clear()
        self._begun = False
        self.state = TransactionState.OPEN

    async def prepare(self, *, may_time_out: bool = False) -> PreparedTransaction:
        """Make all records durable; only `commit`, `abort` or `complete` may follow."""
        self._require(TransactionState.OPEN, doing="prepare")
        if not self._settings.two_phase_commit and not may_time_out:
            raise ConfigurationError(
                "to prepare a transaction set transaction.two.phase.commit.enable=true"
            )
        await self._deliver()
        self.state = TransactionState.PREPARED
        return PreparedTransaction(*self.current)

    async def complete(self, decided: PreparedTransaction) -> bool:
        """Commit the prepared transaction if it is the one decided on, else abort; which it was."""
        self._require(TransactionState.PREPARED, TransactionState.READY, doing="complete")
        if self.state is TransactionState.READY:
            return False  # nothing was left prepared
        prepared = self._left_over or PreparedTransaction(*self.current)
        if prepared == decided:
            await self.commit()
            return True
        await self.abort()
        return False

    async def commit(self) -> None:
        """Make the transaction's records and offsets count, all of them at once."""
        self._require(TransactionState.OPEN, TransactionState.PREPARED, doing="commit")
        if self.state is TransactionState.OPEN:
            await self._deliver()
        await self._end(TransactionState.COMMITTING)

    async def abort(self) -> None:
        """Make sure that nothing of the transaction will ever count."""
        self._require(
            TransactionState.OPEN,
            TransactionState.PREPARED,
            TransactionState.BROKEN,
            doing="abort",
        )
        failed = self.problem if self.state is TransactionState.BROKEN else None
        self.state = TransactionState.ABORTING
        try:
            self._abandon(TransactionFailed(self._id, failed))
            await self._flush()
            if self._adding is not None:
                await asyncio.wait([self._adding])
        except BaseException:  # whoever waited has lost patience, and may abort again
            if self.state is TransactionState.ABORTING:
                self.state = TransactionState.BROKEN
            raise
        try:
            await self._end(TransactionState.ABORTING)
        except Fenced:
            if failed is None or not await self._recovered():
                raise
        else:
            if failed is not None and self.explicit_partitions:
                # Numbers may be missing: begin the next transaction under a new epoch.
                await self._initialise(self.current)
        self.problem = None

    async def send_offsets(
        self, offsets: Mapping[tuple[str, int], Any], member: GroupMember | str
    ) -> None:
        """Commit a group's offsets with the transaction."""
        self._require(TransactionState.OPEN, doing="send offsets")
        if isinstance(member, str):
            member = GroupMember(member)
        if self.explicit_partitions:
            answer = await self._cluster.ask(
                AddOffsetsToTxnRequest(
                    transactional_id=self._id,
                    producer_id=self.current.producer_id,
                    producer_epoch=self.current.epoch,
                    group_id=member.group_id,
                ),
                AddOffsetsToTxnResponse,
                at=self._coordinator,
            )
            self._raise_for(answer.error_code, f"group '{member.group_id}'")
        self._begun = True

        def request(connection: Connection) -> TxnOffsetCommitRequest:
            if member.member_id and (
                connection.version_of(TxnOffsetCommitRequest) < _COMMIT_OFFSETS_AS_MEMBER
            ):
                raise Unsupported(
                    f"{connection.address} cannot check who commits a group's offsets with a "
                    "transaction (Kafka 2.5); give the name of the group alone"
                )
            return self._offsets_request(offsets, member)

        committed = await self._cluster.ask(
            request,
            TxnOffsetCommitResponse,
            at=Coordinator.of_group(member.group_id),
            failing=_first_offset_error,
            at_most=None if not self.explicit_partitions else _COMMIT_OFFSETS_IMPLICITLY - 1,
        )
        self._raise_for(_first_offset_error(committed), f"offsets of group '{member.group_id}'")

    # The coordinator

    def _offsets_request(
        self, offsets: Mapping[tuple[str, int], Any], member: GroupMember
    ) -> TxnOffsetCommitRequest:
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for (topic, partition), offset in offsets.items():
            topics.setdefault(topic, []).append(
                TxnOffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=int(getattr(offset, "offset", offset)),
                    committed_leader_epoch=_or(getattr(offset, "leader_epoch", None), -1),
                    committed_metadata=_or(getattr(offset, "metadata", None), ""),
                )
            )
        return TxnOffsetCommitRequest(
            transactional_id=self._id,
            group_id=member.group_id,
            producer_id=self.current.producer_id,
            producer_epoch=self.current.epoch,
            generation_id=member.generation_id,
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            topics=[
                TxnOffsetCommitRequestTopic(name=name, partitions=partitions)
                for name, partitions in topics.items()
            ],
        )

    async def _initialise(
        self, known: ProducerIdentity, *, keep_prepared: bool = False
    ) -> InitProducerIdResponse:
        two_phases = self._settings.two_phase_commit

        def request(connection: Connection) -> InitProducerIdRequest:
            self._level = _level(connection)
            if (
                two_phases
                and connection.version_of(InitProducerIdRequest, _TWO_PHASES) < _TWO_PHASES
            ):
                raise Unsupported(
                    "the broker does not offer two-phase commit (InitProducerId version 6)"
                )
            numbered = connection.versions.offers(InitProducerIdRequest, _BUMP_EPOCH)
            self._may_ask_for_epoch = numbered
            return InitProducerIdRequest(
                transactional_id=self._id,
                transaction_timeout_ms=int(self._settings.transaction_timeout * 1000),
                producer_id=known.producer_id if numbered else -1,
                producer_epoch=known.epoch if numbered else -1,
                enable2_pc=two_phases,
                keep_prepared_txn=keep_prepared,
            )

        answer = await self._cluster.ask(
            request,
            InitProducerIdResponse,
            at=self._coordinator,
            at_most=_TWO_PHASES if two_phases else _TWO_PHASES - 1,
        )
        self._raise_for(answer.error_code, "the producer's id", can_abort=False)
        self.current = ProducerIdentity(answer.producer_id, answer.producer_epoch)
        return answer

    async def _end(self, how: TransactionState) -> None:
        committed = how is TransactionState.COMMITTING
        self.state = how
        if self._begun:
            try:
                answer = await self._cluster.ask(
                    EndTxnRequest(
                        transactional_id=self._id,
                        producer_id=self.current.producer_id,
                        producer_epoch=self.current.epoch,
                        committed=committed,
                    ),
                    EndTxnResponse,
                    at=self._coordinator,
                    at_most=None if not self.explicit_partitions else _END_WITH_NEW_EPOCH - 1,
                )
            except BaseException as error:
                # Whether it was ended is not known: the same call may be made again.
                self.state = TransactionState.PREPARED if committed else TransactionState.BROKEN
                if isinstance(error, OttlaError):
                    self.problem = error
                raise
            self._raise_for(answer.error_code, "the end of the transaction", can_abort=committed)
            if not self.explicit_partitions and answer.producer_id >= 0:
                self.current = ProducerIdentity(answer.producer_id, answer.producer_epoch)
        self._left_over = None
        self._begun = False
        self._partitions.clear()
        self.state = TransactionState.READY

    async def _recovered(self) -> bool:
        """Whether the coordinator still takes this producer for the current one, after a refused end.

        It ends transactions by itself when their time is over, under the next epoch. Without telling
        who one is, asking would fence whoever it was that took over.
        """
        if not self._may_ask_for_epoch:
            return False
        self.state = TransactionState.NEW
        try:
            await self._initialise(self.current)
        except Fenced:
            self.state = TransactionState.FENCED
            return False
        self._begun = False
        self._partitions.clear()
        self.state = TransactionState.READY
        return True

    async def _deliver(self) -> None:
        # From here on no more records are taken.
        self.state = TransactionState.COMMITTING
        try:
            await self._flush()
        except BaseException:  # whoever waited has lost patience; the coordinator was not asked yet
            if self.state is TransactionState.COMMITTING:
                self.state = TransactionState.OPEN
            raise
        if self.state is not TransactionState.COMMITTING:
            raise TransactionFailed(self._id, self.problem) from self.problem

    # Explicit partitions

    def _add(self, place: tuple[str, int]) -> None:
        self._wanted.add(place)
        if self._adding is None:
            self._adding = asyncio.get_running_loop().create_task(self._add_partitions())

    async def _add_partitions(self) -> None:
        try:
            while self._wanted:
                wanted, self._wanted = self._wanted, set()
                topics: dict[str, list[int]] = {}
                for topic, partition in sorted(wanted):
                    topics.setdefault(topic, []).append(partition)
                answer = await self._cluster.ask(
                    AddPartitionsToTxnRequest(
                        v3_and_below_transactional_id=self._id,
                        v3_and_below_producer_id=self.current.producer_id,
                        v3_and_below_producer_epoch=self.current.epoch,
                        v3_and_below_topics=[
                            AddPartitionsToTxnTopic(name=name, partitions=partitions)
                            for name, partitions in topics.items()
                        ],
                    ),
                    AddPartitionsToTxnResponse,
                    at=self._coordinator,
                    failing=_first_partition_error,
                    at_most=_CLIENTS_LAST_ADD_PARTITIONS,
                )
                self._raise_for(_first_partition_error(answer), "partitions of the transaction")
                self._partitions |= wanted
                self._begun = True
        except OttlaError as error:
            self._break(error)
        finally:
            self._adding = None
            self._wake()

    # States

    def _require(self, *states: TransactionState, doing: str) -> None:
        if self.state is TransactionState.FENCED and self.problem is not None:
            raise self.problem
        if self.state not in states:
            raise InvalidTransactionState(
                f"cannot {doing}: the transaction of '{self._id}' is {self.state.value}"
            )

    def _raise_for(self, code: int, about: str, *, can_abort: bool = True) -> None:
        if not code:
            return
        problem = broker_error(code, about=f"transactional id '{self._id}', {about}")
        if problem.code in _DOOMED or (isinstance(problem, Fenced) and not can_abort):
            self.problem = problem
            self.state = TransactionState.FENCED
        elif self.state in _SENDING:
            self._break(problem)
        elif self.state is TransactionState.ABORTING:
            self.state, self.problem = TransactionState.BROKEN, problem
        raise problem

    def _break(self, problem: OttlaError) -> None:
        """The transaction cannot be committed any more."""
        if self.state not in _SENDING:
            return
        doomed = getattr(problem, "code", None) in _DOOMED
        self.state = TransactionState.FENCED if doomed else TransactionState.BROKEN
        self.problem = problem
        logger.debug("the transaction of %s: %s", self._id, problem)
        self._abandon(problem)

    async def leave(self) -> None:
        """Abort what is open, so that readers need not wait for its time to be over."""
        if self.state in (TransactionState.OPEN, TransactionState.BROKEN):
            try:
                await self.abort()
            except OttlaError as error:
                # The coordinator does it when the transaction's time is over.
                logger.info("the transaction of %s was left open: %s", self._id, error)

    async def close(self) -> None:
        if self._adding is not None:
            self._adding.cancel()
            await asyncio.gather(self._adding, return_exceptions=True)


def _level(connection: Connection) -> int:
    """The level of transaction.version that is spoken with this broker."""
    level = connection.finalized_features.get(_FEATURE, 0)
    if not connection.versions.offers(EndTxnRequest, _END_WITH_NEW_EPOCH):
        level = min(level, _IMPLICIT_PARTITIONS - 1)
    return level


def newest_end(connection: Connection) -> int | None:
    """The newest version of EndTxn that fits the transaction protocol of this broker (None: any)."""
    return None if _level(connection) >= _IMPLICIT_PARTITIONS else _END_WITH_NEW_EPOCH - 1


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _first_offset_error(answer: TxnOffsetCommitResponse) -> int:
    codes = [part.error_code for topic in answer.topics for part in topic.partitions]
    return next((code for code in codes if code), 0)


def _first_partition_error(answer: AddPartitionsToTxnResponse) -> int:
    """What failed; that others were not tried because of it says nothing."""
    codes = [
        part.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for part in topic.results_by_partition
    ]
    said = [code for code in codes if code not in (0, ErrorCode.OPERATION_NOT_ATTEMPTED)]
    return next(iter(said or [code for code in codes if code]), 0)
