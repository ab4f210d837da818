"""Replicas of brokers that stay away are made anew on others, by the clock of the controller's broker.

Off unless `replica.replacement.after.ms` says how long a broker may be away. The time counts from when
this controller first missed it: a new controller gives everybody the whole time again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ottla.cluster.decisions.replacements import replacements
from ottla.cluster.store import StoreError
from ottla.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from ottla.cluster.metadata import ClusterImage
    from ottla.server.broker import Broker

log = logging.getLogger("ottla.controller")

# Partitions that are copied at a time.
MOST_MOVES = 50
LONGEST_PAUSE_SECONDS = 10.0


async def replace_replicas(broker: Broker) -> None:
    """Again and again, while the broker runs."""
    after = broker.config.replica_replacement_after_ms / 1000
    missed: dict[int, float] = {}
    while True:
        await asyncio.sleep(min(max(after / 4, 0.05), LONGEST_PAUSE_SECONDS))
        controller = broker.membership.controller
        if controller is None:
            missed.clear()
            continue
        now = broker.loop.time()
        away = brokers_away(broker.image, missed, now, after)
        wanted = replacements(broker.image, away, MOST_MOVES) if away else []
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
