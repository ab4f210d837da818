"""Who leads a partition, and who counts as in sync: the rules, for one partition at a time. No I/O.

- A leader comes from the in-sync replicas that are alive, in the order of assignment, so that the
  preferred leader leads whenever it may.
- The last in-sync replica stays in the set when its broker goes away: nobody else has all records,
  so the partition waits for it, without a leader.
- A replica that may have lost records (its broker crashed together with its machine) leaves the set
  all the same. If it was the last one the set is empty, and the one that led last is the best that is
  left: it leads again when it is back (KIP-966).
- Where a topic allows unclean elections any replica that is alive may lead; records are lost then.

Every new leader, also none, raises the leader epoch; every change raises the partition epoch.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ottla.cluster.metadata import NO_LEADER, Partition


def without_broker(
    partition: Partition, broker_id: int, alive: Collection[int], *, lost_data: bool, unclean: bool
) -> Partition:
    """The partition once a broker is gone, or (`lost_data`) has come back without all its records.

    `alive` are the brokers that may lead; the one that is gone is not among them.
    """
    isr = tuple(each for each in partition.isr if each != broker_id)
    last_known = partition.last_known_leader
    if not isr and partition.isr:
        if lost_data:
            last_known = broker_id if partition.leader in (broker_id, NO_LEADER) else last_known
        else:
            isr = partition.isr
    leader = NO_LEADER if partition.leader == broker_id else partition.leader
    changed = replace(partition, isr=isr, last_known_leader=last_known, leader=leader)
    return _settled(partition, elected(changed, alive, unclean=unclean))


def elected(partition: Partition, alive: Collection[int], *, unclean: bool) -> Partition:
    """The partition with a leader if there can be one; epochs are not raised here."""
    if partition.leader in alive and partition.leader in partition.isr:
        return partition
    for candidate in partition.replicas:
        if candidate in partition.isr and candidate in alive:
            return replace(partition, leader=candidate, last_known_leader=NO_LEADER)
    if not partition.isr and partition.last_known_leader in alive:
        leader = partition.last_known_leader
        return replace(partition, leader=leader, isr=(leader,), last_known_leader=NO_LEADER)
    if unclean:
        for candidate in partition.replicas:
            if candidate in alive:
                return replace(
                    partition, leader=candidate, isr=(candidate,), last_known_leader=NO_LEADER
                )
    return replace(partition, leader=NO_LEADER)


def led_anew(
    partition: Partition, alive: Collection[int], *, unclean: bool, new_epoch: bool = False
) -> Partition:
    """The partition after an election that is due: its leader is gone, came back in a new life
    (`new_epoch`: its epoch rises even if it leads again), or there was none."""
    return _settled(partition, elected(partition, alive, unclean=unclean), new_epoch=new_epoch)


def led_by_preferred(partition: Partition, alive: Collection[int]) -> Partition:
    """The partition led by its first replica, if that is alive and in sync; else as it is."""
    preferred = partition.replicas[0]
    if preferred == partition.leader or preferred not in alive or preferred not in partition.isr:
        return partition
    return _settled(partition, replace(partition, leader=preferred))


def with_isr(partition: Partition, isr: Collection[int]) -> Partition:
    """The partition with the in-sync replicas that its leader asks for, in the order of assignment."""
    ordered = tuple(each for each in partition.replicas if each in isr)
    return replace(partition, isr=ordered, partition_epoch=partition.partition_epoch + 1)


def _settled(before: Partition, after: Partition, new_epoch: bool = False) -> Partition:
    """Raises the epochs as the change demands; the same object if nothing changed."""
    if after == before and not new_epoch:
        return before
    leader_epoch = before.leader_epoch
    if after.leader != before.leader or new_epoch:
        leader_epoch += 1
    return replace(after, leader_epoch=leader_epoch, partition_epoch=before.partition_epoch + 1)
