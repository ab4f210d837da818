"""Changes that concern thousands of partitions are decided, written, told and followed in slices.

A clock that counts stands in for the time, so that a slice is a number of steps: how much a loop does
between two of its turns is then the same on every machine.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ottla import turns
from ottla.cluster import layout
from ottla.cluster.decisions import brokers as broker_decisions
from ottla.cluster.decisions.elections import ElectionPolicy
from ottla.cluster.decisions.topics import NewTopic
from ottla.cluster.draft import Draft
from ottla.cluster.embedded.store import EmbeddedStore
from ottla.cluster.loading import load_image
from ottla.cluster.membership.following import MetadataFollower
from ottla.cluster.metadata import (
    PARTITIONS_IN_A_STAGE,
    ClusterImage,
    ImageDelta,
    Partition,
    RegisteredBroker,
    ResourceType,
    Topic,
    difference,
    stages,
)

ControllerOf = Callable[..., Any]
BrokerOf = Callable[..., RegisteredBroker]
STEPS = 3
TOPICS, PER_TOPIC = 300, 20
# Calls of functions in one turn of the loop: a part of what all partitions take, which is more than
# one call each.
LONGEST = 8_000


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(turns, "clock", lambda: next(ticks) * turns.SLICE_SECONDS / STEPS)


@dataclass
class Watched:
    turns: int = 0
    longest: int = 0  # calls of functions between two turns
    all: int = 0


@contextmanager
def watched() -> Iterator[Watched]:
    """What the loop does in the block, turn by turn."""
    loop = asyncio.get_running_loop()
    found = Watched()
    calls = 0

    def called(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    def tick() -> None:
        nonlocal calls, handle
        found.turns += 1
        found.all += calls
        found.longest = max(found.longest, calls)
        calls = 0
        handle = loop.call_soon(tick)

    handle = loop.call_soon(tick)
    sys.setprofile(called)
    try:
        yield found
    finally:
        sys.setprofile(None)
        handle.cancel()
        found.longest = max(found.longest, calls)
        found.all += calls


def parts(image: ClusterImage) -> set[tuple[str, int, int, tuple[int, ...]]]:
    return {
        (topic.name, each.index, each.leader, each.isr)
        for topic in image.topics.values()
        for each in topic.partitions
    }


class Cluster:
    """A controller with three brokers and some thousand partitions, and a follower."""

    def __init__(
        self, path: Path, controller_of: ControllerOf, broker: BrokerOf, topics: int = TOPICS
    ) -> None:
        self.topics = topics
        self.store = EmbeddedStore(path / "metadata.db")
        self.of_third = self.store.join()
        self.of_follower = self.store.join()
        self.follower = MetadataFollower(self.of_follower)
        self.controller = controller_of(self.store)
        self._broker = broker
        self.following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        for session in (self.store, self.of_third, self.of_follower):
            await session.start()
        controller = self.controller
        await controller.open(self._broker(1))
        await controller.register(self._broker(2))
        value = layout.encode_broker(self._broker(3))
        await self.of_third.multi([layout.Create(layout.broker_path(3), value, ephemeral=True)])
        await self.until(lambda image: 3 in image.brokers)
        made = await controller.create_topics(
            [NewTopic(f"t{number}", PER_TOPIC, 3) for number in range(self.topics)]
        )
        assert all(each.error is None for each in made)
        await self.follower.open()
        self.following = asyncio.create_task(self.follower.run())
        await self.follower.caught_up()

    async def until(self, condition: Callable[[ClusterImage], bool]) -> None:
        changed = asyncio.Event()
        unsubscribe = self.controller.subscribe(lambda *_: changed.set())
        self.controller.registrations_changed()
        while not condition(self.controller.image):
            await asyncio.wait_for(changed.wait(), 60)
            changed.clear()
        unsubscribe()

    async def close(self) -> None:
        assert self.following is not None
        self.following.cancel()
        await asyncio.gather(self.following, return_exceptions=True)
        await self.controller.close()
        await self.of_follower.close()
        await self.store.close()


def test_the_loop_has_its_turn_while_a_broker_dies(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    async def run() -> None:
        cluster = Cluster(tmp_path, controller_of, broker)
        await cluster.start()
        controller, follower = cluster.controller, cluster.follower
        before = controller.image
        told: list[tuple[ClusterImage, ClusterImage, ImageDelta]] = []
        controller.subscribe(lambda *news: told.append(news))
        heard: list[tuple[ClusterImage, ClusterImage, ImageDelta]] = []
        follower.subscribe(lambda *news: heard.append(news))
        for each in (controller, follower):
            each.subscribe(follow)
        await cluster.of_third.close()
        with watched() as found:
            await cluster.until(lambda image: 3 not in image.brokers)
            await controller.create_topics([NewTopic("after", 1, 2)])  # all subscribers know by now
            await follower.caught_up()
        after = controller.image
        assert not any(3 in isr or leader == 3 for *_, leader, isr in parts(after))
        # All of it took thousands of calls, and each turn some of them.
        assert found.all > 10 * LONGEST
        assert found.longest < LONGEST
        for news in (told, heard):
            stage_by_stage(before, after, news)
        assert follower.image.topics == after.topics == (await load_image(cluster.store)).topics
        await cluster.close()

    asyncio.run(run())


def follow(_old: ClusterImage, _new: ClusterImage, delta: ImageDelta) -> None:
    """What a broker does for every partition that changed."""
    for _, topic in delta.changed:
        for each in topic.partitions:
            hash(each.leader), hash(each.leader_epoch), hash(each.isr)


def stage_by_stage(
    before: ClusterImage,
    after: ClusterImage,
    news: list[tuple[ClusterImage, ClusterImage, ImageDelta]],
) -> None:
    """Each image follows on the one before it, by few partitions; what a dead broker led has other
    leaders before it is gone."""
    image, version = before, before.version
    assert len(news) > TOPICS * PER_TOPIC / PARTITIONS_IN_A_STAGE / 2
    for old, new, delta in news:
        assert old.topics == image.topics
        assert new.version >= version
        told = sum(len(topic.partitions) for _, topic in delta.changed)
        assert told < PARTITIONS_IN_A_STAGE + PER_TOPIC
        found = difference(old, new)
        assert set(delta.changed) == set(found.changed)
        assert found.created == delta.created
        if 3 not in new.brokers:
            assert not any(leader == 3 for _, _, leader, _ in parts(new))
        image, version = new, new.version
    assert image.topics == after.topics


def test_a_crash_between_slices_leaves_nothing_half_decided(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    """A controller is broken off after any number of its turns; the next one finds every partition as
    it was, or as it was decided to be, and finishes the rest."""

    async def run(turn: int) -> bool:
        folder = tmp_path / str(turn)
        folder.mkdir()
        cluster = Cluster(folder, controller_of, broker, topics=80)
        await cluster.start()
        first = cluster.controller
        before = first.image
        wanted = Draft(before)
        broker_decisions.fence(wanted, 3, policy_of=lambda _: ElectionPolicy())
        decided, _ = wanted.finish(before.version + 1)
        await cluster.of_third.close()
        first.registrations_changed()
        for _ in range(turn):
            await asyncio.sleep(0)
        assert first._worker is not None
        is_over = 3 not in first.image.brokers
        first._worker.cancel()
        await asyncio.gather(first._worker, return_exceptions=True)
        left = await load_image(cluster.store)
        assert left is not None
        assert parts(left) <= parts(before) | parts(decided)
        cluster.controller = controller_of(cluster.store, 2)
        await cluster.controller.open()
        await cluster.until(lambda image: 3 not in image.brokers)
        assert parts(cluster.controller.image) == parts(decided)
        await cluster.close()
        return is_over

    turn = 1
    while not asyncio.run(run(turn)):
        turn = turn * 3 + 1
    assert turn > 10


def test_a_follower_whose_broker_takes_office_meanwhile(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    """What it was told in part is not told to its end: the controller's images are newer."""

    async def run() -> None:
        cluster = Cluster(tmp_path, controller_of, broker)
        await cluster.start()
        follower = cluster.follower
        half = asyncio.Event()
        follower.subscribe(lambda *_: half.set())
        await cluster.of_third.close()
        await cluster.until(lambda image: 3 not in image.brokers)
        await half.wait()
        assert follower.image.topics != cluster.controller.image.topics, "it was told all at once"
        newest = replace(cluster.controller.image, controller_id=2)
        follower.led = True
        follower.publish(newest)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert follower.image is newest
        follower.led = False
        await cluster.close()

    asyncio.run(run())


