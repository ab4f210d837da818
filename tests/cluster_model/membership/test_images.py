"""The images of members: all pass through the same changes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest
from store_kit.members import Cluster, Run, caught_up, cluster_over, eventually

from ottla.cluster import layout
from ottla.cluster.decisions.configs import AlteredResource, ConfigChange, ConfigOperation
from ottla.cluster.decisions.topics import DeadTopic, MorePartitions, NewTopic
from ottla.cluster.embedded.store import EmbeddedStore
from ottla.cluster.membership.following import MetadataFollower
from ottla.cluster.membership.membership import Membership
from ottla.cluster.metadata import (
    ClusterImage,
    ImageDelta,
    ResourceType,
    difference,
)
from ottla.cluster.store import Delete


def _tells_all(told: ImageDelta, true: ImageDelta) -> bool:
    """Whether a delta has what differs between two images. It may have more settings: those that were
    set to what they were."""
    return (
        set(told.created) == set(true.created)
        and set(told.deleted) == set(true.deleted)
        and set(told.changed) == set(true.changed)
        and told.brokers >= true.brokers
        and told.configs >= true.configs
        and told.features >= true.features
    )


def test_followers_pass_through_the_same_changes_under_faults(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        members = [await cluster.joined(each) for each in (1, 2, 3)]
        versions: dict[int, list[int]] = {each.broker_id: [] for each in members}
        topics: dict[int, set[bytes]] = {each.broker_id: set() for each in members}
        wrong: list[int] = []

        def watch(member: Membership) -> None:
            def hear(old: ClusterImage, new: ClusterImage, delta: Any) -> None:
                versions[member.broker_id].append(new.version)
                known = topics[member.broker_id]
                known.difference_update(each.topic_id for each in delta.deleted)
                known.update(each.topic_id for each in delta.created)
                if known != set(new.topics_by_id) or not _tells_all(delta, difference(old, new)):
                    wrong.append(new.version)

            member.follower.subscribe(hear)

        for member in members:
            watch(member)
        controller, chance = cluster.controller, Random(7)
        for step in range(30):
            name = chance.choice("abc")
            match chance.randrange(5):
                case 0:
                    await controller.create_topics([NewTopic(name, 2, 2)])
                case 4:
                    await controller.create_topics([NewTopic(name, layout.CHUNK + 2, 1)])
                case 1:
                    await controller.delete_topics([DeadTopic(name)])
                case 2:
                    await controller.create_partitions([MorePartitions(name, 3 + step)])
                case 3:
                    change = ConfigChange("retention.ms", ConfigOperation.SET, str(step))
                    await controller.alter_configs(
                        [AlteredResource(ResourceType.BROKER, "", [change])], incremental=True
                    )
            if step % 10 == 0:
                await caught_up(members[chance.randrange(3)])
        image = await cluster.agree()
        assert wrong == []
        for heard in versions.values():
            assert heard == sorted(heard)
            assert heard[-1] == image.version

    run(scenario)


def test_caught_up_means_that_all_earlier_changes_are_in_the_image(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.joined(1)
        second = await cluster.joined(2)
        for number in range(10):
            await cluster.controller.create_topics([NewTopic(f"t{number}", 1, 1)])
            await caught_up(second)
            assert f"t{number}" in second.image.topics

    run(scenario)


def test_one_subscriber_that_fails_does_not_keep_the_news_from_others(tmp_path: Path) -> None:
    follower = MetadataFollower(EmbeddedStore(tmp_path / "unused.db"))
    with pytest.raises(RuntimeError, match="no image"):
        _ = follower.image
    heard: list[int] = []

    def fails(_old: ClusterImage, _new: ClusterImage, _delta: object) -> None:
        raise ValueError("on purpose")

    async def run() -> None:
        follower.publish(ClusterImage("c", version=1))
        follower.subscribe(fails)
        unsubscribe = follower.subscribe(lambda _old, new, _delta: heard.append(new.version))
        follower.publish(ClusterImage("c", version=2))
        unsubscribe()
        unsubscribe()
        follower.publish(ClusterImage("c", version=3))

    asyncio.run(run())
    assert heard == [2]
    assert follower.image.version == 3


def test_a_store_without_a_cluster_has_no_image(tmp_path: Path) -> None:
    async def run() -> None:
        store = EmbeddedStore(tmp_path / "metadata.db")
        await store.start()
        follower = MetadataFollower(store)
        assert await follower.open() is None
        assert not follower.is_open
        await store.close()

    asyncio.run(run())


def test_a_node_that_goes_is_gone_from_the_image(tmp_path: Path) -> None:
    """A change that no controller made, as a careless hand would: followers show what is there."""

    async def whole() -> None:
        async with cluster_over(tmp_path / "metadata.db", None, 0) as cluster:
            await cluster.joined(1)
            second = await cluster.joined(2)
            await cluster.controller.create_topics([NewTopic("t", 1, 1), NewTopic("a.b", 1, 1)])
            await cluster.agree()
            await cluster.own.multi([Delete(layout.topic_path("a.b"))])
            await eventually(lambda: "a.b" not in second.image.topics)
            assert second.image.collisions == {}
            assert set(second.image.topics) == {"t"}

    asyncio.run(whole())
