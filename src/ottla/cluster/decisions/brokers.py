"""Brokers that come, go and leave in good order, and the blocks of producer ids they take.

A broker registers by an ephemeral node of its own session. It belongs to the cluster once the
controller has taken that registration in (`take_in`), and no longer once the controller has fenced it
(`fence`). Both settle its partitions in the same write, so no image shows a leader that is away, nor
a life of a broker as leader of what only its former life was elected for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ottla.cluster.decisions import elections
from ottla.cluster.decisions.elections import PolicyOf
from ottla.cluster.decisions.features import fault_of_broker
from ottla.cluster.draft import Draft
from ottla.cluster.membership.runs import may_lack_records
from ottla.cluster.metadata import NO_LEADER, Partition, RegisteredBroker, Topic
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.turns import Steps, at_once, stepwise

PRODUCER_IDS_PER_BLOCK: Final = 1000
_LARGEST_PRODUCER_ID: Final = 2**63 - 1
# What is looked at, and changed, without a pause.
PARTITIONS_IN_A_STEP: Final = 100
TOPICS_IN_A_STEP: Final = 50

# What becomes of a partition.
_Settle = Callable[[Topic, Partition], Partition]


class ProducerIdBlock(NamedTuple):
    """Producer ids that nobody else has or will get: `first` and the `size - 1` after it."""

    first: int
    size: int


def check_registration(draft: Draft, broker: RegisteredBroker) -> None:
    """ProtocolError unless a broker may become part of the cluster."""
    if broker.id < 0:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"A broker's id cannot be {broker.id}.")
    if not broker.endpoints:
        raise ProtocolError(
            ErrorCode.INVALID_REGISTRATION, f"Broker {broker.id} has no endpoint to be reached at."
        )
    fault = fault_of_broker(draft.features, broker)
    if fault is not None:
        raise ProtocolError(ErrorCode.UNSUPPORTED_VERSION, f"{fault[0].upper()}{fault[1:]}.")
    known = draft.brokers.get(broker.id) or draft.fenced.get(broker.id)
    if known is not None and broker.epoch < known.epoch:
        raise ProtocolError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"Broker {broker.id} has been taken in with a later epoch than {broker.epoch}.",
        )


def take_in(
    draft: Draft, broker: RegisteredBroker, *, lost_data: bool, policy_of: PolicyOf
) -> None:
    """Take a new life of a broker into the cluster. `lost_data`: it may have come back without
    records that its former life had acknowledged. One that came back without a data folder that it had,
    or with an old copy of one, is worse: it may lack anything, and leads nothing that it would lead only
    for want of another."""
    turnover = Turnover(draft)
    turnover.take_in(broker, lost_data=lost_data, policy_of=policy_of)
    turnover.settle()


def fence(draft: Draft, broker_id: int, *, policy_of: PolicyOf) -> None:
    """Fence a broker that is gone: others lead what it led, and it is in no in-sync set any more."""
    turnover = Turnover(draft)
    turnover.fence(broker_id, policy_of=policy_of)
    turnover.settle()


class Turnover:
    """Brokers that come and go at the same time, as all of them do when a cluster starts.

    Brokers change in the draft at once. What follows for their partitions is done by `settle`, for
    each partition in the order in which the brokers came and went, and with one look at all partitions:
    one for each broker would make a start take brokers × partitions.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._steps: list[_Settle] = []
        # Numbers of a broker's steps, which concern the partitions that it is a replica of.
        self._steps_of: dict[int, list[int]] = {}

    def take_in(self, broker: RegisteredBroker, *, lost_data: bool, policy_of: PolicyOf) -> None:
        """A new life of a broker comes, as in the function of this name."""
        draft = self._draft
        check_registration(draft, broker)
        known = draft.brokers.get(broker.id) or draft.fenced.get(broker.id)
        is_replaced = False
        if known is not None:
            missing = _folders(known) - _folders(broker)
            if _has_unreadable(broker):
                # They may be among those, and no log is made anew while one cannot be read.
                # Remembered, so that an empty folder in the place of one is found out later.
                readable = [each for each in broker.folder_id.split(",") if each]
                broker = replace(broker, folder_id=",".join([*readable, *sorted(missing), ""]))
            else:
                is_replaced = bool(missing)
            is_replaced = is_replaced or has_old_folders(known, broker)
        broker = replace(broker, former_runs=())
        lost_data = lost_data or is_replaced
        if not is_replaced and {*draft.brokers, *draft.fenced} <= {broker.id}:
            self.settle()
            if _leads_everything(draft, broker.id):  # a single node
                draft.raise_leader_epochs()
                draft.put_broker(broker)
                return
        others = draft.eligible - {broker.id}
        everybody = others | {broker.id}

        def settle(topic: Topic, partition: Partition) -> Partition:
            policy = policy_of(topic.name)
            candidates = everybody
            if lost_data and (broker.id in partition.isr or broker.id in partition.elr):
                partition = elections.without_broker(
                    partition, broker.id, others, policy._replace(unclean=False), lost_data=True
                )
            if is_replaced:
                partition = elections.forgetting(partition, broker.id)
                candidates = others
            elif partition.leader == broker.id:
                partition = elections.led_anew(
                    partition, everybody, policy._replace(unclean=False), new_epoch=True
                )
            if partition.leader == NO_LEADER:
                leaderless = partition
                partition = elections.led_anew(leaderless, candidates, policy)
                draft.note_election(topic.name, leaderless, partition)
            return partition

        self._add(broker.id, settle)
        draft.put_broker(replace(broker, leaving=False))

    def fence(self, broker_id: int, *, policy_of: PolicyOf) -> None:
        """A broker is gone, as in the function of this name."""
        draft = self._draft
        alive = draft.eligible - {broker_id}

        def settle(topic: Topic, partition: Partition) -> Partition:
            if partition.leader != broker_id and broker_id not in partition.isr:
                return partition
            policy = policy_of(topic.name)
            without = elections.without_broker(partition, broker_id, alive, policy)
            draft.note_election(topic.name, partition, without)
            return without

        self._add(broker_id, settle)
        self._draft.fence_broker(broker_id)

    def _add(self, broker_id: int, step: _Settle) -> None:
        self._steps_of.setdefault(broker_id, []).append(len(self._steps))
        self._steps.append(step)

    def settle(self) -> None:
        """Settles the partitions of all that came and went until now."""
        at_once(self.settling())

    def settling(self) -> Steps[None]:
        """Does what `settle` does, in steps."""
        steps, steps_of = self._steps, self._steps_of
        self._steps, self._steps_of = [], {}
        concerned = steps_of.keys()

        def settle(topic: Topic, partition: Partition) -> Partition:
            if concerned.isdisjoint(partition.replicas):
                return partition
            due = [number for each in partition.replicas for number in steps_of.get(each, ())]
            for number in sorted(due):
                partition = steps[number](topic, partition)
            return partition

        if steps:
            yield from _change_partitions(self._draft, settle)


