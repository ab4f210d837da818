"""Moves of partitions between brokers (reassignments, KIP-455): begun, replaced, ended, taken back.

A partition that is moved has, until the move ends, the replicas of the target and those that are to go:

    replicas   the target, in its order, then those that are to go
    adding     those of the target that were not replicas before
    removing   those that are to go

New replicas copy the log and join the in-sync set as any follower does. Once all of them have joined,
the ones to go are dropped in the same write in which the move ends: from then on their brokers delete
their logs. If one of them led, a replica of the target leads in that write. All of it is in the
partition's node, so it does not matter who dies: the next controller finds the move as it was, and each
change of the in-sync set may be the one that ends it.

- Whenever a replica is dropped the leader epoch rises, also if the leader stays: what a dropped replica
  asked for while it had a log must not count for it once it is a replica again, without one.
- A second move takes the place of the first: what the first was adding, and the second does not want, is
  dropped at once. Where too few others are in sync such replicas stay until the second move ends.
- A move that is taken back (no target) is a second move to the replicas that there were before it.
- A move that adds a replica on a broker which is forgotten (unregistered) would wait for it for ever. It
  goes on without that replica, with one of those that were to go in its place; where nothing else is
  added it is taken back. Older versions left such moves as they were: a controller looks for them
  whenever it looks at the registrations of brokers, first when it takes office.
- While a partition is moved, `min.insync.replicas` counts without those on their way in: a topic that
  was content with one replica goes on with it until the others have joined.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from ottla.cluster.decisions import elections
from ottla.cluster.decisions.brokers import put_in_steps
from ottla.cluster.decisions.elections import ElectionPolicy, PolicyOf
from ottla.cluster.draft import Draft
from ottla.cluster.metadata import Partition, Topic
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.turns import Steps, stepwise


@dataclass(frozen=True, slots=True)
class WantedMove:
    """The replicas that a partition is to have; None takes its move back."""

    topic: str
    index: int
    replicas: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class MoveResult:
    topic: str
    index: int
    error: ProtocolError | None = None


@stepwise
def alter_moves(
    draft: Draft,
    wanted: Sequence[WantedMove],
    policy_of: PolicyOf,
    *,
    may_change_factor: bool = True,
) -> Steps[list[MoveResult]]:
    """One result for each partition, in order. The checks are those of Kafka's controller."""
    results: list[MoveResult] = []
    changed: dict[str, dict[int, Partition]] = {}
    for each in wanted:
        yield
        topic = draft.topics.get(each.topic)
        try:
            if topic is None or not 0 <= each.index < len(topic.partitions):
                raise ProtocolError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"There is no partition {each.topic}-{each.index}.",
                )
            states = changed.setdefault(each.topic, {})
            state = states.get(each.index, topic.partitions[each.index])
            policy = policy_of(each.topic)
            if each.replicas is None:
                newer = taken_back(state, draft.eligible, policy)
            else:
                _check_target(draft, state, each.replicas, may_change_factor)
                newer = begun(state, each.replicas, draft.eligible, policy)
            if newer is not state:
                states[each.index] = ended(newer, draft.eligible, policy)
            results.append(MoveResult(each.topic, each.index))
        except ProtocolError as error:
            results.append(MoveResult(each.topic, each.index, error.with_traceback(None)))
    yield from _put(draft, changed)
    return results


@stepwise
def end_moves(draft: Draft, topics: Iterable[Topic], policy_of: PolicyOf) -> Steps[None]:
    """Ends the moves of these topics that can be: something changed that they may have waited for."""
    eligible = draft.eligible
    changed: dict[str, dict[int, Partition]] = {}
    for topic in topics:
        yield
        for state in topic.partitions:
            if is_moving(state):
                newer = ended(state, eligible, policy_of(topic.name))
                if newer is not state:
                    changed.setdefault(topic.name, {})[state.index] = newer
    yield from _put(draft, changed)


@stepwise
def move_without_forgotten(draft: Draft, policy_of: PolicyOf) -> Steps[None]:
    """Changes all moves that add replicas on brokers that are not registered, alive or away."""
    eligible = draft.eligible
    changed: dict[str, dict[int, Partition]] = {}
    for topic in draft.topics.values():
        yield
        for state in topic.partitions:
            newer = state
            for broker_id in state.adding:
                if broker_id not in draft.brokers and broker_id not in draft.fenced:
                    target = _target_without(newer, broker_id)
                    newer = begun(newer, target, eligible, policy_of(topic.name))
            if newer is not state:
                newer = ended(newer, eligible, policy_of(topic.name))
                changed.setdefault(topic.name, {})[state.index] = newer
    yield from _put(draft, changed)


