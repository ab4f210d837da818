"""Brokers that come, go, fail and come back, several in one loop over one store."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from store_kit.faulty import Faults, FaultyStore

from ottla.cluster import layout
from ottla.cluster.controller import Controller
from ottla.cluster.decisions.configs import AlteredResource, ConfigChange, ConfigOperation
from ottla.cluster.decisions.elections import ElectionPolicy
from ottla.cluster.decisions.features import FeatureRange
from ottla.cluster.decisions.partitions import WantedIsr
from ottla.cluster.decisions.topics import DeadTopic, MorePartitions, NewTopic
from ottla.cluster.embedded.store import EmbeddedStore
from ottla.cluster.loading import load_image
from ottla.cluster.membership.following import MetadataFollower
from ottla.cluster.membership.membership import BrokerIdTaken, Membership
from ottla.cluster.metadata import (
    NO_LEADER,
    ClusterImage,
    Endpoint,
    ImageDelta,
    RegisteredBroker,
    ResourceType,
    difference,
)
from ottla.cluster.store import Create, Delete, SessionEvent, Set, Store, StoreUnavailable
from ottla.cluster.tally import Tally

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


@pytest.fixture(params=["without faults", 1, 2])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Runs a scenario over the embedded store, and with some seeds over one with faults."""
    faults = BAD if isinstance(request.param, int) else None
    seed = request.param if isinstance(request.param, int) else 0

    def run_scenario(scenario: Scenario) -> None:
        async def whole() -> None:
            async with cluster_over(tmp_path / "metadata.db", faults, seed) as cluster:
                await asyncio.wait_for(scenario(cluster), 3 * SECONDS)

        asyncio.run(whole())

    return run_scenario


def run_with_faults(tmp_path: Path, scenario: Scenario) -> None:
    """Runs a scenario over a store that has faults when the scenario says so."""

    async def whole() -> None:
        async with cluster_over(tmp_path / "metadata.db", Faults(), 0) as cluster:
            await scenario(cluster)

    asyncio.run(whole())


# Coming ---------------------------------------------------------------------------------------------


