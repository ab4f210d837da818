"""Moves, plans of moves and brokers that leave, while everything that can go wrong does.

The clients of a workload write and read all the time: nothing is lost, doubled or out of order, and what
was asked for happens in the end, or is refused with a sentence.
"""

from __future__ import annotations

import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_kit.commands import ottla
from cluster_kit.scene import PARTITIONS, SETTINGS, TOPIC, Scene, expect_no_anomaly, wait_until

from ottla import Admin, Producer
from ottla.client.admin.configs import Resource
from ottla.client.errors import BrokerError, OttlaError
from ottla.client.positions import TopicPartition
from ottla.protocol.errors import ErrorCode
from ottla.testing.cluster import LocalCluster

RATES = [f"{side}.replication.throttled.rate" for side in ("leader", "follower")]
NAMED = [f"{side}.replication.throttled.replicas" for side in ("leader", "follower")]
CARGO = "cargo"
CARGO_PARTITIONS = 6

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Scene]:
    yield from scene_of(tmp_path, 4)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Scene]:
    yield from scene_of(tmp_path, 3)


def scene_of(folder: Path, brokers: int) -> Iterator[Scene]:
    settings = {**SETTINGS, "offsets.topic.replication.factor": "2"}
    cluster = LocalCluster(folder / "cluster", brokers=brokers, base_port=None, settings=settings)
    with cluster:
        cluster._brokers = None  # it grows and shrinks
        scene = Scene(cluster)
        scene.create_topic(**{"file.delete.delay.ms": "100"})
        yield scene


def load_cargo(scene: Scene, megabytes: int = 20, replicas: int = 2) -> None:
    """A topic with something to move."""
    with Admin(scene.bootstrap) as admin:
        admin.create_topic(CARGO, CARGO_PARTITIONS, replicas)
    with Producer(scene.bootstrap) as producer:
        for number in range(megabytes * 10):
            producer.send(CARGO, random.randbytes(100_000), partition=number % CARGO_PARTITIONS)


def throttle(scene: Scene, rate: int | None) -> None:
    """A limit for all replicas that are not in sync, or none."""
    with Admin(scene.bootstrap) as admin:
        topic = Resource.topic(TOPIC)
        brokers = [Resource.broker(each.id) for each in admin.describe_cluster().brokers]
        if rate is None:
            admin.alter_configs(topic, unset=NAMED)
        else:
            admin.alter_configs(topic, assign=dict.fromkeys(NAMED, "*"))
        for broker in brokers:
            if rate is None:
                admin.alter_configs(broker, unset=RATES)
            else:
                admin.alter_configs(broker, assign=dict.fromkeys(RATES, str(rate)))


def limits(scene: Scene) -> set[str]:
    """What is set of limits, anywhere."""
    with Admin(scene.bootstrap) as admin:
        topics = [Resource.topic(each.name) for each in admin.list_topics(internal=True)]
        brokers = [Resource.broker(each.id) for each in admin.describe_cluster().brokers]
        found = {
            **admin.describe_configs(topics, names=NAMED),
            **admin.describe_configs(brokers, names=RATES),
        }
    return {
        f"{resource}: {name}"
        for resource, settings in found.items()
        for name, setting in settings.items()
        if not setting.is_default
    }


def replicas(scene: Scene, topic: str = TOPIC) -> dict[int, tuple[int, ...]]:
    with Admin(scene.bootstrap) as admin:
        (found,) = admin.describe_topics(topic).values()
    return {each.partition: each.replicas for each in found.partitions}


def wait_until_nothing_moves(scene: Scene) -> None:
    def look() -> bool:
        try:
            with Admin(scene.bootstrap) as admin:
                return not admin.list_reassignments()
        except OttlaError:
            return False

    wait_until("the end of all moves", look)


def wait_for_folders(scene: Scene, topic: str) -> None:
    """Until the folders of a topic are where its replicas are, and nowhere else."""

    def look() -> bool:
        wanted = {(each, index) for index, some in replicas(scene, topic).items() for each in some}
        found = {
            (broker, int(path.name.rpartition("-")[2]))
            for broker in scene.numbers
            for path in scene.data(broker).glob(f"{topic}-[0-9]")
        }
        return found == wanted

    wait_until(f"folders of {topic} where they should be", look)