def is_moving(partition: Partition) -> bool:
    return bool(partition.adding or partition.removing)


def begun(
    partition: Partition, target: Sequence[int], alive: Collection[int], policy: ElectionPolicy
) -> Partition:
    """The partition on its way to the target, in place of the move it may have been in."""
    before = [each for each in partition.replicas if each not in partition.adding]
    before += _indispensable(partition, before, target, alive, policy)
    removing = tuple(sorted(each for each in before if each not in target))
    changed = replace(
        partition,
        replicas=(*target, *removing),
        adding=tuple(sorted(each for each in target if each not in before)),
        removing=removing,
    )
    if changed == partition:
        return partition
    return elections.without_replicas(partition, changed, alive, policy)


def taken_back(partition: Partition, alive: Collection[int], policy: ElectionPolicy) -> Partition:
    """The partition with, or on its way to, the replicas that it had before its move. ProtocolError if
    it is in none."""
    if not is_moving(partition):
        raise ProtocolError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    before = [each for each in partition.replicas if each not in partition.adding]
    return begun(partition, before, alive, policy)


def _target_without(partition: Partition, broker_id: int) -> list[int]:
    """Where a move goes that cannot add a replica on this broker. The target has no fewer replicas than
    the partition before the move, unless the move was to leave it with fewer."""
    before = [each for each in partition.replicas if each not in partition.adding]
    if set(partition.adding) == {broker_id}:
        return before
    target = [each for each in partition.replicas if each not in partition.removing]
    place = target.index(broker_id)
    target.remove(broker_id)
    if len(target) < len(before):
        # In its place, so that who is preferred to lead stays in front; one that is in sync if any is.
        stays = sorted(partition.removing, key=lambda each: (each not in partition.isr, each))
        target[place:place] = stays[:1]
    return target


def _indispensable(
    partition: Partition,
    before: Sequence[int],
    target: Sequence[int],
    alive: Collection[int],
    policy: ElectionPolicy,
) -> list[int]:
    """Those that a move was adding and nobody wants any more, and that have what too few others have."""
    had = {*partition.isr, *partition.elr, partition.last_known_leader}
    unwanted = [each for each in partition.adding if each not in target and each in had]
    others = [each for each in partition.isr if each not in unwanted]
    if any(each in alive for each in others) and len(others) >= min(policy.min_isr, len(before)):
        return []
    return unwanted


def ended(partition: Partition, alive: Collection[int], policy: ElectionPolicy) -> Partition:
    """The partition at the end of its move, if it has come to it: all that were added are in sync, those
    of the target that are alive too, and they are as many as `min.insync.replicas` asks for."""
    if not is_moving(partition):
        return partition
    target = [each for each in partition.replicas if each not in partition.removing]
    in_sync = [each for each in target if each in partition.isr]
    if not (
        all(each in in_sync for each in partition.adding)
        and all(each in in_sync for each in target if each in alive)
        and any(each in alive for each in in_sync)
        and len(in_sync) >= min(policy.min_isr, len(target))
    ):
        return partition
    changed = replace(partition, replicas=tuple(target), adding=(), removing=())
    return elections.without_replicas(partition, changed, alive, policy)


def _check_target(
    draft: Draft, state: Partition, target: Sequence[int], may_change_factor: bool
) -> None:
    if not target:
        raise _bad("A partition has at least one replica.")
    seen: set[int] = set()
    for each in target:
        if each in seen:
            raise _bad(f"Broker {each} is named twice.")
        # One that is a replica already may have been forgotten: it is not what is asked for here.
        if each not in draft.brokers and each not in draft.fenced and each not in state.replicas:
            raise _bad(f"There is no broker {each} in the cluster.")
        seen.add(each)
    factor = len(state.replicas) - len(state.adding)
    if not may_change_factor and len(target) != factor:
        raise ProtocolError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The partition has {factor} replicas, and the number is not to change.",
        )


def _bad(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def _put(draft: Draft, changed: dict[str, dict[int, Partition]]) -> Steps[None]:
    topics = []
    for name, states in changed.items():
        if states:
            topic = draft.topics[name]
            partitions = tuple(
                states.get(index, each) for index, each in enumerate(topic.partitions)
            )
            topics.append(replace(topic, partitions=partitions))
            yield
    yield from put_in_steps(draft, topics)
