"""How a broker follows the metadata: what is in one image belongs together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

from store_kit.ensemble import AtOnce, Ensemble, EnsembleStore
from store_kit.faulty import Faults, FaultyStore

from ottla.cluster import layout
from ottla.cluster.decisions.configs import (
    AlteredResource,
    ConfigChange,
    ConfigOperation,
    full_change,
)
from ottla.cluster.decisions.partitions import WantedIsr
from ottla.cluster.decisions.topics import MorePartitions, NewTopic
from ottla.cluster.membership.following import MetadataFollower
from ottla.cluster.metadata import ClusterImage, RegisteredBroker, ResourceType
from ottla.cluster.store import Node, Store

ControllerOf = Callable[..., Any]
BrokerOf = Callable[..., RegisteredBroker]


class Overtaken(FaultyStore):
    """More happens between the news of a topic and the read that they lead to."""

    def __init__(self, inner: Store, meanwhile: Callable[[], Awaitable[None]]) -> None:
        super().__init__(inner, 0, Faults())
        self.meanwhile: Callable[[], Awaitable[None]] | None = meanwhile
        self.is_armed = False

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        if self.is_armed and self.meanwhile is not None and layout.topic_path("t") in paths:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return await super().get_many(paths)


def test_a_smaller_set_comes_with_the_settings_of_before(
    stores: Any, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    """A setting of the topic is changed, then its in-sync set, and the follower reads the set because of
    news from before both. (Any setting stands for `min.insync.replicas` here.)"""

    async def run() -> None:
        store = stores.join()
        await store.start()
        controller = controller_of(store)
        await controller.open(broker(1))
        await controller.register(broker(2))
        (made,) = await controller.create_topics([NewTopic("t", 1, 2)])
        assert made.error is None

        async def raise_and_shrink() -> None:
            change = ConfigChange("retention.ms", ConfigOperation.SET, "1000")
            altered = AlteredResource(ResourceType.TOPIC, "t", [change])
            (result,) = await controller.alter_configs([altered], incremental=True)
            assert result.error is None
            state = controller.image.topics["t"].partitions[0]
            epochs = (state.leader_epoch, state.partition_epoch)
            wanted = WantedIsr(made.topic_id, 0, *epochs, [(state.leader, -1)])
            epoch = controller.image.brokers[state.leader].epoch
            await controller.alter_isr(state.leader, epoch, [wanted])

        other = Overtaken(stores.join(), raise_and_shrink)
        await other.start()
        follower = MetadataFollower(other)
        await follower.open()
        seen: list[tuple[int, bool]] = []

        def look(_old: ClusterImage, new: ClusterImage, _delta: object) -> None:
            members = new.topics["t"].partitions[0].isr
            seen.append((len(members), (ResourceType.TOPIC, "t") in new.configs))

        following = asyncio.create_task(follower.run())
        while follower._stream is None:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0)
        await follower.caught_up()  # it begins by reading everything
        follower.subscribe(look)
        other.is_armed = True
        (grown,) = await controller.create_partitions([MorePartitions("t", 2)])
        assert grown.error is None
        while other.meanwhile is not None or follower.image.version < controller.image.version:
            await asyncio.wait_for(follower.caught_up(), 20)
        assert (1, False) not in seen
        assert seen[-1] == (1, True)
        assert follower.image.topics == controller.image.topics
        await other.close()
        await following
        await controller.close()
        await store.close()

    asyncio.run(run())


def test_what_was_missed_without_a_connection_is_read_with_the_next(
    controller_of: ControllerOf,
) -> None:
    async def run() -> None:
        ensemble = Ensemble()
        own, other = (EnsembleStore(ensemble, AtOnce(), Random(seed)) for seed in (1, 2))
        await own.start()
        await other.start()
        controller = controller_of(other)
        await controller.open()
        follower = MetadataFollower(own)
        await follower.open()
        running = asyncio.create_task(follower.run())
        await follower.caught_up()
        is_known = asyncio.Event()
        follower.subscribe(lambda _old, new, _delta: is_known.set() if new.configs else None)
        own.break_connection()
        wanted = full_change(ResourceType.GROUP, "g", [("consumer.session.timeout.ms", "1")])
        (result,) = await controller.alter_configs([wanted], incremental=False)
        assert result.error is None
        # The news are over by the time there is a connection.
        own._catch_up(len(ensemble.order), told=False)
        own.mend_connection()
        async with asyncio.timeout(10):
            await is_known.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await controller.close()

    asyncio.run(run())
