"""Brokers that found a cluster, join it and come back: which folder may, and what it has to say."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
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
)

from ottla.cluster import layout
from ottla.cluster.controller import Controller
from ottla.cluster.decisions.topics import NewTopic
from ottla.cluster.membership.membership import BrokerIdTaken, Membership
from ottla.cluster.metadata import (
    RegisteredBroker,
)


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