def test_the_first_founds_the_cluster_and_all_have_one_image(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        first = await cluster.joined(1)
        assert first.controller is not None
        second, third = await cluster.joined(2), await cluster.joined(3)
        assert (second.controller, third.controller) == (None, None)
        image = await cluster.agree()
        assert set(image.brokers) == {1, 2, 3}
        assert [image.brokers[each.broker_id].epoch for each in cluster.members] == [
            each.epoch for each in cluster.members
        ]
        assert all(each.is_member for each in cluster.members)
        assert image.controller_id == 1

    run(scenario)


def test_several_that_come_at_once_find_one_cluster_and_one_controller(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        members = [cluster.member(each) for each in (1, 2, 3)]
        images = await asyncio.gather(*(each.open() for each in members))
        assert len({image.cluster_id for image in images}) == 1
        await asyncio.gather(*(each.join(broker(each.broker_id), False) for each in members))
        await cluster.has_controller()
        image = await cluster.agree()
        assert set(image.brokers) == {1, 2, 3}

    run(scenario)


def test_a_broker_id_with_another_folder_is_refused(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.joined(1)
        second = await cluster.joined(2, "a folder", port=9999)
        epoch = second.epoch
        intruder = cluster.member(2)
        await intruder.open()
        with pytest.raises(BrokerIdTaken, match=r"127\.0\.0\.1:9999, with another data folder"):
            await intruder.join(broker(2, "another folder"), False)
        image = await cluster.agree()
        assert image.brokers[2].epoch == epoch
        assert second.is_member
        assert not intruder.is_member

    run(scenario)


def test_a_copy_of_the_folder_is_refused_while_its_owner_answers(tmp_path: Path) -> None:
    """A copy has a lock of its own. Were it let in, two brokers would take each other's place."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.joined(1)
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        second = await cluster.joined(2, "a folder", port=port)
        epoch = second.epoch
        intruder = cluster.member(2)
        await intruder.open()
        with pytest.raises(BrokerIdTaken, match=rf"{port}, and this data folder is a copy"):
            await intruder.join(broker(2, "a folder", port=port + 1), False)
        image = await cluster.agree()
        assert image.brokers[2].epoch == epoch
        # Nobody answers there any more: it was killed, and comes back with another port.
        server.close()
        await server.wait_closed()
        await intruder.join(broker(2, "a folder", port=port + 1), False)
        assert intruder.epoch > epoch

    async def whole() -> None:
        async with cluster_over(tmp_path / "metadata.db", None, 0) as cluster:
            await asyncio.wait_for(scenario(cluster), 3 * SECONDS)

    asyncio.run(whole())


def test_who_is_replaced_while_it_takes_office_does_not_go_back(tmp_path: Path) -> None:
    """It stands still after its election. What its broker has learned since stays: a topic that was
    made meanwhile would be deleted there, with its logs."""

    class Slow(Controller):
        async def _tidy(self) -> bool:
            elected.set()
            await may_go_on.wait()
            return await super()._tidy()

    elected, may_go_on = asyncio.Event(), asyncio.Event()

    async def scenario(cluster: Cluster) -> None:
        first, second = await cluster.joined(1), await cluster.joined(2)
        images = [second.image]
        second.follower.subscribe(lambda _old, new, _delta: images.append(new))
        second._make_controller = lambda store: Slow(store, 2, AnyRules(), FEATURES)
        node = await cluster.own.get(layout.CONTROLLER)
        assert node is not None
        second.replace_controller(node)
        await elected.wait()
        await eventually(lambda: first.controller is None)
        node = await cluster.own.get(layout.CONTROLLER)
        assert node is not None
        first.replace_controller(node)
        await eventually(lambda: first.controller is not None)
        (made,) = await cluster.controller.create_topics([NewTopic("t", 1, 2)])
        assert made.error is None
        await eventually(lambda: "t" in second.image.topics)
        may_go_on.set()
        await cluster.controller.create_topics([NewTopic("u", 1, 2)])
        await cluster.agree()
        assert second.controller is None
        versions = [each.version for each in images]
        assert versions == sorted(versions)
        first_with = next(at for at, each in enumerate(images) if "t" in each.topics)
        assert all("t" in each.topics for each in images[first_with:])

    run_with_faults(tmp_path, scenario)


def test_who_lost_its_session_while_it_joined_need_not_wait_for_further_news(
    tmp_path: Path,
) -> None:
    """The controller takes the second registration in before the broker itself knows of its answer."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.joined(1)
        second = cluster.member(2)
        await second.open()
        register, registered = second._register, 0

        async def slow(registering: RegisteredBroker, lost_data: bool) -> int:
            nonlocal registered
            registered += 1
            if registered == 1:
                asyncio.get_running_loop().create_task(cluster.lose_session(second))
                return -1  # not known to anybody
            epoch = await register(registering, lost_data)
            await eventually(lambda: 2 in second.image.brokers)
            return epoch

        second._register = slow  # type: ignore[method-assign]
        async with asyncio.timeout(SECONDS):
            await second.join(broker(2), False)
        assert registered == 2
        assert second.is_member

    run_with_faults(tmp_path, scenario)


def test_the_same_folder_takes_its_node_over_while_the_old_session_stands(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        first = await cluster.joined(1)
        former = cluster.member(2)
        former._reconnects = False
        await former.open()
        await former.join(broker(2), False)
        topics = await cluster.controller.create_topics([NewTopic("t", 1, 2)])
        assert topics[0].error is None
        # Its process is dead; nobody has told the store so far.
        for task in former._tasks:
            task.cancel()
        cluster.members.remove(former)
        later = await cluster.joined(2, lost_data=False)
        assert later.epoch > former.epoch
        image = await cluster.agree(first, later)
        assert image.brokers[2].epoch == later.epoch
        assert set(image.topics["t"].partitions[0].isr) == {1, 2}
        await cluster.lose_session(former)
        await cluster.controller.create_topics([NewTopic("u", 1, 1)])
        image = await cluster.agree(first, later)
        assert image.brokers[2].epoch == later.epoch, "what its former life owned is not its own"

    run(scenario)


def test_a_life_that_lost_its_records_leaves_the_sets_before_it_is_taken_in(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        first = await cluster.joined(1)
        second = await cluster.joined(2)
        await cluster.controller.create_topics([NewTopic("t", 4, 2)])
        seen: list[tuple[int, ...]] = []
        await second.close()
        cluster.members.remove(second)
        first.follower.subscribe(
            lambda _old, new, _delta: (
                seen.extend(each.isr for each in new.topics["t"].partitions)
                if new.brokers.get(2) is not None
                else None
            )
        )
        await cluster.joined(2, lost_data=True)
        image = await cluster.agree()
        assert {each.isr for each in image.topics["t"].partitions} == {(1,)}
        assert set(seen) == {(1,)}

    run(scenario)


def test_an_old_copy_of_a_disk_leaves_the_sets_before_it_is_taken_in(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: Cluster) -> None:
        first = await cluster.joined(1)

        async def second_with(run: str, *former: str) -> Membership:
            """Its former process was killed, and its session stands."""
            member = cluster.member(2)
            await member.open()
            await member.join(replace(broker(2), run=run, former_runs=former), lost_data=False)
            return member

        async def sets() -> set[tuple[int, ...]]:
            image = await cluster.agree(first)
            return {each.isr for each in image.topics["t"].partitions}

        seen: list[tuple[int, ...]] = []
        second = await second_with("1-a")
        await cluster.controller.create_topics([NewTopic("t", 4, 2)])
        second.leave()
        second = await second_with("2-b", "1-a")
        second.leave()
        assert await sets() <= {(1, 2), (2, 1)}
        assert first.image.brokers[2].run == "2-b"
        last = first.image.brokers[2].epoch
        first.follower.subscribe(
            lambda _old, new, _delta: (
                seen.extend(each.isr for each in new.topics["t"].partitions)
                if 2 in new.brokers and new.brokers[2].epoch > last
                else None
            )
        )
        assert "old copy" not in caplog.text
        await second_with("3-c", "1-a")
        assert await sets() == {(1,)}
        assert set(seen) == {(1,)}
        assert (first.image.brokers[2].run, first.image.brokers[2].former_runs) == ("3-c", ())

    run(scenario)
    assert "broker 2 comes with an old copy of its data" in caplog.text


def test_a_run_may_register_again_and_again(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: Cluster) -> None:
        first = await cluster.joined(1)
        second = cluster.member(2)
        await second.open()
        await second.join(replace(broker(2), run="2-b", former_runs=("1-a",)), lost_data=False)
        await cluster.controller.create_topics([NewTopic("t", 1, 2)])
        for _ in range(2):
            epoch = second.epoch
            await cluster.controller.fence_broker(2, epoch)
            await eventually(lambda epoch=epoch: second.epoch > epoch and second.is_member)
        assert (await cluster.agree(first)).brokers[2].run == "2-b"

    run(scenario)
    assert "old copy" not in caplog.text


# Going ----------------------------------------------------------------------------------------------


def test_lost_records_are_told_of_although_the_session_is_lost_before_it_is_taken_in(
    tmp_path: Path,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.joined(1)
        second = await cluster.joined(2)
        controller = cluster.controller
        await controller.create_topics([NewTopic("t", 1, 2)])
        look, go_on = controller._look_at_registrations, asyncio.Event()

        async def look_later() -> None:
            await go_on.wait()
            await look()

        controller._look_at_registrations = look_later  # type: ignore[method-assign]
        await second.close()
        cluster.members.remove(second)
        second = cluster.member(2)
        await second.open()
        joining = asyncio.create_task(second.join(broker(2), lost_data=True))
        await eventually(lambda: second.epoch >= 0)
        epoch = second.epoch
        await cluster.lose_session(second)
        await eventually(lambda: second.epoch > epoch)
        go_on.set()
        await asyncio.wait_for(joining, SECONDS)
        (partition,) = second.image.topics["t"].partitions
        assert (partition.leader, partition.isr, partition.elr) == (1, (1,), ())

    async def whole() -> None:
        async with cluster_over(tmp_path / "metadata.db", None, 0) as cluster:
            await scenario(cluster)

    asyncio.run(whole())


def test_when_the_controller_goes_another_takes_office(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        first, second, third = [await cluster.joined(each) for each in (1, 2, 3)]
        await cluster.controller.create_topics([NewTopic("t", 6, 3)])
        before = await cluster.agree()
        epoch = before.controller_epoch
        await first.close()
        cluster.members.remove(first)
        controller = await cluster.has_controller()
        assert controller.epoch > epoch
        await eventually(lambda: 1 in second.image.fenced and 1 in third.image.fenced)
        after = await cluster.agree()
        assert {each.leader for each in after.topics["t"].partitions} == {2, 3}
        assert all(1 not in each.isr for each in after.topics["t"].partitions)
        # Leaders that stayed keep their epochs.
        for old, new in zip(
            before.topics["t"].partitions, after.topics["t"].partitions, strict=True
        ):
            assert new.leader_epoch == old.leader_epoch + (old.leader == 1)
        await controller.create_topics([NewTopic("u", 2, 2)])
        assert "u" in (await cluster.agree()).topics

    run(scenario)


def test_a_controller_that_is_taken_for_dead_resigns_and_follows(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        first, second = await cluster.joined(1), await cluster.joined(2)
        old = first.controller
        assert old is not None
        holder = await cluster.own.get(layout.CONTROLLER)
        assert holder is not None
        second.replace_controller(holder)
        await eventually(lambda: second.controller is not None)
        # Nobody asks the one that was replaced for anything: it hears of it all the same.
        await eventually(lambda: first.controller is None)
        await cluster.agree()
        new = second.controller
        assert new is not None
        assert new.epoch > old.epoch
        await new.create_topics([NewTopic("t", 1, 2)])
        image = await cluster.agree()
        assert image.controller_id == 2
        assert "t" in first.image.topics

    run(scenario)


def test_a_broker_that_lost_its_session_registers_anew(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.joined(1)
        second = await cluster.joined(2)
        await cluster.controller.create_topics([NewTopic("t", 2, 2)])
        lost: list[int] = []
        second.on_lost = lambda: lost.append(second.epoch)
        epoch, store = second.epoch, second.store
        await cluster.lose_session(second)
        await eventually(lambda: second.epoch > epoch and second.is_member)
        assert lost == [-1], "from the loss on it has no epoch"
        assert second.store is not store
        image = await cluster.agree()
        assert image.brokers[2].epoch == second.epoch
        # What it had it still has; it is for its leaders to take it back into the sets.
        for state in image.topics["t"].partitions:
            assert state.leader in (1, 2)
        await cluster.controller.create_topics([NewTopic("u", 1, 1)])
        assert "u" in (await cluster.agree()).topics

    run(scenario)


def test_a_controller_that_lost_its_session_comes_back_as_a_follower(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        first, second = await cluster.joined(1), await cluster.joined(2)
        await cluster.controller.create_topics([NewTopic("t", 2, 2)])
        epoch = first.epoch
        # The other one stands as soon as the node is gone; the first must connect before it can.
        await cluster.lose_session(first)
        await eventually(lambda: first.epoch > epoch and first.is_member)
        controller = await cluster.has_controller()
        await controller.create_topics([NewTopic("u", 1, 2)])
        image = await cluster.agree()
        assert {"t", "u"} <= set(image.topics)
        assert image.controller_epoch >= 2
        assert second.is_member

    run(scenario)


@pytest.mark.parametrize("found", ["nothing", "another cluster", "an older state"])
def test_a_broker_whose_cluster_is_gone_from_the_store_keeps_what_it_knows(
    tmp_path: Path, found: str, caplog: pytest.LogCaptureFixture
) -> None:
    """ZooKeeper came back without its files, with those of another cluster, or with old ones. A
    broker that believed that would delete the logs of all topics that it does not find there."""
    reason = {
        "nothing": "the metadata store has none any more",
        "another cluster": "instead",
        "an older state": "has an older state of it",
    }[found]

    async def scenario(cluster: Cluster, other: EmbeddedStore) -> None:
        first, second = await cluster.joined(1), await cluster.joined(2)
        if found == "an older state":
            # The write-ahead log too; nobody writes at the moment.
            for ending in ("", "-wal"):
                shutil.copy(tmp_path / f"metadata.db{ending}", tmp_path / f"other.db{ending}")
        await cluster.controller.create_topics([NewTopic("t", 2, 2)])
        known = await cluster.agree()
        await other.start()
        if found == "another cluster":
            stranger = Controller(other.join(), 7, AnyRules(), FEATURES)
            await stranger._store.start()
            await stranger.open()
            await stranger.create_topics([NewTopic("strange", 1, 1)])
            await stranger.close()
        before = await load_image(other)
        cluster.found = other
        heard: list[ImageDelta] = []
        for member in (first, second):
            member.follower.subscribe(lambda _old, _new, delta: heard.append(delta))
        for member in (first, second):
            await cluster.lose_session(member)
        await eventually(lambda: sum(reason in each for each in caplog.messages) == 2)
        assert not any(delta.deleted for delta in heard), "no topic was taken for deleted"
        assert await load_image(other) == before, "nothing is made or changed in what was found"
        assert not first.is_member or first.epoch < 0
        assert first.controller is None
        cluster.found = cluster.own
        await eventually(lambda: first.is_member and second.is_member)
        image = await cluster.agree()
        assert (image.cluster_id, set(image.topics)) == (known.cluster_id, {"t"})

    async def whole() -> None:
        other = EmbeddedStore(tmp_path / "other.db")
        try:
            async with cluster_over(tmp_path / "metadata.db", None, 0) as cluster:
                await asyncio.wait_for(scenario(cluster, other), SECONDS)
        finally:
            await other.close()

    asyncio.run(whole())


def test_a_cluster_that_is_founded_anew_in_the_same_session_is_not_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def whole() -> None:
        async with cluster_over(tmp_path / "metadata.db", None, 0) as cluster:
            await cluster.joined(1)
            second = await cluster.joined(2)
            await cluster.controller.create_topics([NewTopic("t", 1, 1)])
            await cluster.agree()
            known = second.image.cluster_id
            other = layout.dump({"version": "1", "id": "another"})
            await cluster.own.multi([Set(layout.CLUSTER_ID, other)])
            second.follower.resync()
            reason = (
                f"this broker is of cluster {known}, and the metadata store has cluster another"
            )
            await eventually(lambda: any(reason in each for each in caplog.messages))
            await eventually(lambda: second.epoch == -1)
            assert (second.image.cluster_id, set(second.image.topics)) == (known, {"t"})

    asyncio.run(whole())


def test_a_store_that_is_silent_for_long_is_spoken_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    is_silent = True

    async def load(store: Store) -> ClusterImage | None:
        asked.append(is_silent)
        if is_silent:
            raise StoreUnavailable("nobody is there")
        return await load_image(store)

    async def whole() -> None:
        nonlocal is_silent
        async with cluster_over(tmp_path / "metadata.db", None, 0) as cluster:
            await cluster.joined(1)
            second = await cluster.joined(2)
            await cluster.agree()
            monkeypatch.setattr("ottla.cluster.membership.following.load_image", load)
            for outage in (1, 2):
                asked.clear()
                is_silent = True
                second.follower.resync()
                await eventually(lambda: len(asked) > 3)
                assert sum("nobody is there" in each for each in caplog.messages) == outage
                is_silent = False
                await eventually(lambda: False in asked)
                await cluster.agree()

    asyncio.run(whole())


def test_a_fenced_broker_registers_again(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.joined(1)
        second = await cluster.joined(2)
        await cluster.controller.create_topics([NewTopic("t", 2, 2)])
        epoch, session = second.epoch, second.store.session_id
        await cluster.controller.fence_broker(2, epoch)
        await eventually(lambda: second.epoch > epoch and second.is_member)
        assert second.store.session_id == session, "its session was never lost"
        image = await cluster.agree()
        assert image.brokers[2].epoch == second.epoch
        # A life that has ended cannot be fenced again: the new one goes on.
        now = second.epoch
        await cluster.controller.fence_broker(2, epoch)
        await cluster.controller.create_topics([NewTopic("u", 1, 1)])
        await cluster.agree()
        assert (second.epoch, second.is_member) == (now, True)

    run(scenario)


def test_a_broker_that_leaves_does_not_register_again(run: Run) -> None:
    """Its port is closed while it stops, so whoever fences it is right."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.joined(1)
        second = await cluster.joined(2)
        epoch = second.epoch
        second.leave()
        await cluster.controller.fence_broker(2, epoch)
        await eventually(lambda: 2 not in second.image.brokers)
        # Another look, which it takes at every change of the registrations, changes nothing.
        await cluster.joined(3)
        image = await cluster.agree()
        assert sorted(image.brokers) == [1, 3]
        assert second.epoch == epoch

    run(scenario)


def test_a_broker_is_fenced_while_it_looks_at_its_registration(tmp_path: Path) -> None:
    """The news of the second change must not be lost because the first is still being looked at."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.joined(1)
        second = await cluster.joined(2)
        epoch = second.epoch
        store = second.store
        get, arrived, go_on = store.get, asyncio.Event(), asyncio.Event()

        async def slow_get(path: str) -> Any:
            node = await get(path)
            if path == layout.broker_path(2) and not arrived.is_set():
                arrived.set()
                await go_on.wait()
            return node

        store.get = slow_get  # type: ignore[method-assign]
        third = await cluster.joined(3)
        await asyncio.wait_for(arrived.wait(), SECONDS)
        await cluster.controller.fence_broker(2, epoch)
        await eventually(lambda: 2 in third.image.fenced)
        await asyncio.sleep(0)
        go_on.set()
        await eventually(lambda: second.epoch > epoch and second.is_member)

    async def whole() -> None:
        async with cluster_over(tmp_path / "metadata.db", None, 0) as cluster:
            await scenario(cluster)

    asyncio.run(whole())


def test_a_broker_that_goes_while_the_store_is_silent_is_fenced_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The controller hears of it, cannot read the registrations, and is not told again."""

    async def scenario(cluster: Cluster) -> None:
        first = await cluster.joined(1)
        second = await cluster.joined(2)
        await cluster.agree()
        assert isinstance(first.store, FaultyStore)
        first.store.faults = Faults(unavailable=1.0)
        second.leave()
        await cluster.lose_session(second)
        await eventually(lambda: "registrations of brokers could not be read" in caplog.text)
        first.store.faults = Faults()
        await eventually(lambda: 2 in first.image.fenced)

    run_with_faults(tmp_path, scenario)


def test_a_fenced_broker_registers_again_however_long_the_store_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ottla.cluster.membership.membership._RETRY_SECONDS", 0.001)
    monkeypatch.setattr("ottla.cluster.membership.membership._REGISTRATIONS", 3)

    async def scenario(cluster: Cluster) -> None:
        await cluster.joined(1)
        second = await cluster.joined(2)
        epoch = second.epoch
        assert isinstance(second.store, FaultyStore)
        second.store.faults = Faults(unavailable=1.0)
        await cluster.controller.fence_broker(2, epoch)
        await eventually(lambda: "registration" in caplog.text)
        second.store.faults = Faults()
        await eventually(lambda: second.epoch > epoch and second.is_member)

    run_with_faults(tmp_path, scenario)


def test_a_broker_that_is_taken_in_before_it_knows_its_epoch_is_told(tmp_path: Path) -> None:
    """Until then it did not count itself a member, and it follows nobody."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.joined(1)
        second = await cluster.joined(2)
        epoch, store = second.epoch, second.store
        multi = store.multi
        told: list[bool] = []
        second.on_registered = lambda: told.append(second.is_member)

        async def slow_multi(operations: Any) -> Any:
            answer = await multi(operations)
            # The controller is quicker than the answer.
            await eventually(lambda: second.image.brokers[2].epoch > epoch)
            return answer

        store.multi = slow_multi  # type: ignore[method-assign]
        await cluster.controller.fence_broker(2, epoch)
        await eventually(lambda: second.epoch > epoch)
        await eventually(lambda: told == [True])

    async def whole() -> None:
        async with cluster_over(tmp_path / "metadata.db", None, 0) as cluster:
            await scenario(cluster)

    asyncio.run(whole())


def test_a_session_in_which_it_cannot_register_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ottla.cluster.membership.membership._RETRY_SECONDS", 0.001)

    async def scenario(cluster: Cluster) -> None:
        await cluster.joined(1)
        second = await cluster.joined(2)
        epoch = second.epoch
        await second.store.multi([Delete(layout.broker_path(2))])
        second.leave()
        # Another one has taken its id meanwhile.
        value = layout.encode_broker(broker(2, "another folder"), False)
        await cluster.own.multi([Create(layout.broker_path(2), value, ephemeral=True)])
        second._stays = True
        await cluster.lose_session(second)
        await eventually(lambda: caplog.text.count("no new session") >= 3)
        sessions = cluster.own._database.sessions
        assert len(sessions) <= 3
        await cluster.own.multi([Delete(layout.broker_path(2))])
        await eventually(lambda: second.epoch > epoch and second.is_member)

    async def whole() -> None:
        async with cluster_over(tmp_path / "metadata.db", None, 0) as cluster:
            await scenario(cluster)

    asyncio.run(whole())


def test_closing_while_it_reconnects_leaves_no_session(tmp_path: Path) -> None:
    async def whole() -> None:
        async with cluster_over(tmp_path / "metadata.db", None, 0) as cluster:
            await cluster.joined(1)
            second = await cluster.joined(2)
            lost = asyncio.Event()
            second.on_lost = lost.set
            await cluster.lose_session(second)
            await lost.wait()
            await second.close()
            cluster.members.remove(second)
            await cluster.agree()
            assert second.store.session_state is SessionEvent.LOST
            sessions = cluster.own._database.sessions
            assert {each.session_id for each in sessions} == {
                cluster.own.session_id,
                cluster.members[0].store.session_id,
            }

    asyncio.run(whole())


# Elections by what is set ---------------------------------------------------------------------------


def test_a_minimum_that_is_lowered_or_removed_ends_eligibility(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        first = await cluster.joined(1)
        await cluster.joined(2)
        controller = cluster.controller
        setting = {"min.insync.replicas": "2"}
        await controller.create_topics(
            [NewTopic("own", 1, 2, configs=setting), NewTopic("default", 1, 2)]
        )
        controller.default_policy = ElectionPolicy(min_isr=2)

        def eligible(topic: str) -> tuple[int, ...]:
            return first.image.topics[topic].partitions[0].elr

        for name in ("own", "default"):
            topic = first.image.topics[name]
            (state,) = topic.partitions
            wanted = WantedIsr(
                topic.topic_id, 0, state.leader_epoch, state.partition_epoch, [(state.leader, -1)]
            )
            epoch = first.image.brokers[state.leader].epoch
            await controller.alter_isr(state.leader, epoch, [wanted])
            assert len(eligible(name)) == 1
        controller.default_policy = ElectionPolicy(min_isr=1)
        await eventually(lambda: eligible("default") == ())
        assert len(eligible("own")) == 1
        removed = ConfigChange("min.insync.replicas", ConfigOperation.DELETE, None)
        change = AlteredResource(ResourceType.TOPIC, "own", [removed])
        await controller.alter_configs([change], incremental=True)
        assert eligible("own") == ()

    run(scenario)


def test_a_setting_that_allows_unclean_elections_elects_at_once(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: Cluster) -> None:
        first = await cluster.joined(1)
        second = await cluster.joined(2)
        await cluster.joined(3)
        controller = cluster.controller
        for name in ("t", "u"):
            await controller.create_topics([NewTopic(name, -1, -1, [(0, (2, 3)), (1, (2, 3))])])
            topic = controller.image.topics[name]
            epoch = controller.image.brokers[2].epoch
            for state in topic.partitions:
                epochs = (state.leader_epoch, state.partition_epoch)
                wanted = WantedIsr(topic.topic_id, state.index, *epochs, [(2, -1)])
                await controller.alter_isr(2, epoch, [wanted])
        await second.close()
        cluster.members.remove(second)

        def leaders(name: str) -> list[int]:
            return [each.leader for each in first.image.topics[name].partitions]

        await eventually(lambda: leaders("t") == leaders("u") == [NO_LEADER, NO_LEADER])
        allowed = ConfigChange("unclean.leader.election.enable", ConfigOperation.SET, "true")
        change = AlteredResource(ResourceType.TOPIC, "t", [allowed])
        await controller.alter_configs([change], incremental=True)
        assert leaders("t") == [3, 3]
        assert leaders("u") == [NO_LEADER, NO_LEADER], "it is still not allowed there"
        assert cluster.tally.unclean_elections == 2

    run(scenario)
    said = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    for partition in (0, 1):
        begin = f"unclean election: topic=t partition={partition} leader=3 epoch="
        (line,) = [each for each in said if each.startswith(begin)]
        assert "before it leader=2." in line


def test_brokers_that_are_taken_for_dead_are_counted(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        first = await cluster.joined(1)
        second, third = await cluster.joined(2), await cluster.joined(3)
        tally, controller = cluster.tally, cluster.controller
        # In good order.
        await controller.shut_down_broker(3, third.epoch)
        await third.close()
        cluster.members.remove(third)
        await eventually(lambda: 3 not in first.image.brokers)
        assert (tally.refused, tally.lost_sessions) == (0, 0)
        # By a hint; it is alive, and comes back.
        epoch = second.epoch
        await controller.fence_broker(2, epoch)
        await eventually(lambda: second.epoch > epoch and second.is_member)
        assert tally.lost_sessions == 0
        assert tally.refused == 1
        await second.close()
        cluster.members.remove(second)
        await eventually(lambda: 2 not in first.image.brokers)
        assert (tally.refused, tally.lost_sessions) == (1, 1)

    run(scenario)


def test_who_is_eligible_goes_by_the_smallest_minimum_of_the_brokers(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """A leader with a smaller minimum than the controller's commits alone, and then whoever has left
    the in-sync set must not lead."""

    async def scenario(cluster: Cluster) -> None:
        first = await cluster.joined(1, min_isr=2)
        second = await cluster.joined(2, min_isr=2)
        controller = cluster.controller
        controller.default_policy = ElectionPolicy(min_isr=2)
        await controller.create_topics([NewTopic("a", 1, 2), NewTopic("b", 1, 2)])

        def eligible(topic: str) -> tuple[int, ...]:
            return controller.image.topics[topic].partitions[0].elr

        async def shrink(name: str) -> None:
            topic = controller.image.topics[name]
            (state,) = topic.partitions
            epochs = (state.leader_epoch, state.partition_epoch)
            wanted = WantedIsr(topic.topic_id, 0, *epochs, [(state.leader, -1)])
            epoch = controller.image.brokers[state.leader].epoch
            await controller.alter_isr(state.leader, epoch, [wanted])

        await shrink("a")
        assert len(eligible("a")) == 1
        assert "brokers differ" not in caplog.text
        # A third broker comes that would commit alone: in the same write nobody is eligible.
        await cluster.joined(3, min_isr=1)
        assert eligible("a") == ()
        assert "min.insync.replicas (broker 1: 2, broker 2: 2, broker 3: 1)" in caplog.text
        await shrink("b")
        assert eligible("b") == ()
        del first, second

    run(scenario)


def test_a_minimum_for_all_brokers_counts_in_the_write_that_sets_it(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.joined(1, min_isr=2)
        await cluster.joined(2, min_isr=2)
        controller = cluster.controller
        await controller.create_topics([NewTopic("a", 1, 2)])
        topic = controller.image.topics["a"]
        (state,) = topic.partitions
        epochs = (state.leader_epoch, state.partition_epoch)
        wanted = WantedIsr(topic.topic_id, 0, *epochs, [(state.leader, -1)])
        epoch = controller.image.brokers[state.leader].epoch
        await controller.alter_isr(state.leader, epoch, [wanted])
        seen = []
        controller.subscribe(
            lambda _old, new, _delta: seen.append(
                (
                    new.config(ResourceType.BROKER, "").get("min.insync.replicas"),
                    len(new.topics["a"].partitions[0].elr),
                )
            )
        )
        lower = ConfigChange("min.insync.replicas", ConfigOperation.SET, "1")
        change = AlteredResource(ResourceType.BROKER, "", [lower])
        await controller.alter_configs([change], incremental=True)
        assert seen[0] == ("1", 0)

    run(scenario)


async def caught_up(member: Membership) -> None:
    while True:
        try:
            return await member.follower.caught_up()
        except StoreUnavailable:
            await asyncio.sleep(0)


# Following ------------------------------------------------------------------------------------------


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
