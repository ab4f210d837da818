"""Replicas of brokers that stay away, made anew on others: which moves that takes. No I/O.

- A replica is replaced in its place, so that who is preferred to lead stays in front; the newcomer
  stands in the rack that has the fewest replicas of the partition, there on the machine that has the
  fewest, there on the broker that holds the fewest. Replicas of brokers that have gone away only just
  count, too: they are expected back.
- A partition without a leader has nobody to copy from, and one that is being moved already has a plan:
  both are left as they are. But a move to a broker that stays away would not end: another one takes its
  place in it, none of those that the partition is to leave.
- Where all brokers have a replica already, or no room for one, there is no place for another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container

from ottla.cluster.decisions.moves import WantedMove, is_moving
from ottla.cluster.metadata import NO_LEADER, ClusterImage, Partition

# A partition, by its topic and index, and a broker that has no room for it.
NoRoom = tuple[str, int, int]


def replacements(
    image: ClusterImage, away: Collection[int], most: int, no_room: Container[NoRoom] = ()
) -> list[WantedMove]:
    """Moves away from brokers that are `away`, with those under way no more than `most`."""
    held = Counter(
        replica
        for topic in image.topics.values()
        for each in topic.partitions
        for replica in each.replicas
    )
    moving = 0
    wanted: list[WantedMove] = []
    for topic in image.topics.values():
        for each in topic.partitions:
            if is_moving(each) and not any(one in away for one in each.adding):
                moving += 1
                continue
            stays = tuple(one for one in each.replicas if one not in each.removing)
            if each.leader != NO_LEADER and any(one in away for one in stays):
                target = _target(image, topic.name, each, stays, away, held, no_room)
                if target != stays and len(wanted) < most:
                    wanted.append(WantedMove(topic.name, each.index, target))
    return wanted[: max(0, most - moving)]


def _target(
    image: ClusterImage,
    topic: str,
    partition: Partition,
    stays: tuple[int, ...],
    away: Collection[int],
    held: Counter[int],
    no_room: Container[NoRoom],
) -> tuple[int, ...]:
    brokers = image.brokers
    known = {**image.fenced, **brokers}
    target = list(stays)
    for place, replica in enumerate(stays):
        if replica not in away:
            continue
        held_by = [known[one] for one in target if one in known and one not in away]
        racks = Counter(one.rack for one in held_by)
        machines = Counter(one.machine or one.id for one in held_by)
        candidates = [
            broker
            for broker in brokers.values()
            if not broker.leaving
            and broker.id not in target
            and broker.id not in partition.removing
            and broker.id not in away
            and (topic, partition.index, broker.id) not in no_room
        ]
        if candidates:
            newcomer = min(
                (racks[one.rack], machines[one.machine or one.id], held[one.id], one.id)
                for one in candidates
            )[-1]
            target[place] = newcomer
            held[newcomer] += 1
    return tuple(target)
