"""The coordinators of one simulated broker: the real state machines, the real runtime over them
(`server.coordination`) and the real handlers of their requests, over partitions that are replicated by
the simulation.

`Coordination` is what the runtime and the handlers know as the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from inspect import isgenerator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.cluster.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from ottla.coordinator.groups.settings import GroupSettings
from ottla.coordinator.groups.shard import GroupShard
from ottla.coordinator.transactions.settings import TransactionSettings
from ottla.coordinator.transactions.shard import TransactionShard
from ottla.coordinator.transactions.transaction import Identity
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.frame import has_flexible_response_header, parse_response_header
from ottla.protocol.message import Message
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.join_group import JoinGroupRequest
from ottla.protocol.messages.leave_group import LeaveGroupRequest
from ottla.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest
from ottla.protocol.messages.sync_group import SyncGroupRequest
from ottla.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from ottla.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from ottla.record.batch import read_header
from ottla.record.errors import InvalidBatch
from ottla.replication.partition import Role
from ottla.server.api import Later, Request
from ottla.server.broker import TRANSACTION_VERSION
from ottla.server.coordination.coordinators import Coordinators
from ottla.server.coordination.markers import Markers
from ottla.server.coordination.metadata_view import ImageView
from ottla.server.coordination.verification import ProducerProtocol, Verdict, is_open, verify
from ottla.server.failures import error_code
from ottla.server.handlers.groups.heartbeat import heartbeat
from ottla.server.handlers.groups.join_group import join_group
from ottla.server.handlers.groups.leave_group import leave_group
from ottla.server.handlers.groups.offset_commit import offset_commit
from ottla.server.handlers.groups.offset_commit.repeated import RepeatedCommits
from ottla.server.handlers.groups.offset_fetch import offset_fetch
from ottla.server.handlers.groups.sync_group import sync_group
from ottla.server.handlers.transactions.add_offsets_to_txn import add_offsets_to_txn
from ottla.server.handlers.transactions.add_partitions_to_txn import add_partitions_to_txn
from ottla.server.handlers.transactions.end_txn import end_txn
from ottla.server.handlers.transactions.init_producer_id import init_producer_id
from ottla.server.handlers.transactions.txn_offset_commit import txn_offset_commit
from ottla.server.handlers.transactions.write_txn_markers import write_txn_markers
from ottla.server.network.activity import Activity
from ottla.storage.errors import StorageError
from ottla.wire.errors import ConnectFailed, RequestTimeout
from simulation_kit.loop import SimulatedLoop

if TYPE_CHECKING:
    from ottla.cluster.metadata import ClusterImage
    from ottla.replication.partition import Partition
    from simulation_kit.broker import Life

T = TypeVar("T")

HANDLERS: dict[type[Message], Callable[[Any], Any]] = {
    AddOffsetsToTxnRequest: add_offsets_to_txn,
    AddPartitionsToTxnRequest: add_partitions_to_txn,
    EndTxnRequest: end_txn,
    HeartbeatRequest: heartbeat,
    InitProducerIdRequest: init_producer_id,
    JoinGroupRequest: join_group,
    LeaveGroupRequest: leave_group,
    OffsetCommitRequest: offset_commit,
    OffsetFetchRequest: offset_fetch,
    SyncGroupRequest: sync_group,
    TxnOffsetCommitRequest: txn_offset_commit,
    WriteTxnMarkersRequest: write_txn_markers,
}
# Between brokers the newest version is spoken.
VERSIONS = {AddPartitionsToTxnRequest: 5, WriteTxnMarkersRequest: 2}
# Longer than any message of the first transaction protocol is under way, which knows no better: a
# marker that is repeated must not come later than the transaction that it ends.
PEER_TIMEOUT_MS = 400
GROUP_SETTINGS = GroupSettings(
    group_initial_rebalance_delay_ms=100, group_min_session_timeout_ms=100
)
SETTINGS = TransactionSettings(transaction_abort_timed_out_transaction_cleanup_interval_ms=200)


# Of everybody who asks.
CLIENT = SimpleNamespace(address="127.0.0.1:1", client_id="a client", activity=Activity())


class Coordination:
    """Stands for the broker (`server.broker.Broker`), as far as coordinators know it."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.world = life.world
        self.id = life.id
        self.loop = SimulatedLoop(life.world, lambda: life.ended)
        self.config = SimpleNamespace(
            offsets_commit_timeout_ms=1000, transaction_partition_verification_enable=True
        )
        self.is_serving = True
        # Its parts, as far as anybody asks for them.
        self.partitions = _Partitions(life)
        self.peers = self.reads = self.producer_ids = self.lanes = self
        broker: Any = self
        self.markers = Markers(broker)
        self.groups: Coordinators[GroupShard] = Coordinators(
            broker, CONSUMER_OFFSETS, self._group_shard
        )
        self.commits = RepeatedCommits(broker, self._serve_decoded, learned_one_in=1)
        # What members' commits have in common: each has one connection, as it were.
        self.repeated_commits: dict[str, Any] = {}
        self.transactions: Coordinators[TransactionShard] = Coordinators(
            broker, TRANSACTION_STATE, self._transaction_shard, self.markers.forget
        )

    @property
    def image(self) -> ClusterImage:
        assert self.life.image is not None
        return self.life.image

    def _group_shard(self, _: int) -> GroupShard:
        return GroupShard(GROUP_SETTINGS, ImageView(lambda: self.image), self.world.new_member_id)

    def _transaction_shard(self, index: int) -> TransactionShard:
        partition = self.partitions.get(TRANSACTION_STATE, index)
        assert partition is not None
        return TransactionShard(
            SETTINGS,
            coordinator_epoch=partition.leader_epoch,
            level=lambda: self.image.features.get(TRANSACTION_VERSION, 0),
            write_markers=partial(self.markers.write, index),
        )

    def partition_changed(self, partition: Partition) -> None:
        if partition.topic == CONSUMER_OFFSETS:
            self.groups.follow_leader(partition)
        elif partition.topic == TRANSACTION_STATE:
            self.transactions.follow_leader(partition)

    # What the runtime asks for ------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        return self.loop.create_task(work, name=name)

    async def read(self, piece: Any) -> bytes:
        """A read by another thread: it takes a while."""
        await self.loop.sleep(self.world.chance.randint(0, 30))
        data: bytes = piece.read()
        return data

    def is_slow(self, _folder: str) -> bool:
        return False

    async def next(self) -> int:
        """A new producer id."""
        await self.loop.sleep(self.world.chance.randint(0, 30))
        return self.world.new_producer_id()

    async def request(
        self, broker_id: int, _purpose: str, message: Message, _answer: type[Message]
    ) -> Message:
        """To another broker."""
        if broker_id not in self.image.brokers:
            raise ConnectFailed(f"broker {broker_id}", "it is not part of the cluster")
        came: asyncio.Future[Message] = self.loop.create_future()

        def answer(response: Message) -> None:
            if not self.life.ended and not came.done():
                came.set_result(response)

        def serve(other: Life) -> None:
            assert other.coordination is not None
            other.coordination.serve(
                message,
                VERSIONS[type(message)],
                lambda response: self.world.send(other.id, self.id, lambda _: answer(response)),
            )

        def late() -> None:
            if not came.done():
                came.set_exception(RequestTimeout("a broker", type(message).__name__, 1))

        self.world.send(self.id, broker_id, serve)
        self.loop.call_later(PEER_TIMEOUT_MS / 1000, late)
        return await came

    # What clients and other brokers ask for -----------------------------------------------------

    def serve(self, message: Message, version: int, answered: Callable[[Message], None]) -> None:
        if self.life.image is None:
            return  # its port is closed until it is part of the cluster
        if isinstance(message, OffsetCommitRequest):
            body = message.encode(version)
            connection: Any = _Connection(version, answered)
            connection.repeated_commit = self.repeated_commits.get(message.member_id)
            self.commits.serve(connection, memoryview(body), 0, len(body), version, 0)
            self.repeated_commits[message.member_id] = connection.repeated_commit
        else:
            self._serve(message, version, answered)

    def _serve_decoded(
        self, connection: Any, view: memoryview, at: int, stop: int, version: int, _: int
    ) -> None:
        """A commit that is not like the one before it."""
        message, _ = OffsetCommitRequest.decode(view[:stop], at, version)
        self._serve(message, version, connection.answered)

    def _serve(self, message: Message, version: int, answered: Callable[[Message], None]) -> None:
        broker: Any = self
        connection: Any = CLIENT
        outcome = HANDLERS[type(message)](Request(broker, connection, message, version, 0))
        if isgenerator(outcome):
            try:
                while True:
                    next(outcome)
            except StopIteration as stop:
                outcome = stop.value
        if isinstance(outcome, Message):
            answered(outcome)
        elif isinstance(outcome, Later):
            outcome.done = answered
        else:
            if asyncio.iscoroutine(outcome):
                outcome = self.spawn(outcome, "request")
            outcome.add_done_callback(lambda done: answered(done.result()))

    def produce(
        self,
        key: tuple[str, int],
        batch: bytes,
        transactional_id: str,
        client: ProducerProtocol,
        answered: Callable[[ErrorCode, int], None],
    ) -> None:
        """A batch of a transaction, with acks=all: the steps of Produce that matter to it."""
        if self.life.image is None:
            return
        partition = self.partitions.get(*key)
        header = read_header(batch)
        producer = Identity(header.producer_id, header.producer_epoch)
        broker: Any = self

        def append(verdict: Verdict) -> None:
            assert partition is not None
            code = verdict.get(key, ErrorCode.NONE)
            try:
                if code:
                    raise ProtocolError(code)
                partition.check_leader()
                if partition.under_min_isr:
                    raise ProtocolError(ErrorCode.NOT_ENOUGH_REPLICAS)
                offset, _, _, end, _ = partition.append(bytearray(batch), self.world.now)
            except (ProtocolError, StorageError, InvalidBatch) as error:
                answered(error_code(error), -1)
                return
            partition.once_committed(end, lambda code: answered(code, offset))

        if partition is None or partition.role is not Role.LEADER:
            answered(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        elif is_open(partition, producer):
            append({})
        else:
            verify(broker, transactional_id, producer, [key], client, append)


class _Connection:
    """A member's, for one commit, with the place of its answer."""

    closed = False

    def __init__(self, version: int, answered: Callable[[Message], None]) -> None:
        self.answered = answered
        self._version = version

    def reserve(self) -> _Connection:
        return self

    def fill(self, parts: list[bytes]) -> None:
        (frame,) = parts
        flexible = has_flexible_response_header(OffsetCommitResponse.api_key, self._version)
        _, at = parse_response_header(frame, 4, flexible)
        self.answered(OffsetCommitResponse.decode(frame, at, self._version)[0])


class _Partitions:
    """`server.partitions.Partitions`, as far as coordinators know it."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self.by_name = self

    def get(self, topic: str, index: Any = ()) -> Any:
        """One partition; or of a topic (by_name) all of them."""
        if isinstance(index, int):
            return self._life.partitions.get((topic, index))
        return [held for key, held in self._life.partitions.items() if key[0] == topic]