def topic_of(name: str, life: int, partitions: int, leader: int) -> Topic:
    states = tuple(Partition(at, (1, 2), (1, 2), leader) for at in range(partitions))
    return Topic(name, f"{name}{life}".ljust(16).encode(), states)


@pytest.mark.parametrize("seed", range(20))
def test_stages(seed: int) -> None:
    chance = Random(seed)

    def image_of(version: int) -> ClusterImage:
        topics = {}
        for number in range(chance.randrange(60)):
            name = f"t{number}"
            if chance.random() < 0.8:
                partitions = chance.choice((1, 30, 300))
                topics[name] = topic_of(
                    name, chance.randrange(2), partitions, chance.choice((1, 2))
                )
        return ClusterImage(
            "some cluster",
            version=version,
            topics=topics,
            topics_by_id={each.topic_id: each for each in topics.values()},
            configs={(ResourceType.TOPIC, "t1"): {"retention.ms": str(version)}},
            brokers={version: RegisteredBroker(version, 1, None, ())},
        )

    old, new = image_of(1), image_of(2)
    delta = difference(old, new)
    image = old
    told: list[ImageDelta] = []
    for stage, part in stages(old, new, delta):
        assert image.version == old.version, "the last one alone has the version"
        assert image.brokers is old.brokers
        assert stage.configs is new.configs
        assert stage.topics_by_id == {each.topic_id: each for each in stage.topics.values()}
        found = difference(image, stage)
        for kind in ("created", "deleted", "changed"):
            assert set(getattr(part, kind)) == set(getattr(found, kind))
        concerned = [*part.created, *part.deleted, *(after for _, after in part.changed)]
        assert sum(len(each.partitions) for each in concerned) < PARTITIONS_IN_A_STAGE + 600
        again = {each.name for each in part.created} & {each.name for each in delta.deleted}
        assert again <= {each.name for each in part.deleted}, "there was no such topic for a while"
        told.append(part)
        image = stage
    assert image is new
    assert [part.configs for part in told] == [delta.configs] + [frozenset()] * (len(told) - 1)
    assert told[-1].brokers == delta.brokers
