"""Consumers of three client libraries in groups on a running broker."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from groups_kit.confluent_members import CHANGED, Member, produce
from groups_kit.scenarios import TOPICS
from server_kit.wire import Wire

from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.testing import BrokerProcess

PARTITIONS = {0, 1, 2}
_numbers = itertools.count()


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    """A topic of three partitions, which is also the name of the test's group."""
    name = f"topic-{next(_numbers)}"
    wanted = CreatableTopic(name=name, num_partitions=len(PARTITIONS), replication_factor=1)
    with Wire(broker.host, broker.port) as wire:
        created = wire.call(CreateTopicsRequest(topics=[wanted]), CreateTopicsResponse, 5)
    assert created.topics[0].error_code == 0
    return name


def shared(one: Member, two: Member | ConsumerProcess) -> Callable[[], bool]:
    return lambda: bool(
        one.owned
        and two.owned
        and one.owned | two.owned == PARTITIONS
        and not one.owned & two.owned
    )


STRATEGIES = ["range", "roundrobin", "cooperative-sticky"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_share_the_partitions(strategy: str, broker: BrokerProcess, topic: str) -> None:
    def member() -> Member:
        return Member(broker.bootstrap, topic, topic, partition_assignment_strategy=strategy)

    with member() as one:
        one.wait(lambda: one.owned == PARTITIONS)
        with member() as two:
            two.wait(shared(one, two))
        one.wait(lambda: one.owned == PARTITIONS)


def test_committed_offsets_are_where_the_next_member_begins(
    broker: BrokerProcess, topic: str
) -> None:
    produce(
        broker.bootstrap, topic, {each: [b"1-%d" % each, b"2-%d" % each] for each in PARTITIONS}
    )
    with Member(broker.bootstrap, topic, topic) as one:
        one.wait(lambda: len(one.read) == 6)
    produce(broker.bootstrap, topic, {0: [b"3-0"]})
    with Member(broker.bootstrap, topic, topic) as two:
        two.wait(lambda: two.owned == PARTITIONS)
        two.wait(lambda: bool(two.read))
        produce(broker.bootstrap, topic, {1: [b"3-1"]})
        two.wait(lambda: len(two.read) == 2)
        assert two.read == [b"3-0", b"3-1"]


def test_a_static_member_comes_back_without_a_rebalance(broker: BrokerProcess, topic: str) -> None:
    def member(instance: str) -> Member:
        return Member(broker.bootstrap, topic, topic, group_instance_id=instance)

    with member("one") as one:
        two = member("two")
        two.wait(shared(one, two))
        rebalances, owned = one.rebalances, set(two.owned)
        # A static member that closes does not leave the group: its session has to end for that.
        two.leave()
        with member("two") as again:
            again.wait(lambda: again.owned == owned)
            assert one.rebalances == rebalances
            assert not one.owned & owned


class ConsumerProcess:
    """See `groups_kit.consumer_process`."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        script = Path(__file__).parent / "groups_kit" / "consumer_process.py"
        self.process = subprocess.Popen(
            [sys.executable, str(script), bootstrap, topic, topic],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.owned: set[int] = set()
        self.read: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            word, _, rest = line.strip().partition(" ")
            with CHANGED:
                if word == "owns":
                    self.owned = {int(each) for each in rest.split(",") if each}
                else:
                    self.read.append(rest)
                CHANGED.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with CHANGED:
            assert CHANGED.wait_for(condition, 30), (self.owned, self.read)


@pytest.fixture
def start_consumer(broker: BrokerProcess) -> Iterator[Callable[[str], ConsumerProcess]]:
    started: list[ConsumerProcess] = []

    def start(topic: str) -> ConsumerProcess:
        started.append(ConsumerProcess(broker.bootstrap, topic))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


def test_the_partitions_of_a_member_that_dies_go_to_the_living(
    broker: BrokerProcess, topic: str, start_consumer: Callable[[str], ConsumerProcess]
) -> None:
    with Member(broker.bootstrap, topic, topic) as one:
        one.wait(lambda: one.owned == PARTITIONS)
        two = start_consumer(topic)
        two.wait(lambda: bool(two.owned))
        two.process.kill()
        one.wait(lambda: one.owned == PARTITIONS)


def test_a_member_that_was_paused_is_fenced(
    broker: BrokerProcess, topic: str, start_consumer: Callable[[str], ConsumerProcess]
) -> None:
    """Its partitions move; when it comes back, it has to join again like anybody else."""
    with Member(broker.bootstrap, topic, topic) as one:
        one.wait(lambda: one.owned == PARTITIONS)
        two = start_consumer(topic)
        two.wait(lambda: bool(two.owned))
        two.process.send_signal(signal.SIGSTOP)
        one.wait(lambda: one.owned == PARTITIONS)
        two.process.send_signal(signal.SIGCONT)
        one.wait(shared(one, two))
        rest = PARTITIONS - one.owned
        produce(broker.bootstrap, topic, {each: [b"%d" % each] for each in PARTITIONS})
        two.wait(lambda: {int(each) for each in two.read} == rest)
        one.wait(lambda: {int(each) for each in one.read} == PARTITIONS - rest)


def test_a_broker_that_is_killed_loses_no_member_and_no_offset(
    start_broker: Callable[[], BrokerProcess],
) -> None:
    broker = start_broker()
    produce(broker.bootstrap, "t", {each: [b"before"] for each in range(TOPICS["t"])})
    with Member(broker.bootstrap, "g", "t", session_timeout_ms=30_000) as one:
        one.wait(lambda: len(one.read) == 3)
        rebalances = one.rebalances
        broker.kill()
        broker.start()
        produce(broker.bootstrap, "t", {each: [b"after"] for each in range(TOPICS["t"])})
        one.wait(lambda: len(one.read) == 6)
        assert one.read == [b"before"] * 3 + [b"after"] * 3
        assert one.rebalances == rebalances
    broker.stop()


def test_kafka_python(broker: BrokerProcess, topic: str) -> None:
    from kafka import KafkaConsumer

    def consumer() -> KafkaConsumer:
        made = KafkaConsumer(
            bootstrap_servers=broker.bootstrap,
            group_id=topic,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6000,
            heartbeat_interval_ms=200,
            consumer_timeout_ms=30_000,
        )
        # A member that joins before it knows the topic gets no partitions, and on a busy machine
        # kafka-python does not always join again.
        made.partitions_for_topic(topic)
        made.subscribe([topic])
        return made

    produce(broker.bootstrap, topic, {each: [b"%d" % each] for each in PARTITIONS})
    one = consumer()
    read = [next(one).value for _ in PARTITIONS]
    assert sorted(read) == [b"0", b"1", b"2"]
    one.commit()
    two = consumer()
    turns = itertools.count()
    while len(one.assignment()) + len(two.assignment()) != 3 or not two.assignment():
        one.poll(50)
        two.poll(50)
        assert next(turns) < 300
    assert not one.assignment() & two.assignment()
    two.close()
    while len(one.assignment()) != 3:
        one.poll(50)
        assert next(turns) < 600
    one.close()
    produce(broker.bootstrap, topic, {0: [b"next"]})
    three = consumer()
    assert next(three).value == b"next"
    three.close()


def test_aiokafka(broker: BrokerProcess, topic: str) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rebalanced = asyncio.Condition()

        async def on_partitions_revoked(self, revoked: object) -> None:
            pass

        async def on_partitions_assigned(self, assigned: object) -> None:
            async with self.rebalanced:
                self.rebalanced.notify_all()

    async def talk() -> None:
        listener = Listener()

        async def consumer() -> AIOKafkaConsumer:
            started = AIOKafkaConsumer(
                bootstrap_servers=broker.bootstrap,
                group_id=topic,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                session_timeout_ms=6000,
                heartbeat_interval_ms=200,
            )
            started.subscribe([topic], listener=listener)
            await started.start()
            return started

        async def until(condition: Callable[[], bool]) -> None:
            async with listener.rebalanced:
                await listener.rebalanced.wait_for(condition)

        produce(broker.bootstrap, topic, {each: [b"%d" % each] for each in PARTITIONS})
        one = await consumer()
        read = [(await one.getone()).value for _ in PARTITIONS]
        assert sorted(read) == [b"0", b"1", b"2"]
        await one.commit()
        two = await consumer()
        await until(
            lambda: bool(two.assignment()) and len(one.assignment()) + len(two.assignment()) == 3
        )
        assert not one.assignment() & two.assignment()
        await two.stop()
        await until(lambda: len(one.assignment()) == 3)
        await one.stop()
        produce(broker.bootstrap, topic, {0: [b"next"]})
        three = await consumer()
        assert (await three.getone()).value == b"next"
        await three.stop()

    async def within() -> None:
        async with asyncio.timeout(60):
            await talk()

    asyncio.run(within())


def test_admin_tools_see_the_group(broker: BrokerProcess, topic: str) -> None:
    from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    produce(broker.bootstrap, topic, {0: [b"one"]})
    with Member(broker.bootstrap, topic, topic, client_id="someone") as one:
        one.wait(lambda: len(one.read) == 1)
        listed = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result().valid
        assert topic in {group.group_id for group in listed}
        described = admin.describe_consumer_groups([topic])[topic].result()
        (member,) = described.members
        assert (member.client_id, described.partition_assignor) == ("someone", "range")
        assert {each.partition for each in member.assignment.topic_partitions} == PARTITIONS
    wanted = ConsumerGroupTopicPartitions(topic, [TopicPartition(topic, 0)])
    fetched = admin.list_consumer_group_offsets([wanted])[topic].result()
    assert [each.offset for each in fetched.topic_partitions] == [1]
    moved = ConsumerGroupTopicPartitions(topic, [TopicPartition(topic, 0, 0)])
    admin.alter_consumer_group_offsets([moved])[topic].result()
    with Member(broker.bootstrap, topic, topic) as again:
        again.wait(lambda: again.read == [b"one"])
    admin.delete_consumer_groups([topic])[topic].result()
    assert topic not in {group.group_id for group in admin.list_consumer_groups().result().valid}
