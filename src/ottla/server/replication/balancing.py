"""Leadership goes back to preferred leaders by itself, by the clock of the controller's broker.

After a broker was away, others lead what it led. Where `auto.leader.rebalance.enable` is set, partitions
whose first replica is alive and in sync, and does not lead, are given back to it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ottla.cluster.decisions.partitions import ElectionType
from ottla.cluster.store import StoreError
from ottla.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from ottla.server.broker import Broker

log = logging.getLogger("ottla.controller")


async def give_leadership_back(broker: Broker) -> None:
    """Has preferred leaders elected at intervals, as long as the broker runs."""
    while True:
        await asyncio.sleep(broker.config.leader_imbalance_check_interval_seconds)
        controller = broker.membership.controller
        if controller is None or not broker.config.auto_leader_rebalance_enable:
            continue
        image = broker.image
        due = [
            (topic.name, each.index)
            for topic in image.topics.values()
            for each in topic.partitions
            if each.leader != each.replicas[0]
            and each.replicas[0] in each.isr
            and each.replicas[0] in image.brokers
        ]
        if not due:
            continue
        try:
            results = await controller.elect_leaders(ElectionType.PREFERRED, due)
        except (ProtocolError, StoreError) as error:
            log.warning("leadership was not given back: %s", error)
            continue
        given = sum(result.error is None for result in results)
        log.info("%d partitions are led by their preferred leaders again", given)
