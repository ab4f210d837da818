"""Changes that concern single partitions: the in-sync sets that leaders ask for, and elections on
demand. Checks and their order are those of Kafka's controller."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from ottla.cluster.decisions import elections, moves
from ottla.cluster.decisions.brokers import check_broker_epoch, put_in_steps
from ottla.cluster.decisions.elections import ElectionPolicy, PolicyOf
from ottla.cluster.draft import Draft
from ottla.cluster.metadata import NO_LEADER, Partition, Topic
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.turns import Steps, stepwise


@dataclass(frozen=True, slots=True)
class WantedIsr:
    """What a leader asks for: its partition's in-sync replicas, as pairs of broker and broker epoch
    (-1: not known), and which state of the partition it goes by."""

    topic_id: bytes
    index: int
    leader_epoch: int
    partition_epoch: int
    isr: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class IsrResult:
    topic_id: bytes
    index: int
    error: ErrorCode
    state: Partition | None = None  # as it is now


class ElectionType(IntEnum):
    """How a leader is elected; the numbers are those of ElectLeaders."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class ElectionResult:
    topic: str
    index: int
    error: ProtocolError | None = None


@stepwise
def alter_isr(
    draft: Draft,
    broker_id: int,
    broker_epoch: int,
    wanted: Sequence[WantedIsr],
    policy_of: PolicyOf,
) -> Steps[list[IsrResult]]:
    """One result for each partition, in order. A leader that leaves itself out resigns: its log has
    failed, and another member is to lead. A follower may leave, and nothing else: its log is damaged, so
    that it is not eligible to lead either. ProtocolError if the broker is not the one that was taken in:
    its former life must change nothing."""
    check_broker_epoch(draft, broker_id, broker_epoch)
    results: list[IsrResult] = []
    changed: dict[str, dict[int, Partition]] = {}
    for each in wanted:
        yield
        topic = draft.topics_by_id.get(each.topic_id)
        if topic is None:
            results.append(IsrResult(each.topic_id, each.index, ErrorCode.UNKNOWN_TOPIC_ID))
            continue
        if not 0 <= each.index < len(topic.partitions):
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            results.append(IsrResult(each.topic_id, each.index, error))
            continue
        of_topic = changed.setdefault(topic.name, {})
        state = of_topic.get(each.index, topic.partitions[each.index])
        error = _fault(draft, state, broker_id, each)
        if error is ErrorCode.NONE:
            members = [one for one, _ in each.isr]
            policy = policy_of(topic.name)
            if state.leader != broker_id:
                state = _without_damaged(draft, state, broker_id, policy)
            elif broker_id in members:
                state = elections.with_isr(state, members, policy)
            else:
                others = draft.eligible - {broker_id}
                state = elections.without_broker(
                    state, broker_id, others, policy._replace(unclean=False)
                )
            state = moves.ended(state, draft.eligible, policy)
            of_topic[each.index] = state
        results.append(IsrResult(each.topic_id, each.index, error, state))
    topics = []
    for name, states in changed.items():
        if states:
            topics.append(_with_partitions(draft.topics[name], states))
            yield
    yield from put_in_steps(draft, topics)
    return results


