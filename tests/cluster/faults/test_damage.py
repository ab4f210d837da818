"""Damage at rest, and logs that fail: other replicas lead, and what is damaged is fetched again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_kit.scene import SETTINGS, TOPIC, Scene, wait_until
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from ottla import Admin
from ottla.logfiles.folders import NotALog, find_logs
from ottla.storage.scrub import note_damage, scrub_log
from ottla.testing.cluster import LocalCluster

RECORDS = 60
SCRUBBING = {"log.scrub.interval.ms": "200", "log.scrub.bytes.per.second": "100000000"}
# An index of a few entries, one for each batch, closes a segment.
SMALL_SEGMENTS = {"segment.index.bytes": "80", "index.interval.bytes": "0"}


@pytest.fixture
def scrubbed(tmp_path: Path) -> Iterator[Scene]:
    settings = {**SETTINGS, **SCRUBBING}
    cluster = LocalCluster(tmp_path / "cluster", brokers=3, base_port=None, settings=settings)
    with cluster:
        scene = Scene(cluster)
        scene.create_topic(**SMALL_SEGMENTS)
        yield scene


def write(scene: Scene, first: int, count: int) -> None:
    """One batch for each record, acknowledged by all in sync."""
    producer = Producer(
        {"bootstrap.servers": scene.bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0}
    )
    failures: list[object] = []
    for number in range(first, first + count):
        producer.produce(
            TOPIC,
            b"%05d" % number * 40,
            partition=0,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        assert producer.flush(30) == 0
    assert failures == []


def read(scene: Scene, count: int) -> None:
    """What was written is there, once and in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": scene.bootstrap,
            "group.id": "damage",
            "enable.auto.commit": False,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    found: list[bytes] = []
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])

        def all_there() -> bool:
            messages = consumer.consume(count, 0.5)
            found.extend(each.value() for each in messages if each.error() is None)
            return len(found) >= count

        wait_until(f"{count} records", all_there)
    finally:
        consumer.close()
    assert found == [b"%05d" % number * 40 for number in range(count)]


def change_settings(scene: Scene, **settings: str) -> None:
    admin = AdminClient({"bootstrap.servers": scene.bootstrap, "log_level": 0})
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def folder(scene: Scene, broker: int) -> Path:
    return scene.data(broker) / f"{TOPIC}-0"


def is_sound(scene: Scene, broker: int) -> bool:
    try:
        logs = find_logs(folder(scene, broker))
        return bool(logs) and not any(list(scrub_log(each)) for each in logs)
    except (OSError, NotALog):
        return False  # just set aside


def flip(scene: Scene, broker: int) -> None:
    """A byte in the first closed segment."""
    closed = min(folder(scene, broker).glob("*.log"))
    with closed.open("r+b") as file:
        file.seek(100)
        byte = file.read(1)
        file.seek(100)
        file.write(bytes([byte[0] ^ 0x5A]))
    assert not is_sound(scene, broker)


def strays(scene: Scene, broker: int) -> list[Path]:
    return list(scene.data(broker).glob(f"{TOPIC}-0.*-damaged-stray"))


def test_damaged_replicas_are_fetched_again(scrubbed: Scene) -> None:
    scene = scrubbed
    write(scene, 0, RECORDS)
    leader = scene.leader(0)
    flip(scene, leader)
    # It hands its leadership over, or a reader would be given what is damaged.
    led_by = scene.leader(0, other_than=leader)
    wait_until("the former leader's log is whole", lambda: is_sound(scene, leader))
    scene.wait_until_in_sync()
    (kept,) = strays(scene, leader)
    assert len(list(kept.glob("*.log"))) > 1
    read(scene, RECORDS)

    write(scene, RECORDS, 10)
    led_by = scene.leader(0)
    follower = next(each for each in scene.numbers if each not in (leader, led_by))
    flip(scene, follower)
    wait_until("the follower's log is whole", lambda: is_sound(scene, follower))
    scene.wait_until_in_sync()
    assert len(strays(scene, follower)) == 1
    assert scene.leader(0) == led_by
    write(scene, RECORDS + 10, 10)
    read(scene, RECORDS + 20)
    for broker in scene.numbers:
        assert is_sound(scene, broker)


@pytest.mark.long
def test_damage_that_was_found_while_the_broker_was_stopped(scene: Scene) -> None:
    change_settings(scene, **SMALL_SEGMENTS)
    write(scene, 0, RECORDS)
    leader = scene.leader(0)
    scene.cluster.stop([leader])
    flip(scene, leader)
    assert note_damage(scene.data(leader), [f"{TOPIC}-0"])
    scene.cluster.start()
    wait_until("the log is whole", lambda: is_sound(scene, leader))
    scene.wait_until_in_sync()
    assert len(strays(scene, leader)) == 1
    read(scene, RECORDS)


@pytest.mark.long
def test_the_only_replica_in_sync_stays_as_it_is(scrubbed: Scene) -> None:
    scene = scrubbed
    write(scene, 0, RECORDS)
    leader = scene.leader(0)
    for broker in scene.numbers:
        if broker != leader:
            scene.cluster.kill(broker)
    # Before they are known to be away, the leadership is handed over to one of them.
    with Admin(scene.address(leader)) as admin:
        wait_until(
            "the others are known to be away",
            lambda: [each.id for each in admin.describe_cluster().brokers] == [leader],
        )
    log_file = scene.cluster.log_path(leader)
    flip(scene, leader)
    wait_until(
        "it is said that the log is left as it is",
        lambda: "a damaged log is left as it is" in log_file.read_text(),
    )
    assert strays(scene, leader) == []
    scene.cluster.start()
    # With the others back, it is fetched again.
    wait_until("the log is whole", lambda: is_sound(scene, leader))
    scene.wait_until_in_sync()
    read(scene, RECORDS)


@pytest.mark.long
def test_a_leader_whose_log_fails_hands_its_leadership_over(scene: Scene) -> None:
    """Its folder disappears: the next segment cannot be made, and the log goes offline."""
    write(scene, 0, 5)
    leader = scene.leader(0)
    shutil.rmtree(folder(scene, leader))
    change_settings(scene, **SMALL_SEGMENTS)
    write(scene, 5, 20)
    assert scene.leader(0, other_than=leader) != leader
    assert scene.cluster.state.brokers[leader].running
    read(scene, 25)
