"""Partitions are moved between the brokers of a cluster while clients write and read.

Nothing is lost, nothing is there twice, no error surfaces, and the brokers that a partition left have no
folder of it any more.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from cluster_kit.scene import PARTITIONS, SETTINGS, TOPIC, Scene, expect_no_anomaly, wait_until

from ottla import Admin
from ottla.client.admin.configs import Resource
from ottla.client.errors import OttlaError
from ottla.client.positions import TopicPartition
from ottla.testing.cluster import LocalCluster

BROKERS = 4
Target = tuple[int, ...]


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Scene]:
    cluster = LocalCluster(tmp_path / "cluster", brokers=BROKERS, base_port=None, settings=SETTINGS)
    with cluster:
        scene = Scene(cluster)
        scene.create_topic(**{"file.delete.delay.ms": "100"})
        yield scene


def move(scene: Scene, targets: dict[int, Target | None]) -> None:
    with Admin(scene.bootstrap) as admin:
        admin.alter_reassignments(
            {TopicPartition(TOPIC, index): target for index, target in targets.items()}
        )


def replicas(scene: Scene) -> dict[int, list[int]]:
    view = scene.view()
    if view is None:
        return {}
    return {index: list(each.replicas) for index, each in sorted(view.partitions.items())}


def wait_until_moved(scene: Scene, targets: dict[int, Target]) -> None:
    """Until the metadata say so, and folders are where they should be."""

    def metadata_say_so() -> bool:
        found = replicas(scene)
        return bool(found) and all(found[index] == list(to) for index, to in targets.items())

    wait_until(f"moves to {targets}", metadata_say_so)
    # Another broker, which may not know of the end of the moves yet, tells of the others.
    wanted = {**replicas(scene), **targets}

    def wrong_folders() -> dict[int, set[str]]:
        return {
            broker: wrong
            for broker in scene.numbers
            if (
                wrong := {each.name for each in scene.data(broker).glob(f"{TOPIC}-*")}
                ^ {f"{TOPIC}-{index}" for index, held in wanted.items() if broker in held}
            )
        }

    try:
        wait_until("folders of the partitions held, and no others", lambda: not wrong_folders())
    except AssertionError as error:
        raise AssertionError(f"{error}: {wrong_folders()} with {wanted}") from error


def away_from(scene: Scene, broker: int) -> dict[int, Target]:
    """Every partition on the other three, in an order by which another one leads."""
    others = [each for each in scene.numbers if each != broker]
    return {
        index: tuple(others[(index + at) % len(others)] for at in range(3))
        for index in range(PARTITIONS)
    }


def test_moves_under_traffic(four: Scene) -> None:
    workload = four.workload()
    with workload:
        for broker in (1, 3):
            workload.wait_for_progress()
            targets = away_from(four, broker)
            move(four, targets)
            wait_until_moved(four, targets)
        workload.wait_for_progress()
    expect_no_anomaly(workload)
    assert workload.write_errors == []


@pytest.mark.long
def test_bad_plans_are_refused_before_anything_moves(four: Scene) -> None:
    before = replicas(four)
    for targets, words in (
        ({0: (1, 2, 99)}, "no broker 99"),
        ({0: (1, 1, 2)}, "named twice"),
        ({0: ()}, "at least one replica"),
        ({0: None}, "not being moved"),
        ({PARTITIONS: (1, 2, 3)}, "no partition"),
    ):
        with pytest.raises(OttlaError, match=words):
            move(four, targets)
    assert replicas(four) == before


@pytest.mark.long
@pytest.mark.timeout(300)
def test_clients_with_default_settings_notice_nothing(four: Scene) -> None:
    """Producers and a consumer in a group, as they come, while everything moves that they use: the
    topic's partitions and those of the group's offsets."""
    servers = {"bootstrap.servers": four.bootstrap}
    problems: list[str] = []
    delivered: dict[str, list[int]] = {"plain": [], "idempotent": []}
    seen: dict[str, list[int]] = {"plain": [], "idempotent": []}
    ends = threading.Event()

    def produce(name: str, **settings: object) -> None:
        producer = confluent_kafka.Producer({**servers, **settings})

        def told(error: object, message: confluent_kafka.Message) -> None:
            if error is not None:
                problems.append(f"{name}: {error}")
            else:
                delivered[name].append(int(message.value()))

        number = 0
        while not ends.is_set():
            producer.produce(TOPIC, key=name, value=str(number), partition=0, on_delivery=told)
            number += 1
            producer.poll(0.002)
        if producer.flush(60):
            problems.append(f"{name}: not all was delivered")

    def consume() -> None:
        consumer = confluent_kafka.Consumer(
            {**servers, "group.id": "readers", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([TOPIC])
        while not (ends.is_set() and all(has_all(name) for name in seen)):
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is not None:
                problems.append(f"consumer: {message.error()}")
            else:
                seen[message.key().decode()].append(int(message.value()))
        consumer.close()

    def has_all(name: str) -> bool:
        return writers_ended.is_set() and set(seen[name]) >= set(delivered[name])

    writers_ended = threading.Event()
    writers = [
        threading.Thread(target=produce, args=("plain",)),
        threading.Thread(target=produce, args=("idempotent",), kwargs={"enable.idempotence": True}),
    ]
    reader = threading.Thread(target=consume)
    for thread in (*writers, reader):
        thread.start()
    try:
        wait_until("something is read", lambda: all(len(each) > 50 for each in seen.values()))
        for broker in (1, 2, 3, 4):
            targets = away_from(four, broker)
            with Admin(four.bootstrap) as admin:
                offsets = admin.describe_topics("__consumer_offsets")["__consumer_offsets"]
                others = [each for each in four.numbers if each != broker]
                admin.alter_reassignments(
                    {
                        TopicPartition("__consumer_offsets", each.partition): others
                        for each in offsets.partitions
                    }
                )
            move(four, targets)
            wait_until_moved(four, targets)
            count = len(seen["plain"])
            wait_until("reading goes on", lambda known=count: len(seen["plain"]) > known + 50)
    finally:
        ends.set()
        for thread in writers:
            thread.join(90)
        writers_ended.set()
        reader.join(90)
    assert problems == []
    assert not reader.is_alive(), "not everything was read"
    # One is written once, and in order; the other at least once, and nothing of it is missing.
    assert seen["idempotent"] == sorted(set(seen["idempotent"])) == delivered["idempotent"]
    assert delivered["idempotent"] == list(range(len(delivered["idempotent"])))
    assert set(seen["plain"]) == set(range(len(delivered["plain"])))


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "victim", ["controller", "old leader", "new replica", "replica that stays", "zookeeper"]
)
def test_moves_outlive_a_crash(four: Scene, victim: str) -> None:
    """Of anybody who has a part in them, while they are under way: nothing can end before the new
    replica is back, or the limit is lifted."""
    workload = four.workload()
    with workload:
        workload.wait_for_progress()
        held = replicas(four)[0]
        new = next(each for each in four.numbers if each not in held)
        leader = four.leader(0)
        targets = {0: (*(each for each in held if each != leader), new)}
        _throttle(four, 0)
        move(four, targets)
        stays = next(each for each in held if each != leader)
        killed = {
            "controller": four.controller(),
            "old leader": leader,
            "new replica": new,
            "replica that stays": stays,
            "zookeeper": "zookeeper",
        }[victim]
        workload.wait_for_progress()
        four.cluster.kill(killed)
        if victim != "zookeeper":  # without it nobody may be sure to lead
            workload.wait_for_progress()
        assert replicas(four)[0] != list(targets[0])
        four.cluster.start()
        _throttle(four, None)
        wait_until_moved(four, targets)
        workload.wait_for_progress()
    expect_no_anomaly(workload)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_throttled_move_waits_and_those_in_sync_do_not(four: Scene) -> None:
    """With a limit of nothing at all a move stands still, while acks=all goes on; it can be taken back,
    and ends once the limit is lifted."""
    workload = four.workload()
    with workload:
        workload.wait_for_progress()
        before = replicas(four)
        _throttle(four, 0)
        targets = away_from(four, 1)
        moving = [index for index in targets if set(targets[index]) != set(before[index])]
        move(four, targets)
        workload.wait_for_progress(writes=100)
        with Admin(four.bootstrap) as admin:
            listed = admin.list_reassignments()
        assert sorted(each.partition.partition for each in listed) == moving
        assert all(1 in each.removing for each in listed)
        move(four, dict.fromkeys(moving))
        with Admin(four.bootstrap) as admin:
            assert admin.list_reassignments() == []
        assert all(set(replicas(four)[index]) == set(before[index]) for index in moving)
        move(four, targets)
        workload.wait_for_progress()
        _throttle(four, None)
        wait_until_moved(four, targets)
    expect_no_anomaly(workload)
    assert workload.write_errors == []


@pytest.mark.long
def test_a_move_is_no_faster_than_its_limit(four: Scene) -> None:
    """A second's worth may go at once, and one portion beside it; the rest takes its time. (However slow
    the machine is, it takes no less.)"""
    rate, size, portion = 1_000_000, 5_000_000, 1_048_576
    producer = confluent_kafka.Producer({"bootstrap.servers": four.bootstrap})
    for _ in range(size // 50_000):
        producer.produce(TOPIC, os.urandom(50_000), partition=0)
    assert producer.flush(60) == 0
    held = replicas(four)[0]
    new = next(each for each in four.numbers if each not in held)
    targets = {0: (*held[:2], new)}
    _throttle(four, rate)
    began = time.monotonic()
    move(four, targets)
    wait_until("the end of the move", lambda: replicas(four).get(0) == list(targets[0]))
    assert time.monotonic() - began >= (size - rate - portion) / rate


def _throttle(scene: Scene, rate: int | None) -> None:
    """A limit on what anybody sends to, or fetches for, replicas that are not in sync."""
    rates = [f"{side}.replication.throttled.rate" for side in ("leader", "follower")]
    named = [f"{side}.replication.throttled.replicas" for side in ("leader", "follower")]
    with Admin(scene.bootstrap) as admin:
        for resource, names, value in (
            (Resource.topic(TOPIC), named, "*"),
            (Resource.cluster(), rates, str(rate)),
        ):
            if rate is None:
                admin.alter_configs(resource, unset=names)
            else:
                admin.alter_configs(resource, assign=dict.fromkeys(names, value))
