"""Faults that are rare, in odd orders: clocks that are set back, brokers that restart and restart,
topics that come back under their old names, stores that go away between two changes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest
from cluster_kit.asking import ask
from cluster_kit.records import read, write
from cluster_kit.scene import (
    PARTITIONS,
    REPLICAS,
    SESSION_SECONDS,
    SETTINGS,
    TOPIC,
    WAIT_SECONDS,
    Scene,
    expect_no_anomaly,
    wait_until,
)
from cluster_kit.settings import set_config
from cluster_kit.writer import Writer
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
)

from ottla.protocol.errors import ErrorCode
from ottla.testing.cluster import LocalCluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

RESTARTS = 20
# Run by the interpreters of the brokers before anything else: SIGUSR2 sets the clock back by an hour, or
# forward again.
CLOCK = """
import signal, time
_time_ns, _back = time.time_ns, 0
def _set_clock(*_):
    global _back
    _back = 0 if _back else 3600 * 10**9
signal.signal(signal.SIGUSR2, _set_clock)
time.time_ns = lambda: _time_ns() - _back
time.time = lambda: (_time_ns() - _back) / 1e9
"""


@pytest.fixture
def clocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """Brokers whose clocks can be set."""
    folder = tmp_path / "clock"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(CLOCK)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    cluster = LocalCluster(tmp_path / "cluster", brokers=3, base_port=None, settings=SETTINGS)
    with cluster:
        scene = Scene(cluster)
        scene.create_topic()
        yield scene


def test_a_clock_that_is_set_back_by_an_hour(clocks: Scene) -> None:
    """Of a leader, of the controller, and of one that dies with the wrong time: sessions, lags, producer
    ids, flushes and retention go by clocks, and nobody's may stand still or run out."""
    scene = clocks
    with scene.workload(producers=1, transactional=1) as workload:
        workload.wait_for_progress()
        for broker in {scene.leader(0), scene.controller()}:
            scene.signal(broker, signal.SIGUSR2)
            workload.quiet_for(SESSION_SECONDS)
            assert scene.cluster.state.brokers[broker].running
            workload.wait_for_progress(100)
        killed = scene.leader(0)
        scene.cluster.kill(killed)
        workload.wait_for_progress()
        scene.cluster.start()  # with the right time again
        scene.wait_until_in_sync()
        workload.wait_for_progress(100)
    expect_no_anomaly(workload)


def test_a_broker_that_is_restarted_over_and_over(scene: Scene) -> None:
    """Killed as soon as it is ready, whatever it was about to do."""
    broker = scene.leader(0)
    with scene.workload() as workload:
        for _ in range(RESTARTS):
            scene.cluster.kill(broker)
            scene.cluster.start([broker])
        workload.wait_for_progress()
        scene.wait_until_in_sync()
        workload.wait_for_progress()
    expect_no_anomaly(workload)


def test_topics_that_come_back_under_their_names_while_a_broker_is_away(scene: Scene) -> None:
    """What the broker has of the deleted topic belongs to another id, and must not come back: not when
    it follows, and not when it leads because the others are gone."""
    admin = AdminClient({"bootstrap.servers": scene.bootstrap, "log_level": 0})
    write(scene, range(300))
    absent = scene.leader(0)
    scene.cluster.kill(absent)
    scene.leader(0, other_than=absent, ask=scene.others(absent))
    for _ in range(3):
        admin.delete_topics([TOPIC])[TOPIC].result(WAIT_SECONDS)
        topic = NewTopic(TOPIC, PARTITIONS, REPLICAS, config={"min.insync.replicas": "2"})

        def made(topic: NewTopic = topic) -> bool:
            try:
                admin.create_topics([topic])[TOPIC].result(WAIT_SECONDS)
            except KafkaException as error:
                print(error)
                return False
            return True

        wait_until("the topic is made anew", made)
    write(scene, range(1000, 1030))
    scene.cluster.start([absent])
    scene.wait_until_in_sync()
    assert read(scene, 30) == list(range(1000, 1030))
    for other in scene.numbers:
        if other != absent:
            scene.cluster.kill(other)

    def leads_alone() -> bool:
        view = ask(scene.address(absent), TOPIC)
        return view is not None and {each.leader for each in view.partitions.values()} == {absent}

    wait_until("the one that was away leads", leads_alone)
    scene.cluster.start()
    scene.wait_until_in_sync()
    assert read(scene, 30) == list(range(1000, 1030))