def _fault(draft: Draft, state: Partition, broker_id: int, wanted: WantedIsr) -> ErrorCode:
    if wanted.leader_epoch > state.leader_epoch or wanted.partition_epoch > state.partition_epoch:
        return ErrorCode.NOT_CONTROLLER  # the leader knows more than this controller
    if wanted.leader_epoch < state.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    members = [member for member, _ in wanted.isr]
    if state.leader != broker_id and not (
        broker_id in state.replicas and set(members) == set(state.isr) - {broker_id}
    ):
        return ErrorCode.INVALID_REQUEST
    if wanted.partition_epoch < state.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    if state.leader != broker_id:
        # It leaves for good, so somebody must be there who has everything.
        is_led = state.leader in members and state.leader in draft.eligible
        return ErrorCode.NONE if is_led else ErrorCode.INELIGIBLE_REPLICA
    if not set(members) <= set(state.replicas):
        return ErrorCode.INVALID_REQUEST
    if state.leader not in members and not (set(members) & set(state.isr) & draft.eligible):
        return ErrorCode.INELIGIBLE_REPLICA  # it resigns, and nobody could take its place
    for member, epoch in wanted.isr:
        broker = draft.brokers.get(member)
        joins = member not in state.isr
        if broker is None or (joins and broker.leaving):
            return ErrorCode.INELIGIBLE_REPLICA
        # A life that has ended since it fetched must not enter by the records it had.
        if epoch >= 0 and epoch != broker.epoch:
            return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def _without_damaged(
    draft: Draft, state: Partition, broker_id: int, policy: ElectionPolicy
) -> Partition:
    """The partition without a follower that gives its log up. The leader epoch rises, although the
    leader stays: what the follower asked for while it had that log must not count for it afterwards."""
    others = draft.eligible - {broker_id}
    policy = policy._replace(unclean=False)
    without = elections.without_broker(state, broker_id, others, policy, lost_data=True)
    return elections.led_anew(without, others, policy, new_epoch=True)


@stepwise
def elect_leaders(
    draft: Draft,
    kind: ElectionType,
    wanted: Sequence[tuple[str, int]] | None,
    policy_of: PolicyOf,
) -> Steps[list[ElectionResult]]:
    """Elections that somebody asks for; `wanted` is None for all partitions that need one."""
    on_demand = wanted is not None
    results: list[ElectionResult] = []
    changed: dict[str, dict[int, Partition]] = {}
    every = (
        (topic.name, each.index) for topic in draft.topics.values() for each in topic.partitions
    )
    for name, index in every if wanted is None else wanted:
        yield
        topic = draft.topics.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            unknown = ProtocolError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {index} of {name}."
            )
            results.append(ElectionResult(name, index, unknown))
            continue
        state = topic.partitions[index]
        try:
            newer = _elected(draft, kind, state, policy_of(name))
        except ProtocolError as error:
            if on_demand or error.code is not ErrorCode.ELECTION_NOT_NEEDED:
                results.append(ElectionResult(name, index, error.with_traceback(None)))
            continue
        draft.note_election(name, state, newer)
        changed.setdefault(name, {})[index] = newer
        results.append(ElectionResult(name, index))
    topics = []
    for name, states in changed.items():
        topics.append(_with_partitions(draft.topics[name], states))
        yield
    yield from put_in_steps(draft, topics)
    return results


def _elected(
    draft: Draft, kind: ElectionType, state: Partition, policy: ElectionPolicy
) -> Partition:
    if kind is ElectionType.PREFERRED:
        if state.leader == state.replicas[0]:
            raise ProtocolError(ErrorCode.ELECTION_NOT_NEEDED)
        newer = elections.led_by_preferred(state, draft.eligible)
        if newer is state:
            raise ProtocolError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
        return newer
    if state.leader != NO_LEADER:
        raise ProtocolError(ErrorCode.ELECTION_NOT_NEEDED)
    newer = elections.led_anew(state, draft.eligible, policy._replace(unclean=True))
    if newer.leader == NO_LEADER:
        raise ProtocolError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
    return newer


def _with_partitions(topic: Topic, states: dict[int, Partition]) -> Topic:
    return replace(
        topic,
        partitions=tuple(states.get(index, each) for index, each in enumerate(topic.partitions)),
    )


@stepwise
def follow_policies(draft: Draft, topics: Collection[str], policy_of: PolicyOf) -> Steps[None]:
    """Settings of topics changed, which may say who is eligible to lead."""
    changed = []
    for name in topics:
        yield
        topic = draft.topics.get(name)
        if topic is None or not any(each.elr for each in topic.partitions):
            continue
        policy = policy_of(name)
        partitions = tuple(elections.with_policy(each, policy) for each in topic.partitions)
        if partitions != topic.partitions:
            changed.append(replace(topic, partitions=partitions))
    yield from put_in_steps(draft, changed)
