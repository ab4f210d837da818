"""Controllers over a store that loses answers: thousands of requests, many seeds, one truth.

A failed run prints its seed, which repeats it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from store_kit.faulty import Faults, FaultyStore

from ottla.cluster.controller import Controller
from ottla.cluster.decisions.topics import DeadTopic, MorePartitions, NewTopic, TopicResult
from ottla.cluster.embedded.store import EmbeddedStore
from ottla.cluster.loading import load_image
from ottla.cluster.metadata import ClusterImage, ImageDelta, RegisteredBroker
from ottla.cluster.store import Create, Ok, SessionEvent, StoreUnavailable, Unknown
from ottla.protocol.errors import ErrorCode, ProtocolError

ControllerOf = Callable[..., Controller]


class Follower:
    """Rebuilds the topics from the deltas alone, as the server does with its logs."""

    def __init__(self, controller: Controller) -> None:
        self.topics = dict(controller.image.topics)
        self.version = controller.image.version
        controller.subscribe(self.hear)

    def hear(self, old: ClusterImage, new: ClusterImage, delta: ImageDelta) -> None:
        assert old.version == self.version <= new.version
        self.version = new.version
        for topic in delta.deleted:
            assert self.topics.pop(topic.name) == topic
        for before, after in delta.changed:
            assert self.topics[before.name] == before
            self.topics[before.name] = after
        for topic in delta.created:
            assert topic.name not in self.topics
            self.topics[topic.name] = topic
        assert self.topics == new.topics


@pytest.mark.parametrize("seed", range(15))
def test_lost_answers_lose_and_double_nothing(
    tmp_path: Path, controller_of: ControllerOf, broker: Callable[..., RegisteredBroker], seed: int
) -> None:
    chance = Random(seed)

    async def run() -> None:
        store = EmbeddedStore(tmp_path / "metadata.db")
        await store.start()
        # The model: what must be there, because it was acknowledged. A request that got no answer
        # may have been done or not, until the next answer about the same topic tells.
        partitions: dict[str, int] = {}
        doubtful: set[str] = set()
        failures: list[str] = []
        blocks: list[int] = []

        async def one_request(controller: Controller) -> None:
            name = chance.choice("abcdef")
            try:
                match chance.randrange(4):
                    case 0:
                        (result,) = await controller.create_topics([NewTopic(name, 1, 1)])
                        settle(name, result, ErrorCode.TOPIC_ALREADY_EXISTS, 1)
                    case 1:
                        (result,) = await controller.delete_topics([DeadTopic(name)])
                        settle(name, result, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)
                    case 2:
                        count = partitions.get(name, 1) + 1
                        (result,) = await controller.create_partitions(
                            [MorePartitions(name, count)]
                        )
                        if result.error is None:
                            partitions[name] = count
                            doubtful.discard(name)
                    case _:
                        blocks.append((await controller.allocate_producer_ids()).first)
            except ProtocolError as error:
                if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
                    raise
                doubtful.add(name)
                failures.append(name)

        def settle(name: str, result: TopicResult, otherwise: ErrorCode, count: int | None) -> None:
            was_there = name in partitions
            if result.error is not None:
                assert result.error.code is otherwise, seed
                if name not in doubtful:
                    assert was_there == (count is not None), seed
                elif count is not None:
                    return  # it is there, with partitions in doubt
            elif name not in doubtful:
                assert was_there == (count is None), seed
            if result.error is None and count is not None:
                partitions[name] = count
            elif count is None:
                partitions.pop(name, None)
            doubtful.discard(name)

        for life in range(3):
            faulty = FaultyStore(store.join(), seed * 10 + life, Faults())
            await faulty.start()
            faulty.faults = Faults(
                lost_before=chance.random() * 0.3,
                lost_after=chance.random() * 0.3,
                lost_late=chance.random() * 0.3,
                unavailable=chance.random() * 0.05,
            )
            controller = controller_of(faulty, seed=seed * 10 + life, pauses=(0.0,) * 40)
            await controller.open(broker(1))
            follower = Follower(controller)
            if chance.random() < 0.5:
                faulty.faults = Faults(lost_before=0.4, lost_after=0.3, unavailable=0.97)
            for _ in range(30):
                await one_request(controller)
            faulty.faults = Faults()
            await controller.allocate_producer_ids()  # brings the image up to date
            blocks.append(controller.image.next_producer_id - 1000)
            assert follower.topics == controller.image.topics, seed
            assert await load_image(store) == controller.image, seed
            found = {name: len(topic.partitions) for name, topic in controller.image.topics.items()}
            for name in "abcdef":
                if name not in doubtful:
                    assert found.get(name) == partitions.get(name), (seed, name)
            partitions = found
            doubtful.clear()
            await controller.close()
            await faulty.close()
        assert len(set(blocks)) == len(blocks), seed
        assert all(block % 1000 == 0 for block in blocks)
        await store.close()

    asyncio.run(run())


def test_the_faults_are_what_they_say(tmp_path: Path) -> None:
    async def run() -> None:
        inner = EmbeddedStore(tmp_path / "metadata.db")
        store = FaultyStore(inner, 1, Faults())
        await store.start()
        events = store.session_events()
        assert await store.multi([Create("/a")]) == Ok((0,))

        store.faults = Faults(lost_before=1.0)
        assert isinstance(await store.multi([Create("/before")]), Unknown)
        assert await anext(events) is SessionEvent.SUSPENDED
        assert await anext(events) is SessionEvent.CONNECTED
        store.faults = Faults(lost_after=1.0)
        assert isinstance(await store.multi([Create("/after")]), Unknown)
        await store.sync()
        assert await inner.children("/") == ["a", "after"]

        store.faults = Faults(lost_late=1.0)
        for number in range(40):
            assert isinstance(await store.multi([Create(f"/late{number}")]), Unknown)
        assert await inner.children("/") == ["a", "after"], "not before the next sync"
        await store.sync()
        found = await inner.children("/")
        assert found is not None
        assert 2 < len(found) < 42, "some are done, some are not"

        store.faults = Faults(unavailable=1.0)
        with pytest.raises(StoreUnavailable):
            await store.get("/a")
        with pytest.raises(StoreUnavailable):
            await store.children("/")
        with pytest.raises(StoreUnavailable):
            await store.sync()
        store.faults = Faults()
        await store.close()

    asyncio.run(run())


def test_the_same_seed_brings_the_same_faults(tmp_path: Path) -> None:
    async def run(name: str, seed: int) -> list[type]:
        faults = Faults(lost_before=0.2, lost_after=0.2, lost_late=0.2)
        store = FaultyStore(EmbeddedStore(tmp_path / name), seed, faults)
        await store.start()
        answers = [type(await store.multi([Create(f"/{number}")])) for number in range(60)]
        await store.close()
        return answers

    first, second, other = (
        asyncio.run(run(name, seed)) for name, seed in (("1", 5), ("2", 5), ("3", 6))
    )
    assert first == second != other
