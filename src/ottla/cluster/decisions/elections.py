"""Who leads a partition, and who counts as in sync: the rules, for one partition at a time. No I/O.

- A leader comes from the in-sync replicas that are alive, in the order of assignment, so that the
  preferred leader leads whenever it may.
- While the in-sync set has fewer than `min.insync.replicas` members the high watermark stands still. So
  whoever leaves a set that small, by going away or by lagging, has all that was committed: it stays
  eligible to lead (KIP-966). If nobody in sync is alive, one of those who are eligible leads.
- A replica that may have lost records (its broker crashed together with its machine) is neither in sync
  nor eligible. Where nobody is either, the one that led last is the best that is left.
- Where a topic allows unclean elections any replica that is alive may lead; records are lost then.

Every new leader, also none, raises the leader epoch; every change raises the partition epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import NamedTuple

from ottla.cluster.metadata import NO_LEADER, Partition


class ElectionPolicy(NamedTuple):
    """What a topic's settings say about its leaders."""

    min_isr: int = 1
    unclean: bool = False


# The policy of a topic, by its name.
PolicyOf = Callable[[str], ElectionPolicy]


def without_broker(
    partition: Partition,
    broker_id: int,
    alive: Collection[int],
    policy: ElectionPolicy,
    *,
    lost_data: bool = False,
) -> Partition:
    """The partition once a broker is gone, or (`lost_data`) has come back without all its records.

    `alive` are the brokers that may lead; the one that is gone is not among them.
    """
    isr = tuple(each for each in partition.isr if each != broker_id)
    changed = _with_members(partition, isr, policy)
    if lost_data:
        changed = replace(changed, elr=tuple(each for each in changed.elr if each != broker_id))
    if changed.leader == broker_id:
        changed = replace(changed, leader=NO_LEADER)
    return _settled(partition, elected(changed, alive, policy))


def forgetting(partition: Partition, broker_id: int) -> Partition:
    """The partition if it was last led by a broker that has nothing left of it."""
    if partition.last_known_leader != broker_id:
        return partition
    return _settled(partition, replace(partition, last_known_leader=NO_LEADER))


def elected(partition: Partition, alive: Collection[int], policy: ElectionPolicy) -> Partition:
    """The partition with a leader if there can be one; epochs are not raised here."""
    if partition.leader in alive and partition.leader in partition.isr:
        return partition
    for candidate in partition.replicas:
        if candidate in partition.isr and candidate in alive:
            return replace(partition, leader=candidate, last_known_leader=NO_LEADER)
    eligible = _eligible(partition, policy)
    for candidate in partition.replicas:
        if candidate in eligible and candidate in alive:
            return _led_alone(partition, candidate, policy)
    if not partition.isr and not partition.elr:
        last = partition.last_known_leader
        if last in alive:
            return _led_alone(partition, last, policy)
    if policy.unclean:
        # Those on their way in last: they may have next to nothing.
        for candidate in sorted(partition.replicas, key=lambda each: each in partition.adding):
            if candidate in alive:
                return _led_alone(replace(partition, elr=()), candidate, policy)
    return replace(partition, leader=NO_LEADER)


def led_anew(
    partition: Partition,
    alive: Collection[int],
    policy: ElectionPolicy,
    *,
    new_epoch: bool = False,
) -> Partition:
    """The partition after an election that is due: its leader is gone, came back in a new life
    (`new_epoch`: its epoch rises even if it leads again), or there was none."""
    return _settled(partition, elected(partition, alive, policy), new_epoch=new_epoch)


def led_by_preferred(partition: Partition, alive: Collection[int]) -> Partition:
    """The partition led by its first replica, if that is alive and in sync; else as it is."""
    preferred = partition.replicas[0]
    if preferred == partition.leader or preferred not in alive or preferred not in partition.isr:
        return partition
    return _settled(partition, replace(partition, leader=preferred))


def with_isr(partition: Partition, isr: Collection[int], policy: ElectionPolicy) -> Partition:
    """The partition with the in-sync replicas that its leader asks for, in the order of assignment."""
    ordered = tuple(each for each in partition.replicas if each in isr)
    changed = _with_members(partition, ordered, policy)
    return replace(changed, partition_epoch=partition.partition_epoch + 1)


def without_replicas(
    before: Partition, after: Partition, alive: Collection[int], policy: ElectionPolicy
) -> Partition:
    """The partition with the replicas of `after`. Those of `before` that are not among them are neither
    in sync nor eligible any more, and lead no longer. Never by an unclean election."""
    isr = tuple(each for each in after.replicas if each in before.isr)
    changed = _with_members(after, isr, policy)
    if changed.last_known_leader not in after.replicas:
        changed = replace(changed, last_known_leader=NO_LEADER)
    if changed.leader not in isr:
        changed = replace(changed, leader=NO_LEADER)
        changed = elected(changed, alive, policy._replace(unclean=False))
    dropped = not set(before.replicas) <= set(after.replicas)
    return _settled(before, changed, new_epoch=dropped)


def with_policy(partition: Partition, policy: ElectionPolicy) -> Partition:
    """The partition once its topic's settings have changed: with a smaller minimum the high watermark
    may move on, and who is not in sync may lack what is committed then."""
    if partition.elr and not _eligible(partition, policy):
        return _settled(partition, replace(partition, elr=()))
    return partition


def _eligible(partition: Partition, policy: ElectionPolicy) -> tuple[int, ...]:
    """Who has all that is committed without being in sync. Nobody once the set is large enough: the
    minimum may have been lowered since, and the high watermark goes on without them then."""
    small = len(partition.isr) < partition.fewest_in_sync(policy.min_isr)
    return partition.elr if small else ()


def _with_members(partition: Partition, isr: tuple[int, ...], policy: ElectionPolicy) -> Partition:
    """Another in-sync set, with those who are eligible beside it. If nobody is left, who led last is
    remembered."""
    elr: tuple[int, ...] = ()
    if len(isr) < partition.fewest_in_sync(policy.min_isr):
        had = {*partition.isr, *_eligible(partition, policy)}
        elr = tuple(each for each in partition.replicas if each in had and each not in isr)
    last_known = partition.last_known_leader
    if not isr and partition.leader != NO_LEADER:
        last_known = partition.leader
    return replace(partition, isr=isr, elr=elr, last_known_leader=last_known)


def _led_alone(partition: Partition, leader: int, policy: ElectionPolicy) -> Partition:
    """The only member of the in-sync set leads; who was eligible beside it stays so."""
    elr = tuple(each for each in partition.elr if each != leader)
    if partition.fewest_in_sync(policy.min_isr) <= 1:
        elr = ()
    return replace(partition, leader=leader, isr=(leader,), elr=elr, last_known_leader=NO_LEADER)


def _settled(before: Partition, after: Partition, new_epoch: bool = False) -> Partition:
    """Raises the epochs as the change demands; the same object if nothing changed."""
    if after == before and not new_epoch:
        return before
    leader_epoch = before.leader_epoch
    if after.leader != before.leader or new_epoch:
        leader_epoch += 1
    return replace(after, leader_epoch=leader_epoch, partition_epoch=before.partition_epoch + 1)
