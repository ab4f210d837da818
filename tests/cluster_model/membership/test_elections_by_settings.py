"""Elections that changes of settings cause, and what members tell of the dead."""

from __future__ import annotations

import pytest
from store_kit.members import Cluster, Run, eventually

from ottla.cluster.decisions.configs import AlteredResource, ConfigChange, ConfigOperation
from ottla.cluster.decisions.elections import ElectionPolicy
from ottla.cluster.decisions.partitions import WantedIsr
from ottla.cluster.decisions.topics import NewTopic
from ottla.cluster.metadata import (
    NO_LEADER,
    ResourceType,
)


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
