"""Brokers that go, lose their sessions, are taken for dead, and come back."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from store_kit.faulty import Faults, FaultyStore
from store_kit.members import (
    FEATURES,
    SECONDS,
    AnyRules,
    Cluster,
    Run,
    broker,
    cluster_over,
    eventually,
    run_with_faults,
    run_without_faults,
)

from ottla.cluster import layout
from ottla.cluster.controller import Controller
from ottla.cluster.decisions.topics import NewTopic
from ottla.cluster.embedded.store import EmbeddedStore
from ottla.cluster.loading import load_image
from ottla.cluster.metadata import (
    ClusterImage,
    ImageDelta,
    ResourceType,
)
from ottla.cluster.store import Create, Delete, SessionEvent, Set, Store, StoreUnavailable


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

    run_without_faults(tmp_path, scenario)


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

    run_without_faults(tmp_path, scenario)


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

    run_without_faults(tmp_path, scenario)


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

    run_without_faults(tmp_path, scenario)


def test_a_broker_without_descriptors_connects_anew_once_it_has_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.cluster.membership.membership._RETRY_SECONDS", 0.001)

    async def scenario(cluster: Cluster) -> None:
        await cluster.joined(1)
        second = await cluster.joined(2)
        epoch = second.epoch

        def without_descriptors() -> Store:
            second._connect = cluster.connect
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        second._connect = without_descriptors
        await cluster.lose_session(second)
        await eventually(lambda: second.epoch > epoch and second.is_member)
        await cluster.agree()

    run_without_faults(tmp_path, scenario)


@pytest.mark.parametrize(
    "path",
    [
        layout.topic_path("spoilt"),
        layout.config_path((ResourceType.TOPIC, "t")),
        f"{layout.REGISTRATIONS}/spoilt",
    ],
)
def test_the_metadata_are_followed_again_once_what_was_spoilt_is_mended(
    tmp_path: Path, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By another program on the same path, or by hand."""

    async def scenario(cluster: Cluster) -> None:
        first, second = await cluster.joined(1), await cluster.joined(2)
        if first.controller is None:
            first, second = second, first
        await cluster.agree()
        vacancies: list[None] = []
        second.follower.on_controller = lambda: vacancies.append(None)
        await cluster.own.multi([Create(path, b"?")])
        await eventually(lambda: "cannot be followed" in caplog.text)
        await cluster.controller.create_topics([NewTopic("u", 1, 1)])
        # It hears of other changes all the same, and tells of this one once.
        node = await cluster.own.get(layout.CONTROLLER)
        assert node is not None
        await cluster.own.multi([Set(layout.CONTROLLER, node.value)])
        await eventually(lambda: bool(vacancies))
        assert "u" not in second.image.topics
        assert caplog.text.count("cannot be followed") == 1
        await cluster.own.multi([Delete(path)])
        await cluster.agree()
        assert "u" in second.image.topics

    run_without_faults(tmp_path, scenario)


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
