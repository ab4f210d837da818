"""Replicas of brokers that stay away are made anew on others, by the clock of the controller's broker.

Off unless `replica.replacement.after.ms` says how long a broker may be away. The time counts from when
this controller first missed it: a new controller gives everybody the whole time again.

A broker without room for a partition is passed over. Where none has room, the partition stays as it is;
that is said once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ottla.cluster.decisions.replacements import NoRoom, replacements
from ottla.cluster.store import StoreError
from ottla.protocol.errors import ProtocolError
from ottla.server.replication.room import FullDisk, Key, without_room

if TYPE_CHECKING:
    from collections.abc import Collection

    from ottla.cluster.decisions.moves import WantedMove
    from ottla.cluster.metadata import ClusterImage
    from ottla.server.broker import Broker

log = logging.getLogger("ottla.controller")

# Partitions that are copied at a time.
MOST_MOVES = 50
LONGEST_PAUSE_SECONDS = 10.0


async def replace_replicas(broker: Broker) -> None:
    """Begins moves away from brokers that stay away, at intervals, as long as the broker runs."""
    after = broker.config.replica_replacement_after_ms / 1000
    missed: dict[int, float] = {}
    reported: set[Key] = set()
    while True:
        await asyncio.sleep(min(max(after / 4, 0.05), LONGEST_PAUSE_SECONDS))
        controller = broker.membership.controller
        if controller is None:
            missed.clear()
            continue
        now = broker.loop.time()
        away = brokers_away(broker.image, missed, now, after)
        if not away:
            reported.clear()
            continue
        wanted, full_disks = await chosen(broker, away)
        for (topic, index), full in full_disks.items():
            if (topic, index) not in reported:
                log.warning("no broker has room for %s-%d. %s", topic, index, full.sentence)
        reported = set(full_disks)
        if not wanted:
            continue
        try:
            results = await controller.alter_moves(wanted)
        except (ProtocolError, StoreError) as error:
            log.warning("replicas were not replaced: %s", error)
            continue
        for move, result in zip(wanted, results, strict=True):
            if result.error is None:
                log.warning(
                    "replicas of brokers that stay away are replaced: topic=%s partition=%d "
                    "replicas=%s away=%s",
                    move.topic, move.index, move.replicas, sorted(away),
                )  # fmt: skip
            else:
                log.info("%s-%d is not moved: %s", move.topic, move.index, result.error)


async def chosen(
    broker: Broker, away: Collection[int]
) -> tuple[list[WantedMove], dict[Key, FullDisk]]:
    """The moves that can be made now, and the partitions for which no broker has room."""
    no_room: set[NoRoom] = set()
    full_disks: dict[Key, FullDisk] = {}
    while True:
        wanted = replacements(broker.image, away, MOST_MOVES, no_room)
        refused = await without_room(broker, wanted)
        for key, full in refused.items():
            no_room.add((*key, full.broker))
            full_disks[key] = full
        if not refused:
            moved = {(each.topic, each.index) for each in wanted}
            return wanted, {key: full for key, full in full_disks.items() if key not in moved}


def brokers_away(
    image: ClusterImage, missed: dict[int, float], now: float, after: float
) -> set[int]:
    """The brokers with replicas that have been missed for `after` seconds. `missed` has since when each
    is, and is brought up to date."""
    wanted = {
        replica
        for topic in image.topics.values()
        for each in topic.partitions
        for replica in each.replicas
    }
    absent = wanted - image.brokers.keys()
    for returned in missed.keys() - absent:
        del missed[returned]
    for broker_id in absent:
        missed.setdefault(broker_id, now)
    return {broker_id for broker_id, since in missed.items() if now - since >= after}
