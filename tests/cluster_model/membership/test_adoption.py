"""A single node's metadata become a cluster's: all of it, or nothing that anybody would take for one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from store_kit.faulty import Faults, FaultyStore

from ottla.cluster.adoption import CannotAdopt, adopt
from ottla.cluster.decisions.topics import NewTopic
from ottla.cluster.embedded.store import EmbeddedStore
from ottla.cluster.loading import load_image
from ottla.cluster.metadata import ClusterImage, RegisteredBroker
from ottla.cluster.store import Answer, Operation, Store, StoreError

ControllerOf = Callable[..., Any]
BrokerOf = Callable[..., RegisteredBroker]


class Mortal(FaultyStore):
    """Small multis, and the end of the process after so many of them."""

    def __init__(self, inner: Store, lives: int) -> None:
        super().__init__(inner, 0, Faults())
        self.largest_multi = 2000
        self.lives = lives

    async def multi(self, operations: Sequence[Operation]) -> Answer:
        if not self.lives:
            raise StoreError("the process has ended")
        self.lives -= 1
        return await super().multi(operations)


async def single_node(path: Path, controller_of: ControllerOf, broker: BrokerOf) -> Store:
    """A store with a node that has lived for a while."""
    store = EmbeddedStore(path)
    await store.start()
    for _ in range(2):
        controller = controller_of(store)
        await controller.open()
        await controller.register(broker(1))
        await controller.close()
    controller = controller_of(store)
    await controller.open()
    await controller.register(broker(1))
    await controller.create_topics(
        [NewTopic("small", 3, 1, configs={"retention.ms": "1000"}), NewTopic("large", 200, 1)]
    )
    await controller.allocate_producer_ids()
    await controller.close()
    return store


def same(image: ClusterImage) -> ClusterImage:
    """What an adoption keeps."""
    return replace(image, brokers={}, fenced={}, version=0, controller_epoch=0, controller_id=-1)


def test_everything_is_kept_wherever_it_was_broken_off(
    tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf
) -> None:
    async def run() -> None:
        source = await single_node(tmp_path / "metadata.db", controller_of, broker)
        before = await load_image(source)
        assert before is not None
        assert before.leader_epoch_base > 0
        assert before.secret
        steps = 0
        while True:
            path = tmp_path / f"target-{steps}.db"
            target = EmbeddedStore(path)
            await target.start()
            mortal = Mortal(target, steps)
            try:
                await adopt(source, mortal)
                break
            except StoreError:
                # Nothing there that a broker would take for a cluster.
                assert await load_image(target) is None
            # It ends a second time, in its clearing or later, and then it does not.
            with pytest.raises(StoreError):
                await adopt(source, Mortal(target, min(steps, 2)))
            await adopt(source, Mortal(target, 1000))
            after = await load_image(target)
            assert after is not None
            assert same(after) == same(before)
            await target.close()
            steps += 1
        assert steps > 5
        # Once more is once.
        revision = (await load_image(target)).version  # type: ignore[union-attr]
        await adopt(source, target)
        assert (await load_image(target)).version == revision  # type: ignore[union-attr]
        await target.close()
        await source.close()

    asyncio.run(run())


def test_what_is_in_the_way(tmp_path: Path, controller_of: ControllerOf, broker: BrokerOf) -> None:
    async def run() -> None:
        source = await single_node(tmp_path / "metadata.db", controller_of, broker)
        other = EmbeddedStore(tmp_path / "other.db")
        await other.start()
        with pytest.raises(CannotAdopt, match="no metadata of a single node"):
            await adopt(other, source)
        controller = controller_of(other, seed=1)
        await controller.open()
        with pytest.raises(CannotAdopt, match="already has a cluster"):
            await adopt(source, other)
        await controller.register(broker(1))
        await controller.register(broker(2))
        await controller.close()
        empty = EmbeddedStore(tmp_path / "empty.db")
        await empty.start()
        with pytest.raises(CannotAdopt, match="2 brokers, not of a single node"):
            await adopt(other, empty)
        for store in (source, other, empty):
            await store.close()

    asyncio.run(run())
