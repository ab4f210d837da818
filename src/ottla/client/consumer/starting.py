"""Which partitions there are, and where to begin in those for which nobody has said it."""

from __future__ import annotations

import time
from collections.abc import Iterable

from ottla.client.cluster import Cluster
from ottla.client.configuration.clients import ConsumerSettings
from ottla.client.errors import NoStartingOffset, broker_error
from ottla.client.offset_lookup import find_offsets
from ottla.client.positions import EARLIEST, LATEST, AnyPosition, Position, TopicPartition
from ottla.protocol.errors import ErrorCode


async def starting_offsets(
    cluster: Cluster, settings: ConsumerSettings, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """The offsets that auto.offset.reset means now; NoStartingOffset if it means none."""
    partitions = list(partitions)
    if not partitions:
        return {}
    reset = settings.offset_reset
    position: AnyPosition
    if reset == "error":
        raise NoStartingOffset(
            f"{partitions[0]} has no committed offset, or one that is out of range, and "
            "auto.offset.reset says not to choose another: seek, or commit one"
        )
    if isinstance(reset, float):
        position = Position.time(int((time.time() - reset) * 1000))
    else:
        position = EARLIEST if reset == "earliest" else LATEST
    return await resolve(cluster, settings, dict.fromkeys(partitions, position))


async def resolve(
    cluster: Cluster, settings: ConsumerSettings, positions: dict[TopicPartition, AnyPosition]
) -> dict[TopicPartition, int]:
    """The offsets of positions; of a time after the last record, the end."""
    found = (await find_offsets(cluster, positions, isolation=settings.isolation)).all()
    offsets = {each: there.offset for each, there in found.items() if there.offset is not None}
    late = [each for each in positions if each not in offsets]
    if late:
        ends = await find_offsets(
            cluster, dict.fromkeys(late, LATEST), isolation=settings.isolation
        )
        offsets.update((each, there.offset or 0) for each, there in ends.all().items())
    return offsets


async def check_partitions(cluster: Cluster, partitions: Iterable[TopicPartition]) -> None:
    """TopicNotFound if one of them does not exist: nothing would ever come of it."""
    partitions = list(partitions)
    topics = {each.topic for each in partitions}
    missing: list[TopicPartition] = []
    for _ in range(2):
        known = await cluster.topics(topics)
        missing = [
            each for each in partitions if each.partition not in known[each.topic].partitions
        ]
        if not missing:
            return
        # What is known may be from before it was added.
        cluster.request_refresh(*(each.topic for each in missing))
    topic, index = missing[0]
    count = len(cluster.metadata.topics[topic].partitions)
    raise broker_error(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"there is no partition {index}; there are {count}",
        f"topic '{topic}'",
    )