def has_old_folders(known: RegisteredBroker, broker: RegisteredBroker) -> bool:
    """Whether a broker comes with data folders that are older than what is known of it."""
    # One that could not be read in its last life may have missed that, and lacks nothing of it.
    return not _has_unreadable(known) and may_lack_records(
        known.run, broker.run, broker.former_runs
    )


def _folders(broker: RegisteredBroker) -> set[str]:
    """The ids of its data folders, as far as they are known."""
    return {each for each in broker.folder_id.split(",") if each}


def _has_unreadable(broker: RegisteredBroker) -> bool:
    """Whether it has data folders whose ids are not known, beside others."""
    ids = broker.folder_id.split(",")
    return len(ids) > 1 and "" in ids


def _leads_everything(draft: Draft, broker_id: int) -> bool:
    """Whether a broker leads all partitions, each alone."""
    alone = (broker_id,)
    checked: set[int] = set()
    for topic in draft.topics.values():
        if id(topic.partitions) in checked:  # topics of a single node share their partitions
            continue
        checked.add(id(topic.partitions))
        if any(each.isr != alone or each.leader != broker_id for each in topic.partitions):
            return False
    return True


@stepwise
def settle_all(
    draft: Draft, *, policy_of: PolicyOf, topics: Collection[str] | None = None
) -> Steps[None]:
    """Elects leaders wherever one is missing or away, or in these topics: what a former controller may
    have left open, and what a changed setting allows."""
    eligible, alive = draft.eligible, draft.brokers

    def settle(topic: Topic, partition: Partition) -> Partition:
        if partition.leader in alive and partition.leader in partition.isr:
            return partition
        led = elections.led_anew(partition, eligible, policy_of(topic.name))
        draft.note_election(topic.name, partition, led)
        return led

    yield from _change_partitions(draft, settle, topics)