def cancel(admin: Admin, partition: TopicPartition) -> None:
    """Takes a move back, unless it has come to its end."""
    try:
        admin.alter_reassignments({partition: None})
    except BrokerError as error:
        if error.code is not ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
            raise


def test_cancelled_at_any_moment(four: Scene) -> None:
    chance = random.Random(17)
    workload = four.workload()
    with workload:
        workload.wait_for_progress()
        for number in range(15):
            partition = TopicPartition(TOPIC, chance.randrange(PARTITIONS))
            throttle(four, chance.choice((None, 0)) if number % 3 == 0 else None)
            with Admin(four.bootstrap) as admin:
                for _ in range(chance.randint(1, 3)):
                    target = chance.sample(four.numbers, chance.randint(2, 3))
                    admin.alter_reassignments({partition: target})
                    time.sleep(chance.choice((0.0, 0.02, 0.1, 0.4)))  # any moment will do
                cancel(admin, partition)
            throttle(four, None)
            wait_until_nothing_moves(four)
        workload.wait_for_progress()
        wait_for_folders(four, TOPIC)
    expect_no_anomaly(workload)


@pytest.mark.parametrize("victim", ["old leader", "new replica"])
def test_a_disk_is_replaced_while_a_move_runs(four: Scene, victim: str) -> None:
    workload = four.workload()
    with workload:
        workload.wait_for_progress()
        held = replicas(four)[0]
        new = next(each for each in four.numbers if each not in held)
        leader = four.leader(0)
        target = (*(each for each in held if each != leader), new)
        throttle(four, 0)
        with Admin(four.bootstrap) as admin:
            admin.alter_reassignments({TopicPartition(TOPIC, 0): target})
        workload.wait_for_progress()
        broker = leader if victim == "old leader" else new
        four.cluster.kill(broker)
        shutil.rmtree(four.data(broker))
        workload.wait_for_progress()
        four.cluster.start()
        workload.wait_for_progress()
        assert set(replicas(four)[0]) == {*held, new}
        throttle(four, None)
        wait_until_nothing_moves(four)
        # A broker other than the controller may hear of it a moment later.
        wait_until("replicas where they should be", lambda: replicas(four)[0] == target)
        four.wait_until_in_sync()
        wait_for_folders(four, TOPIC)
        workload.wait_for_progress()
    expect_no_anomaly(workload)


