"""Whether brokers have room for what is to be moved to them: asked before a move begins.

The leaders tell how large the partitions are, the targets how much their disks can take. Who does not
answer is taken at its word: a broker that is away may have all the room in the world.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ottla.cluster.decisions.moves import WantedMove
from ottla.cluster.metadata import NO_LEADER, ClusterImage
from ottla.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from ottla.server.turns import Turns
from ottla.wire.errors import WireError

if TYPE_CHECKING:
    from ottla.server.broker import Broker

log = logging.getLogger("ottla.controller")

Key = tuple[str, int]
_PURPOSE = "room"
_ANSWER_SECONDS = 5.0


class Lack(NamedTuple):
    """Why a partition is not moved."""

    broker: int  # which has no room for it
    sentence: str


async def without_room(broker: Broker, wanted: Iterable[WantedMove]) -> dict[Key, Lack]:
    """The moves that would fill a disk."""
    image = broker.image
    # Partitions by broker; without values, in their order.
    targets: dict[int, dict[Key, None]] = {}
    leaders: dict[int, dict[Key, None]] = {}
    turns = Turns()
    for move in wanted:
        await turns.pause()
        state = image.partition(move.topic, move.index)
        if state is None or move.replicas is None or state.leader == NO_LEADER:
            continue
        for each in dict.fromkeys(move.replicas):
            if each not in state.replicas and each in image.brokers:
                targets.setdefault(each, {})[move.topic, move.index] = None
                leaders.setdefault(state.leader, {})[move.topic, move.index] = None
    if not targets:
        return {}
    rooms, sizes = await _ask(broker, image, leaders, targets)
    refused: dict[Key, Lack] = {}
    for target, keys in targets.items():
        room = rooms.get(target)
        if room is None:
            continue
        for key in keys:
            await turns.pause()
            size = sizes.get(key, 0)
            if size > room:
                refused[key] = Lack(
                    target,
                    f"Broker {target} has room for {max(room, 0)} bytes beside what else is moved to "
                    f"it, and the partition has {size}.",
                )
            else:
                room -= size
    return refused


async def _ask(
    broker: Broker,
    image: ClusterImage,
    leaders: Mapping[int, Mapping[Key, None]],
    targets: Mapping[int, Mapping[Key, None]],
) -> tuple[dict[int, int], dict[Key, int]]:
    """The room on each target's largest disk, and the sizes of the partitions."""

    async def one(number: int) -> DescribeLogDirsResponse | None:
        topics: dict[str, DescribableLogDirTopic] = {}
        for topic, index in leaders.get(number, ()):
            asked = topics.setdefault(topic, DescribableLogDirTopic(topic=topic, partitions=[]))
            asked.partitions.append(index)
        request = DescribeLogDirsRequest(topics=list(topics.values()))
        try:
            return await broker.peers.request(
                number, _PURPOSE, request, DescribeLogDirsResponse, timeout=_ANSWER_SECONDS
            )
        except WireError as error:
            log.info("broker %d does not tell what room it has: %s", number, error)
            return None

    asked = [each for each in {**leaders, **targets} if each in image.brokers]
    answers = dict(zip(asked, await asyncio.gather(*map(one, asked)), strict=True))
    rooms: dict[int, int] = {}
    sizes: dict[Key, int] = {}
    turns = Turns()
    for number, answer in answers.items():
        for folder in () if answer is None else answer.results:
            if folder.usable_bytes >= 0 and not folder.error_code:
                rooms[number] = max(rooms.get(number, 0), folder.usable_bytes)
            for topic in folder.topics:
                for each in topic.partitions:
                    await turns.pause()
                    if (topic.name, each.partition_index) in leaders.get(number, ()):
                        sizes[topic.name, each.partition_index] = each.partition_size
    return rooms, sizes
