"""Whether brokers have room for what is to be moved to them: asked before a move begins.

The leaders tell how large the partitions are, the targets how much their disks can take. What is on its
way to a target already, by moves that began before, takes its room first. Who does not answer is taken
at its word: a broker that is away may have all the room in the world.
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


class FullDisk(NamedTuple):
    """A broker without room for a partition, which therefore is not moved to it."""

    broker: int
    sentence: str


async def without_room(broker: Broker, wanted: Iterable[WantedMove]) -> dict[Key, FullDisk]:
    """The moves that would fill a disk, with the broker whose disk that is."""
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
    under_way = await _under_way(image, targets)
    for coming in under_way.values():
        for key, leader in coming.items():
            leaders.setdefault(leader, {})[key] = None
    rooms, sizes = await _ask(broker, image, leaders, {**targets, **under_way})
    refused: dict[Key, FullDisk] = {}
    for target, keys in targets.items():
        room = rooms.get(target)
        if room is None:
            continue
        for key, leader in under_way.get(target, {}).items():
            room -= max(0, sizes.get((leader, key), 0) - sizes.get((target, key), 0))
        for key in keys:
            await turns.pause()
            state = image.partition(*key)
            size = 0 if state is None else sizes.get((state.leader, key), 0)
            if size > room:
                refused[key] = FullDisk(
                    target,
                    f"Broker {target} has room for {max(room, 0)} bytes beside what else is moved to "
                    f"it, and the partition has {size}.",
                )
            else:
                room -= size
    return refused


async def _under_way(
    image: ClusterImage, targets: Mapping[int, Mapping[Key, None]]
) -> dict[int, dict[Key, int]]:
    """Partitions that are being copied to these brokers, beside those that they are to get now, with
    their leaders."""
    found: dict[int, dict[Key, int]] = {}
    turns = Turns()
    for topic in image.topics.values():
        await turns.pause()
        for state in topic.partitions:
            for each in state.adding:
                key = (topic.name, state.index)
                if each in targets and key not in targets[each] and state.leader != NO_LEADER:
                    found.setdefault(each, {})[key] = state.leader
    return found


async def _ask(
    broker: Broker,
    image: ClusterImage,
    leaders: Mapping[int, Mapping[Key, None]],
    targets: Mapping[int, Mapping[Key, object]],
) -> tuple[dict[int, int], dict[tuple[int, Key], int]]:
    """The room on each target's largest disk, and the sizes of partitions by broker."""

    async def one(number: int) -> DescribeLogDirsResponse | None:
        topics: dict[str, DescribableLogDirTopic] = {}
        for topic, index in {**leaders.get(number, {}), **targets.get(number, {})}:
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
    sizes: dict[tuple[int, Key], int] = {}
    turns = Turns()
    for number, answer in answers.items():
        for folder in () if answer is None else answer.results:
            if folder.usable_bytes >= 0 and not folder.error_code:
                rooms[number] = max(rooms.get(number, 0), folder.usable_bytes)
            for topic in folder.topics:
                for each in topic.partitions:
                    await turns.pause()
                    if not each.is_future_key:
                        sizes[number, (topic.name, each.partition_index)] = each.partition_size
    return rooms, sizes
