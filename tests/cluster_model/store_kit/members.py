"""Members of a cluster, several in one loop over one embedded store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

from ottla.cluster.controller import Controller
from ottla.cluster.decisions.features import FeatureRange
from ottla.cluster.embedded.store import EmbeddedStore
from ottla.cluster.loading import load_image
from ottla.cluster.membership.membership import Membership
from ottla.cluster.metadata import (
    ClusterImage,
    Endpoint,
    RegisteredBroker,
    ResourceType,
)
from ottla.cluster.store import Store, StoreUnavailable
from ottla.cluster.tally import Tally
from store_kit.faulty import Faults, FaultyStore

SECONDS = 20
FEATURES = {"group.version": FeatureRange(0, 1, 1)}
# Every fault that a store can have, often.
BAD = Faults(lost_before=0.1, lost_after=0.1, lost_late=0.1, unavailable=0.04)


class AnyRules:
    """All settings are fine."""

    def check(self, resource: object, config: object, altered: object) -> None:
        pass

    def is_list(self, resource_type: ResourceType, name: str) -> bool:
        return False

    def list_default(self, resource_type: ResourceType, name: str) -> str | None:
        return None


class Cluster:
    """Members over one embedded store, each with a session of its own."""

    def __init__(self, path: Path, faults: Faults | None, seed: int = 0) -> None:
        # Keeps the file open while members come and go; it also reads behind all faults.
        self.own = EmbeddedStore(path)
        # Where new sessions find what there is.
        self.found = self.own
        self._faults = faults
        self._seed = seed
        self.members: list[Membership] = []
        self.tally = Tally()  # of all controllers

    def connect(self) -> Store:
        store: Store = self.found.join()
        if self._faults is not None:
            self._seed += 1
            store = FaultyStore(store, self._seed, self._faults)
        return store

    def member(self, broker_id: int) -> Membership:
        def make(store: Store) -> Controller:
            return Controller(
                store,
                broker_id,
                AnyRules(),
                FEATURES,
                tally=self.tally,
                random=Random(1),
                pauses=(0.0,) * 60,
            )

        member = Membership(broker_id, self.connect, make, reconnects=True)
        self.members.append(member)
        return member

    async def joined(
        self,
        broker_id: int,
        folder: str = "",
        lost_data: bool = False,
        port: int = 9092,
        min_isr: int = 0,
    ) -> Membership:
        member = self.member(broker_id)
        await member.open()
        await member.join(replace(broker(broker_id, folder, port), min_isr=min_isr), lost_data)
        return member

    @property
    def controller(self) -> Controller:
        (office,) = [each.controller for each in self.members if each.controller is not None]
        return office

    async def has_controller(self) -> Controller:
        await eventually(
            lambda: sum(1 for each in self.members if each.controller is not None) == 1
        )
        return self.controller

    async def agree(self, *members: Membership) -> ClusterImage:
        """Waits until these members, or all, have the image that the store has."""

        async def all_have_it() -> bool:
            image = await load_image(self.own)
            return all(each.image == image for each in members or self.members)

        await eventually(all_have_it)
        image = await load_image(self.own)
        assert image is not None
        return image

    async def lose_session(self, member: Membership) -> None:
        store = member.store
        inner = store.inner if isinstance(store, FaultyStore) else store
        assert isinstance(inner, EmbeddedStore)
        await inner.expire()


def broker(broker_id: int, folder: str = "", port: int = 9092) -> RegisteredBroker:
    endpoints = (Endpoint("PLAINTEXT", "127.0.0.1", port, "PLAINTEXT"),)
    return RegisteredBroker(broker_id, -1, None, endpoints, folder or f"folder {broker_id}")


async def eventually(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Lets the others work until something holds."""

    async def look() -> None:
        while True:
            held = condition()
            if not isinstance(held, bool):
                held = await held
            if held:
                return
            await asyncio.sleep(0.002)

    await asyncio.wait_for(look(), SECONDS)


@asynccontextmanager
async def cluster_over(path: Path, faults: Faults | None, seed: int) -> AsyncIterator[Cluster]:
    cluster = Cluster(path, faults, 1000 * seed)
    await cluster.own.start()
    try:
        yield cluster
    finally:
        for member in cluster.members:
            await member.close()
        await cluster.own.close()


Scenario = Callable[[Cluster], Awaitable[None]]
Run = Callable[[Scenario], None]


def run_with_faults(tmp_path: Path, scenario: Scenario) -> None:
    """Runs a scenario over a store that has faults when the scenario says so."""
    _run_once(tmp_path, Faults(), scenario)


def run_without_faults(tmp_path: Path, scenario: Scenario) -> None:
    """Runs a scenario over the embedded store itself."""
    _run_once(tmp_path, None, scenario)


def _run_once(tmp_path: Path, faults: Faults | None, scenario: Scenario) -> None:
    async def whole() -> None:
        async with cluster_over(tmp_path / "metadata.db", faults, 0) as cluster:
            await scenario(cluster)

    asyncio.run(whole())


async def caught_up(member: Membership) -> None:
    while True:
        try:
            return await member.follower.caught_up()
        except StoreUnavailable:
            await asyncio.sleep(0)