def begun_rebalance(scene: Scene, *words: str) -> subprocess.Popen[str]:
    """`ottla cluster rebalance` with a limit, once it moves something."""
    command = [sys.executable, "-m", "ottla.cli.main", "cluster", "rebalance", "--yes"]
    command += ["--sample", "0", "--throttle", "1000000", "--data", str(scene.cluster.folder)]
    process = subprocess.Popen(
        [*command, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )

    def moves() -> bool:
        assert process.poll() is None, process.communicate()[0]
        with Admin(scene.bootstrap) as admin:
            return bool(admin.list_reassignments())

    wait_until("a move", moves)
    return process


def ended(process: subprocess.Popen[str]) -> str:
    """What it said, if it ended as it should."""
    told, _ = process.communicate(timeout=200)
    assert process.returncode == 0, told
    return told


@pytest.mark.parametrize("how", ["restarted", "killed"])
def test_a_rebalance_while_every_broker_is(three: Scene, how: str) -> None:
    """One after the other, the controller among them, the new one too."""
    load_cargo(three)
    workload = three.workload()
    with workload:
        workload.wait_for_progress()
        three.cluster.add()
        process = begun_rebalance(three)
        try:
            for broker in three.numbers:
                if how == "killed":
                    three.cluster.kill(broker)
                    workload.wait_for_progress()
                else:
                    three.cluster.stop([broker])
                three.cluster.start()
                workload.wait_for_progress()
            told = ended(process)
        finally:
            process.kill()
        workload.wait_for_progress()
        assert any(4 in some for some in replicas(three, CARGO).values())
        wait_until_nothing_moves(three)
        wait_for_folders(three, CARGO)
    # One that was away when the limits were lifted is named.
    left = {int(found) for found in re.findall(r"broker (\d+) is away, and keeps a limit", told)}
    assert limits(three) == {f"broker {each}: {rate}" for each in left for rate in RATES}
    for broker in left:
        ottla("config", "unset", "broker", broker, *RATES, "--server", three.bootstrap)
    assert limits(three) == set()
    expect_no_anomaly(workload)


def test_a_limit_that_was_forgotten(three: Scene) -> None:
    """The command is killed; its moves go on at its rate. The next one lifts that."""
    load_cargo(three, 10)
    three.cluster.add()
    process = begun_rebalance(three)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert limits(three)
    wait_until_nothing_moves(three)
    ottla("cluster", "rebalance", "--yes", "--sample", "0", "--data", three.cluster.folder)
    assert limits(three) == set()
    # Also if there is nothing left to move.
    throttle(three, 5)
    ottla("cluster", "rebalance", "--yes", "--sample", "0", "--data", three.cluster.folder)
    assert limits(three), "somebody's own limit stays"
    throttle(three, None)


def test_brokers_leave(four: Scene) -> None:
    """The controller, one that is dead, one too many, and one that alone has a partition."""
    load_cargo(four, 6)
    data = ("--data", four.cluster.folder)
    workload = four.workload()
    with workload:
        workload.wait_for_progress()
        controller = four.controller()
        four.cluster.add()
        ottla("cluster", "remove", controller, "--yes", *data)
        assert controller not in four.numbers
        workload.wait_for_progress()
        dead = four.numbers[-1]
        four.cluster.kill(dead)
        ottla("cluster", "remove", dead, "--yes", *data)
        workload.wait_for_progress()
        told = ottla("cluster", "remove", four.numbers[0], "--yes", *data, fails=True)
        assert "has 3 replicas, and only 2 brokers would be left" in told
        assert len(four.numbers) == 3
        with Admin(four.bootstrap) as admin:
            assert not admin.list_reassignments()
            admin.create_topic("alone", 1, 1)
            (alone,) = (each.partitions[0] for each in admin.describe_topics("alone").values())
        assert alone.leader is not None
        four.cluster.add()
        four.cluster.kill(alone.leader)
        workload.wait_for_progress()
        told = ottla("cluster", "remove", alone.leader, "--yes", *data, fails=True)
        assert "nobody leads alone-0" in told
        assert alone.leader in four.numbers
        four.cluster.start()
        ottla("cluster", "remove", alone.leader, "--yes", *data)
        workload.wait_for_progress()
        wait_for_folders(four, TOPIC)
    expect_no_anomaly(workload)


def test_a_move_to_a_broker_that_is_given_up_ends(three: Scene) -> None:
    before = replicas(three)
    newcomer = three.cluster.add()
    three.cluster.kill(newcomer)
    with Admin(three.bootstrap) as admin:
        admin.alter_reassignments({TopicPartition(TOPIC, 0): (newcomer, *before[0][1:])})
        assert admin.list_reassignments()
    ottla("cluster", "remove", newcomer, "--force", "--yes", "--data", three.cluster.folder)
    wait_until_nothing_moves(three)
    assert set(replicas(three)[0]) == set(before[0])
    wait_for_folders(three, TOPIC)


def test_two_leave_at_once(four: Scene) -> None:
    """One after the other, if both are asked for at the same time."""
    load_cargo(four, 6)
    four.cluster.add()
    command = [sys.executable, "-m", "ottla.cli.main", "cluster", "remove"]
    data = ["--yes", "--data", str(four.cluster.folder)]
    both = {
        broker: subprocess.Popen(
            [*command, str(broker), *data],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for broker in (4, 5)
    }
    told = {broker: process.communicate(timeout=100)[0] for broker, process in both.items()}
    done = [broker for broker, process in both.items() if process.returncode == 0]
    for broker in both.keys() - set(done):
        assert "another command" in told[broker]
        ottla("cluster", "remove", broker, "--yes", "--data", four.cluster.folder)
    assert done, told
    assert four.numbers == [1, 2, 3]
    wait_until_nothing_moves(four)
    wait_for_folders(four, CARGO)
