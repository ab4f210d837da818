"""Guards of the coordinators that are broken on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from ottla.coordinator.groups.classic.group import ClassicGroup
from ottla.coordinator.groups.shard import GroupShard
from ottla.coordinator.shard import Effects
from ottla.coordinator.transactions import shard as transactions
from ottla.coordinator.transactions.shard import TransactionShard
from ottla.coordinator.transactions.states import State
from ottla.coordinator.transactions.transaction import Transaction
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.replication.partition import Partition, Role
from ottla.server.coordination import markers
from ottla.server.coordination.coordinators import Coordinators
from ottla.server.handlers.transactions import write_txn_markers
from simulation_kit.coordinated import run_coordinated_seed
from simulation_kit.members import run_grouped_seed
from simulation_kit.mutations.registry import MUTATIONS, Mutation

Patches = list[tuple[Any, str, Any]]


def mutation(
    what: str, run: Callable[..., Any] = run_coordinated_seed
) -> Callable[[Callable[[], Patches]], None]:
    def register(patches: Callable[[], Patches]) -> None:
        name = patches.__name__
        MUTATIONS[name] = Mutation(name, what, patches, run)

    return register


@mutation("A coordinator answers before what it knows is committed")
def answer_before_commit() -> Patches:
    return [(Coordinators, "_is_settled", lambda *_: True)]


@mutation("A marker counts as written when it is appended, not when it is committed")
def markers_before_commit() -> Patches:
    original = markers.append_marker

    def append_marker(broker: Any, target: Any, marker: Any, done: Any) -> None:
        def at_once(_: Partition, _end: int, reached: Callable[[ErrorCode], None]) -> None:
            reached(ErrorCode.NONE)

        with patch.object(Partition, "once_committed", at_once):
            original(broker, target, marker, done)

    return [
        (markers, "append_marker", append_marker),
        (write_txn_markers, "append_marker", append_marker),
    ]


@mutation("A coordinator keeps what it knew over a term")
def keep_shards_over_terms() -> Patches:
    original = Coordinators.follow_leader

    def follow_leader(self: Any, partition: Partition) -> None:
        held = self._held.get(partition.index)
        if held is not None and partition.role is Role.LEADER:
            held.leader_epoch = partition.leader_epoch
        original(self, partition)

    def unload(self: Any, index: int) -> None:
        held = self._held.get(index)
        if held is None or held.phase.name == "LOADING":
            self._held.pop(index, None)

    return [(Coordinators, "follow_leader", follow_leader), (Coordinators, "unload", unload)]


@mutation("A producer writes on whatever its epoch")
def members_are_not_fenced() -> Patches:
    original = transactions.fault_of_member

    def fault(transaction: Transaction | None, producer: Any) -> ErrorCode | None:
        code = original(transaction, producer)
        return None if code is ErrorCode.PRODUCER_FENCED else code

    return [(transactions, "fault_of_member", fault)]


@mutation("A producer ends a transaction whatever its epoch")
def ends_are_not_fenced() -> Patches:
    original = transactions.fault_of_end

    def fault(transaction: Transaction, producer: Any, bumps: bool) -> ErrorCode | None:
        code = original(transaction, producer, bumps)
        return None if code is ErrorCode.PRODUCER_FENCED else code

    return [(transactions, "fault_of_end", fault)]


@mutation("A producer that takes over leaves the open transaction as it is")
def takeovers_do_not_abort() -> Patches:
    def fence(self: Any, ticket: int, transaction: Any, answer: Any, now: Any, _: Any) -> Effects:
        ended = transaction._step(State.ONGOING, epoch=transaction.epoch + 1)
        holder = ended.holder
        store: Effects = self._store(ticket, ended, lambda: answer(ErrorCode.NONE, holder), answer)
        return store

    return [(TransactionShard, "_fence", fence)]


@mutation("Offsets of a transaction count before it commits")
def offsets_count_at_once() -> Patches:
    original = GroupShard.replay

    def replay(self: GroupShard, record: Any) -> None:
        original(self, record._replace(producer_id=-1, producer_epoch=-1))

    return [(GroupShard, "replay", replay)]


@mutation("Who was a member in an older generation commits", run_grouped_seed)
def generations_are_not_fenced() -> Patches:
    original = ClassicGroup.check_commit

    def check_commit(self: ClassicGroup, committer: Any) -> None:
        try:
            original(self, committer)
        except ProtocolError as error:
            if error.code is not ErrorCode.ILLEGAL_GENERATION:
                raise

    return [(ClassicGroup, "check_commit", check_commit)]
