"""Clients of a simulated cluster that use its coordinators: transactional producers, two of which may
share an id, and consumers that only commit. What they were told is what the cluster has promised.

Requests and answers are lost, delayed and doubled. A client that hears nothing for longer than a
message can be under way asks again, whoever it then takes for the coordinator. Requests of the second
transaction protocol may come again seconds later: its epochs tell an old one from a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ottla.cluster.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from ottla.coordinator.transactions.transaction import NOBODY, Identity
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from ottla.record.batch import Record, build_batch
from ottla.server.coordination.coordinators import partition_for
from ottla.server.coordination.verification import ProducerProtocol

if TYPE_CHECKING:
    from ottla.protocol.message import Message
    from simulation_kit.broker import Life
    from simulation_kit.coordinated import CoordinatedWorld

# Longer than a message and its answer are under way.
PATIENCE_MS = 400
TRANSACTION_TIMEOUT_MS = 2500
# The partition that groups commit offsets of.
READ = ("orders", 0)

AGAIN = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
}
_FENCED = {
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.TRANSACTION_ABORTABLE,
    # The producer's batches were aborted away with an epoch that it does not know of.
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
}


class GaveUp(Exception):
    """The cluster does not answer, or refuses: the client has to begin anew."""


@dataclass
class Attempt:
    """A transaction as its producer knows it."""

    transactional_id: str
    producer: Identity
    # Partition -> values.
    values: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    group: str | None = None
    offset: int = -1
    # When each of its requests was first sent, if it was acknowledged.
    acked: list[int] = field(default_factory=list)
    # When its end was first asked for, -1 if never.
    asked_at: int = -1
    wants_commit: bool = False
    # What the coordinator said of the end; None: nothing that can be relied on.
    committed: bool | None = None

    def __str__(self) -> str:
        producer_id, epoch = self.producer
        values = " ".join(
            value.rstrip(b"x").decode() for values in self.values.values() for value in values
        )
        offset = "" if self.group is None else f", offset {self.offset}"
        ends = {None: "in doubt", True: "committed", False: "aborted"}
        named = f"{self.transactional_id} ({producer_id}/{epoch})"
        return f"{named}, {ends[self.committed]}: {values}{offset}"


class Asking:
    """Questions to whoever leads a partition."""

    def __init__(self, world: CoordinatedWorld) -> None:
        self.world = world
        self.chance = world.chance
        self.loop = world.loop

    async def ask(
        self,
        topic: str,
        index: int,
        send: Callable[[Life, Callable[..., None]], None],
        late: bool,
        patience_ms: int = 0,
    ) -> Any:
        """The answer, or None if there was none in time. `late`: the request may come once more."""
        world, chance = self.world, self.chance
        leader = world.controller.image.topics[topic].partitions[index].leader
        if leader < 0 or chance.random() < 0.1:
            leader = chance.choice(list(world.brokers))
        came: asyncio.Future[Any] = self.loop.create_future()

        def answered(*answer: Any) -> None:
            def arrive() -> None:
                if not came.done():
                    came.set_result(answer)

            if not world.is_lost(leader, -1):
                world.after(world.delay(), arrive)

        if not world.is_lost(-1, leader):
            world.tell(leader, lambda life: send(life, answered))
        if late and world.loss and chance.random() < 0.1:
            later = chance.randint(1, 4000)
            world.after(later, lambda: world.tell(leader, lambda life: send(life, lambda *_: None)))

        def lost() -> None:
            if not came.done():
                came.set_result(None)

        self.loop.call_later((patience_ms or PATIENCE_MS) / 1000, lost)
        return await came

    async def request(
        self,
        topic: str,
        key: str,
        message: Message,
        version: int,
        late: bool,
        patience_ms: int = 0,
    ) -> Any:
        """To the coordinator of a key."""

        def send(life: Life, answered: Callable[..., None]) -> None:
            assert life.coordination is not None
            life.coordination.serve(message, version, answered)

        index = partition_for(key, self.world.topics[topic])
        answer = await self.ask(topic, index, send, late, patience_ms)
        return None if answer is None else answer[0]

    async def pause(self, most: int = 100) -> None:
        await self.loop.sleep(self.chance.randint(1, most))


class TransactionalProducer(Asking):
    """Writes transactions, one after the other, and begins anew when it is told that it is fenced."""

    def __init__(
        self, world: CoordinatedWorld, transactional_id: str, protocol: int, rest_ms: int = 100
    ) -> None:
        """`rest_ms`: how long it is away, at most, before it begins anew."""
        super().__init__(world)
        self.rest_ms = rest_ms
        self.transactional_id = transactional_id
        self.is_second = protocol == 2
        self.client = (
            ProducerProtocol.SECOND_PROTOCOL if self.is_second else ProducerProtocol.KNOWS_ABORTABLE
        )
        self.producer = NOBODY
        self.sequences: dict[tuple[str, int], int] = {}

    async def run(self) -> None:
        while not self.world.is_closing:
            await self.pause(self.rest_ms)
            try:
                await self._begin()
                for _ in range(self.chance.randint(1, 8)):
                    if self.world.is_closing:
                        break
                    await self._transaction()
                    await self.pause(30)
            except GaveUp:
                pass

    async def _coordinator(self, message: Message, version: int) -> Any:
        return await self.request(
            TRANSACTION_STATE, self.transactional_id, message, version, late=self.is_second
        )

    async def _begin(self) -> None:
        while True:
            answer = await self._coordinator(
                InitProducerIdRequest(
                    transactional_id=self.transactional_id,
                    transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                ),
                4,
            )
            if answer is not None and not answer.error_code:
                break
            if self.world.is_closing:
                raise GaveUp
            self._check_code(answer, refusals=())
            await self.pause()
        self._take(Identity(answer.producer_id, answer.producer_epoch))
        self.world.initialized(self.transactional_id, self.producer)

    def _take(self, identity: Identity) -> None:
        self.producer = identity
        self.sequences.clear()
        self.world.identified(identity, self)

    def _check_code(self, answer: Any, refusals: Any = _FENCED) -> None:
        """GaveUp if the producer has to begin anew; an answer that nobody expects is a fault."""
        code = None if answer is None else ErrorCode(answer.error_code)
        if code is not None and code not in AGAIN:
            if code not in refusals:
                self.world.broken(f"{self.transactional_id} was told {code.name}")
            raise GaveUp

    async def _transaction(self) -> None:
        attempt = Attempt(self.transactional_id, self.producer)
        self.world.attempts.append(attempt)
        keys = self.chance.sample(self.world.keys, self.chance.randint(1, len(self.world.keys)))
        for key in keys:
            await self._write(attempt, key)
        if self.chance.random() < 0.5:
            await self._commit_offset(attempt)
        if self.chance.random() < 0.1:
            # It stands still, perhaps for longer than its transaction may.
            await self.pause(2 * TRANSACTION_TIMEOUT_MS)
        await self._end(attempt, self.chance.random() < 0.7)

    async def _write(self, attempt: Attempt, key: tuple[str, int]) -> None:
        if not self.is_second:
            topic = AddPartitionsToTxnTopic(name=key[0], partitions=[key[1]])
            await self._insist(
                attempt,
                lambda: self._coordinator(
                    AddPartitionsToTxnRequest(
                        v3_and_below_transactional_id=self.transactional_id,
                        v3_and_below_producer_id=attempt.producer.producer_id,
                        v3_and_below_producer_epoch=attempt.producer.epoch,
                        v3_and_below_topics=[topic],
                    ),
                    3,
                ),
                lambda answer: (
                    answer.results_by_topic_v3_and_below[0]
                    .results_by_partition[0]
                    .partition_error_code
                ),
            )
        for _ in range(self.chance.randint(1, 2)):
            values = [self.world.new_value() for _ in range(self.chance.randint(1, 3))]
            sequence = self.sequences.get(key, 0)
            batch = build_batch(
                [Record(at, self.world.now, b"k", value, ()) for at, value in enumerate(values)],
                producer_id=attempt.producer.producer_id,
                producer_epoch=attempt.producer.epoch,
                base_sequence=sequence,
                transactional=True,
            )
            attempt.values.setdefault(key, []).extend(values)

            def send(life: Life, answered: Callable[..., None], batch: bytes = batch) -> None:
                assert life.coordination is not None
                life.coordination.produce(key, batch, self.transactional_id, self.client, answered)

            answer = await self._insist(
                attempt,
                lambda send=send: self.ask(*key, send, self.is_second),
                lambda told: told[0],
            )
            self.sequences[key] = sequence + len(values)
            for at, value in enumerate(values):
                self.world.acked[key][answer[1] + at] = value

    async def _commit_offset(self, attempt: Attempt) -> None:
        group = attempt.group = f"group of {self.transactional_id}"
        attempt.offset = self.world.new_offset()
        producer_id, epoch = attempt.producer
        if not self.is_second:
            await self._insist(
                attempt,
                lambda: self._coordinator(
                    AddOffsetsToTxnRequest(
                        transactional_id=self.transactional_id,
                        producer_id=producer_id,
                        producer_epoch=epoch,
                        group_id=group,
                    ),
                    3,
                ),
                lambda answer: answer.error_code,
            )
        topic, index = READ
        part = TxnOffsetCommitRequestPartition(
            partition_index=index, committed_offset=attempt.offset
        )
        message = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[part])],
        )
        await self._insist(
            attempt,
            lambda: self.request(
                CONSUMER_OFFSETS, group, message, 5 if self.is_second else 4, self.is_second
            ),
            lambda answer: answer.topics[0].partitions[0].error_code,
        )

    async def _insist(
        self, attempt: Attempt, ask: Callable[[], Any], code_of: Callable[[Any], int]
    ) -> Any:
        """Ask until it is done; GaveUp if it will not be."""
        began = self.world.now
        while True:
            answer = await ask()
            if answer is not None:
                code = ErrorCode(code_of(answer))
                if code is ErrorCode.NONE:
                    attempt.acked.append(began)
                    return answer
                if code in _FENCED:
                    raise GaveUp
                if code not in AGAIN:
                    self.world.broken(f"{attempt} was told {code.name}")
            if self.world.now - began > 3 * TRANSACTION_TIMEOUT_MS:
                raise GaveUp
            await self.pause()

    async def _end(self, attempt: Attempt, commit: bool) -> None:
        attempt.wants_commit = commit
        attempt.asked_at = self.world.now
        producer_id, epoch = attempt.producer
        message = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=commit,
        )
        while True:
            answer = await self._coordinator(message, 5 if self.is_second else 4)
            if answer is not None and not answer.error_code:
                break
            self._check_code(answer)
            if self.world.now - attempt.asked_at > 4 * TRANSACTION_TIMEOUT_MS:
                raise GaveUp
            await self.pause()
        attempt.committed = commit
        self.world.ended(attempt)
        if self.is_second:
            self._take(Identity(answer.producer_id, answer.producer_epoch))


class Committer(Asking):
    """Commits ever higher offsets, and asks what is committed."""

    def __init__(self, world: CoordinatedWorld, group: str) -> None:
        super().__init__(world)
        self.group = group
        self.acked = -1
        self.sent = -1

    async def run(self) -> None:
        while not self.world.is_closing:
            await self.commit()
            await self.pause(60)
            if self.chance.random() < 0.5:
                await fetch_offset(self, self.group)

    async def commit(self) -> None:
        offset = self.sent = self.world.new_offset()
        topic, index = READ
        part = OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
        message = OffsetCommitRequest(
            group_id=self.group, topics=[OffsetCommitRequestTopic(name=topic, partitions=[part])]
        )
        while not self.world.is_closing:
            answer = await self.request(CONSUMER_OFFSETS, self.group, message, 8, late=False)
            if answer is not None:
                code = ErrorCode(answer.topics[0].partitions[0].error_code)
                if code is ErrorCode.NONE:
                    self.acked = offset
                    self.world.read_or_acked(self.group, offset)
                    return
                if code not in AGAIN:
                    self.world.broken(f"{self.group} was told {code.name}")
            await self.pause()


async def fetch_offset(asking: Asking, group: str) -> int | None:
    """What is committed for a group, if somebody knows; it must not go back."""
    world = asking.world
    least = world.least_offset.get(group, -1)
    topic, index = READ
    message = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id=group,
                topics=[OffsetFetchRequestTopics(name=topic, partition_indexes=[index])],
            )
        ]
    )
    answer = await asking.request(CONSUMER_OFFSETS, group, message, 9, late=False)
    if answer is None or answer.groups[0].error_code:
        return None
    found: int = answer.groups[0].topics[0].partitions[0].committed_offset
    if found < least:
        world.broken(f"{group} had committed {least}, and is told {found}")
    world.read_or_acked(group, found)
    return found