@stepwise
def shut_down(
    draft: Draft, broker_id: int, broker_epoch: int, *, policy_of: PolicyOf
) -> Steps[list[tuple[str, int]]]:
    """A broker stops in good order: leaders move away from it while it still serves. The partitions
    that nobody else can lead, which it keeps to the end."""
    check_broker_epoch(draft, broker_id, broker_epoch)
    draft.put_broker(replace(draft.brokers[broker_id], leaving=True))
    alive = draft.eligible
    remaining: list[tuple[str, int]] = []

    def settle(topic: Topic, partition: Partition) -> Partition:
        if partition.leader != broker_id and broker_id not in partition.isr:
            return partition
        if not any(each in alive for each in partition.isr):
            if partition.leader == broker_id:
                remaining.append((topic.name, partition.index))
            return partition
        policy = policy_of(topic.name)._replace(unclean=False)
        return elections.without_broker(partition, broker_id, alive, policy)

    yield from _change_partitions(draft, settle)
    return remaining


def check_broker_epoch(draft: Draft, broker_id: int, broker_epoch: int) -> None:
    """ProtocolError unless this life of the broker is the one that was taken in."""
    broker = draft.brokers.get(broker_id)
    if broker is None:
        raise ProtocolError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {broker_id} is not part of the cluster."
        )
    if broker.epoch != broker_epoch:
        raise ProtocolError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"Broker {broker_id} was taken in with epoch {broker.epoch}, not {broker_epoch}.",
        )


@stepwise
def unregister_broker(draft: Draft, broker_id: int) -> Steps[None]:
    """Forgets a broker that is away, and with it which data folders it had. Should its id come back,
    with other ones perhaps, it leads nothing that it would lead only for want of another."""
    if broker_id in draft.brokers:
        raise ProtocolError(
            ErrorCode.INVALID_REQUEST, f"Broker {broker_id} is running; stop it first."
        )
    if broker_id not in draft.fenced:
        raise ProtocolError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"There is no broker {broker_id} in the cluster."
        )
    yield from _change_partitions(draft, lambda _, each: elections.forgetting(each, broker_id))
    draft.remove_broker(broker_id)


def allocate_producer_ids(draft: Draft) -> ProducerIdBlock:
    """The next block. It counts as used from now on, whatever becomes of the one who asked."""
    first = draft.next_producer_id
    if first > _LARGEST_PRODUCER_ID - PRODUCER_IDS_PER_BLOCK:
        raise ProtocolError(ErrorCode.UNKNOWN_SERVER_ERROR, "There are no producer ids left.")
    draft.next_producer_id = first + PRODUCER_IDS_PER_BLOCK
    return ProducerIdBlock(first, PRODUCER_IDS_PER_BLOCK)


def _change_partitions(
    draft: Draft, settle: _Settle, names: Collection[str] | None = None
) -> Steps[None]:
    changed: list[Topic] = []
    topics = draft.topics
    for name in topics if names is None else names:
        topic = topics.get(name)
        if topic is None:
            continue
        partitions: list[Partition] = []
        for first in range(0, len(topic.partitions), PARTITIONS_IN_A_STEP):
            some = topic.partitions[first : first + PARTITIONS_IN_A_STEP]
            partitions += [settle(topic, each) for each in some]
            yield
        if any(new is not old for new, old in zip(partitions, topic.partitions, strict=True)):
            changed.append(replace(topic, partitions=tuple(partitions)))
    yield from put_in_steps(draft, changed)


def put_in_steps(draft: Draft, topics: Sequence[Topic]) -> Steps[None]:
    """Puts changed topics into a draft; nothing is copied if there are none."""
    for first in range(0, len(topics), TOPICS_IN_A_STEP):
        draft.put_topics(topics[first : first + TOPICS_IN_A_STEP])
        yield
