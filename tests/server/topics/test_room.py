"""Room for what is moved: asked for before a move begins, with what is on its way already."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from ottla.cluster.decisions.moves import WantedMove
from ottla.cluster.metadata import ClusterImage, Endpoint, Partition, RegisteredBroker, Topic
from ottla.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from ottla.server.replication.room import without_room
from ottla.wire.errors import WireError

ENDPOINT = Endpoint("PLAINTEXT", "127.0.0.1", 9092, "PLAINTEXT")


class Brokers:
    """As much of a broker as is asked; all partitions are those of topic `t`."""

    def __init__(self, states: list[Partition], rooms: dict[int, int]) -> None:
        topic = Topic("t", b"t" * 16, tuple(states))
        self.image = ClusterImage(
            "some cluster",
            topics={"t": topic},
            brokers={each: RegisteredBroker(each, 1, None, (ENDPOINT,)) for each in (1, 2, 3)},
        )
        self.peers = self
        self._rooms = rooms
        self.sizes: dict[tuple[int, int], int] = {}  # by broker and partition
        self.silent: set[int] = set()

    async def request(
        self,
        number: int,
        _purpose: str,
        request: DescribeLogDirsRequest,
        *_: object,
        timeout: float,
    ) -> DescribeLogDirsResponse:
        assert timeout > 0
        if number in self.silent:
            raise WireError("no answer")
        asked = [each for topic in request.topics or () for each in topic.partitions]
        partitions = [
            DescribeLogDirsPartition(partition_index=each, partition_size=self.sizes[number, each])
            for each in asked
            if (number, each) in self.sizes
        ]
        topics = [DescribeLogDirsTopic(name="t", partitions=partitions)]
        return DescribeLogDirsResponse(
            results=[
                DescribeLogDirsResult(
                    log_dir="/data", topics=topics, total_bytes=10_000,
                    usable_bytes=self._rooms[number],
                )
            ]
        )  # fmt: skip

    def refused(self, *moves: tuple[int, tuple[int, ...]]) -> dict[int, str]:
        wanted = [WantedMove("t", index, replicas) for index, replicas in moves]
        found = asyncio.run(without_room(cast(Any, self), wanted))
        return {index: lack.sentence for (_, index), lack in found.items()}


def led_by_one(index: int, *, coming: int | None = None) -> Partition:
    if coming is None:
        return Partition(index, (1,), (1,), 1)
    return Partition(index, (coming, 1), (1,), 1, adding=(coming,), removing=(1,))


def test_moves_of_one_request_share_the_room() -> None:
    brokers = Brokers([led_by_one(0), led_by_one(1), led_by_one(2)], {1: 0, 2: 250, 3: 1000})
    brokers.sizes = {(1, index): 100 for index in range(3)}
    assert brokers.refused((0, (2,)), (1, (2,))) == {}
    refused = brokers.refused((0, (2,)), (1, (2,)), (2, (2,)))
    assert list(refused) == [2]
    assert "Broker 2 has room for 50 bytes" in refused[2]
    assert brokers.refused((0, (2,)), (1, (3,)), (2, (2,))) == {}


def test_what_is_on_its_way_takes_its_room_first() -> None:
    states = [led_by_one(0, coming=2), led_by_one(1), led_by_one(2, coming=3)]
    brokers = Brokers(states, {1: 0, 2: 250, 3: 1000})
    brokers.sizes = {(1, 0): 200, (1, 1): 100, (1, 2): 900}
    refused = brokers.refused((1, (2,)))
    assert "Broker 2 has room for 50 bytes beside what else is moved to it" in refused[1]
    # What has arrived is on the disk, whose room is told without it.
    brokers.sizes[2, 0] = 150
    assert brokers.refused((1, (2,))) == {}
    # It goes elsewhere now: nothing of it is on its way to broker 2 any more.
    assert brokers.refused((0, (3,))).keys() == {0}, "partition 2 is on its way to broker 3"


def test_who_does_not_answer_may_have_room() -> None:
    brokers = Brokers([led_by_one(0, coming=2), led_by_one(1)], {1: 0, 2: 10, 3: 0})
    brokers.sizes = {(1, 0): 200, (1, 1): 100}
    brokers.silent = {2}
    assert brokers.refused((1, (2,))) == {}