def test_a_minimum_of_in_sync_replicas_that_is_raised_during_traffic(scene: Scene) -> None:
    with scene.workload() as workload:
        workload.wait_for_progress()
        set_config(scene, scene.numbers[0], "min.insync.replicas", "3")
        workload.wait_for_progress()
        together = Writer(scene, workload, "together", acks=-1, partition=0)
        assert together.write() is ErrorCode.NONE
        killed = next(each for each in scene.numbers if each != together.leader)
        scene.cluster.kill(killed)
        refused = {ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
        wait_until("acks=all is refused", lambda: together.write() in refused)
        set_config(scene, together.leader, "min.insync.replicas", "2")
        workload.wait_for_progress()
        set_config(scene, together.leader, "min.insync.replicas", "3")
        scene.cluster.start()
        scene.wait_until_in_sync()
        workload.wait_for_progress()
    expect_no_anomaly(workload)


@pytest.mark.parametrize("first", [1, 2, 3])
def test_two_of_three_stand_still_and_wake_in_the_other_order(scene: Scene, first: int) -> None:
    second = first % 3 + 1
    with scene.workload() as workload:
        workload.wait_for_progress()
        for broker in (first, second):
            scene.signal(broker, signal.SIGSTOP)
            workload.quiet_for(SESSION_SECONDS * 1.2)
        for broker in (second, first):
            scene.signal(broker, signal.SIGCONT)
            workload.quiet_for(SESSION_SECONDS / 2)
        workload.wait_for_progress()
        scene.wait_until_in_sync()
    expect_no_anomaly(workload)


def test_all_die_at_once_and_come_back_one_by_one_in_any_order(scene: Scene) -> None:
    with scene.workload() as workload:
        for order in permutations(scene.numbers):
            workload.wait_for_progress()
            for broker in scene.numbers:
                scene.signal(broker, signal.SIGSTOP)
            for broker in scene.numbers:
                scene.cluster.kill(broker)
            for broker in order:
                scene.cluster.start([broker])
            workload.wait_for_progress()
            scene.wait_until_in_sync()
    expect_no_anomaly(workload)


def test_topics_are_made_while_zookeeper_is_killed_over_and_over(scene: Scene) -> None:
    """Between any two changes, and in the middle of one: a topic whose making was confirmed is there on
    every broker, and one that was not is there as a whole or not at all."""
    admin = AdminClient({"bootstrap.servers": scene.bootstrap, "log_level": 0})
    confirmed: list[str] = []
    tried: list[str] = []
    over = threading.Event()

    def make_topics() -> None:
        while not over.is_set():
            name = f"made-{len(tried)}"
            tried.append(name)
            try:
                admin.create_topics(
                    [NewTopic(name, PARTITIONS, REPLICAS)], request_timeout=WAIT_SECONDS
                )[name].result(WAIT_SECONDS)
            except KafkaException:
                continue
            confirmed.append(name)

    making = threading.Thread(target=make_topics)
    with scene.workload() as workload:
        making.start()
        try:
            for _ in range(6):
                before = len(confirmed)
                wait_until("a topic is made", lambda before=before: len(confirmed) > before)  # type: ignore[misc]
                scene.cluster.kill("zookeeper")
                scene.cluster.start()
        finally:
            over.set()
            making.join()
        workload.wait_for_progress()
        scene.wait_until_in_sync()

        def agreed() -> bool:
            seen = []
            for broker in scene.numbers:
                known = AdminClient({"bootstrap.servers": scene.address(broker), "log_level": 0})
                topics = known.list_topics(timeout=WAIT_SECONDS).topics
                seen.append(
                    {each: len(topics[each].partitions) for each in tried if each in topics}
                )
            return all(each == seen[0] for each in seen) and (
                set(confirmed) <= seen[0].keys() and set(seen[0].values()) == {PARTITIONS}
            )

        wait_until("all brokers know the same topics, whole ones", agreed)
    expect_no_anomaly(workload)
    print(f"{len(tried)} topics tried, {len(confirmed)} confirmed")
