"""Consumers of confluent-kafka that speak the new protocol, and both protocols in one group."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from groups_kit.confluent_members import CHANGED, Member, produce
from server_kit.wire import Wire

from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.testing import BrokerProcess

PARTITIONS = {0, 1, 2}
SETTINGS = {
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.assignment.interval.ms": "0",
}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def quick_broker(start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    return start_broker(SETTINGS)


@pytest.fixture
def topic(quick_broker: BrokerProcess) -> str:
    """A topic of three partitions, which is also the name of the test's group."""
    name = f"topic-{next(_numbers)}-"
    create(quick_broker, name)
    return name


def create(broker: BrokerProcess, name: str) -> None:
    wanted = CreatableTopic(name=name, num_partitions=len(PARTITIONS), replication_factor=1)
    with Wire(broker.host, broker.port) as wire:
        created = wire.call(CreateTopicsRequest(topics=[wanted]), CreateTopicsResponse, 5)
    assert created.topics[0].error_code == 0


def kind_of(broker: BrokerProcess, group: str) -> str:
    with Wire(broker.host, broker.port) as wire:
        groups = wire.call(ListGroupsRequest(), ListGroupsResponse, 5).groups
    (found,) = [each.group_type for each in groups if each.group_id == group]
    return found


def new(broker: BrokerProcess, group: str, topic: str | None = None, **settings: str) -> Member:
    return Member(broker.bootstrap, group, topic or group, group_protocol="consumer", **settings)


def classic(broker: BrokerProcess, group: str) -> Member:
    return Member(broker.bootstrap, group, group)


def shared(*members: Member) -> Callable[[], bool]:
    """All have some, together they have all, and nobody has what another has."""

    def check() -> bool:
        owned = [each.owned for each in members]
        return all(owned) and sorted(itertools.chain(*owned)) == sorted(PARTITIONS)

    return check


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_share_the_partitions(
    assignor: str, quick_broker: BrokerProcess, topic: str
) -> None:
    with new(quick_broker, topic, group_remote_assignor=assignor) as one:
        one.wait(lambda: one.owned == PARTITIONS)
        with new(quick_broker, topic, group_remote_assignor=assignor) as two:
            two.wait(shared(one, two))
            with new(quick_broker, topic, group_remote_assignor=assignor) as three:
                three.wait(shared(one, two, three))
            one.wait(shared(one, two))
        one.wait(lambda: one.owned == PARTITIONS)
        assert kind_of(quick_broker, topic) == "consumer"


def test_everything_is_read_once_where_nobody_dies(quick_broker: BrokerProcess, topic: str) -> None:
    first = {index: [b"%d-%d" % (index, each) for each in range(50)] for index in PARTITIONS}
    later = {index: [b"%d-later-%d" % (index, each) for each in range(50)] for index in PARTITIONS}
    produce(quick_broker.bootstrap, topic, first)
    with new(quick_broker, topic) as one, new(quick_broker, topic) as two:
        one.wait(shared(one, two))
        produce(quick_broker.bootstrap, topic, later)
        one.wait(lambda: len(one.read) + len(two.read) >= 300)
    expected = sorted(itertools.chain(*first.values(), *later.values()))
    assert sorted({*one.read, *two.read}) == expected


def test_a_static_member_is_restarted_without_a_rebalance(
    quick_broker: BrokerProcess, topic: str
) -> None:
    with (
        new(quick_broker, topic, group_instance_id="one") as one,
        new(quick_broker, topic, group_instance_id="two") as two,
    ):
        two.wait(shared(one, two))
        owned, rebalances = set(two.owned), one.rebalances
        two.leave()
        with new(quick_broker, topic, group_instance_id="two") as again:
            again.wait(lambda: again.owned == owned)
            assert one.rebalances == rebalances


def test_a_pattern_finds_topics_that_come_later(quick_broker: BrokerProcess, topic: str) -> None:
    """The coordinator resolves it anew within ten seconds and a heartbeat."""
    with new(quick_broker, topic, f"^{topic}.*") as one:
        one.wait(lambda: one.owned == PARTITIONS)
        create(quick_broker, topic + "later")
        produce(quick_broker.bootstrap, topic + "later", {0: [b"found"]})
        one.wait(lambda: b"found" in one.read, timeout=40)


def test_a_group_is_upgraded_and_downgraded_member_by_member(
    quick_broker: BrokerProcess, topic: str
) -> None:
    with classic(quick_broker, topic) as old_one, classic(quick_broker, topic) as old_two:
        old_two.wait(shared(old_one, old_two))
        assert kind_of(quick_broker, topic) == "classic"
        old_one.leave()
        with new(quick_broker, topic) as new_one:
            new_one.wait(shared(new_one, old_two))
            assert kind_of(quick_broker, topic) == "consumer"
            old_two.leave()
            with new(quick_broker, topic) as new_two:
                new_two.wait(shared(new_one, new_two))
                new_one.leave()
                with classic(quick_broker, topic) as back_one:
                    back_one.wait(shared(back_one, new_two))
                    assert kind_of(quick_broker, topic) == "consumer"
                    new_two.leave()
                    back_one.wait(lambda: back_one.owned == PARTITIONS)
                    assert kind_of(quick_broker, topic) == "classic"
                    produce(quick_broker.bootstrap, topic, {each: [b"x"] for each in PARTITIONS})
                    back_one.wait(lambda: len(back_one.read) == len(PARTITIONS))


def test_a_broker_that_is_killed_loses_no_member_and_no_offset(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", settings=SETTINGS).start()
    try:
        create(broker, "topic")
        produce(broker.bootstrap, "topic", {each: [b"%d-1" % each] for each in PARTITIONS})
        with new(broker, "topic") as one, new(broker, "topic") as two:
            two.wait(shared(one, two))
            two.wait(lambda: len(one.read) + len(two.read) >= 3)
            before = one.rebalances, two.rebalances
            broker.kill()
            broker.start()
            produce(broker.bootstrap, "topic", {each: [b"%d-2" % each] for each in PARTITIONS})
            two.wait(lambda: len({*one.read, *two.read}) == 6)
            with CHANGED:
                assert shared(one, two)()
            assert (one.rebalances, two.rebalances) == before
    finally:
        broker.kill()
