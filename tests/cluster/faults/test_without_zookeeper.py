"""A cluster on an ensemble of three ZooKeepers, parts of which are killed.

Without the ensemble's leader for a moment nothing is noticed. Without its majority nothing can
be decided: no topics, no leaders, no changes of in-sync replicas. What needs no decision goes on for as
long as it takes: reads, and writes with acks=all, for a record that all in-sync replicas have is with
whoever may lead next. A leader alone cannot know whether it still is one, so acks=1 is refused.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_kit.scene import (
    PARTITIONS,
    SESSION_SECONDS,
    SETTINGS,
    WAIT_SECONDS,
    Scene,
    expect_no_anomaly,
    wait_until,
)
from cluster_kit.writer import Writer, Writers
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.protocol.errors import ErrorCode
from ottla.testing.cluster import LocalCluster
from ottla.testing.zookeeper import ZooKeeperEnsemble

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble(tmp_path_factory.mktemp("ensemble")) as servers:
        yield servers


@pytest.fixture
def scene(ensemble: ZooKeeperEnsemble, tmp_path: Path) -> Iterator[Scene]:
    ensemble.start()
    cluster = LocalCluster(
        tmp_path / "cluster",
        brokers=3,
        base_port=None,
        zookeeper=f"{ensemble.address}/{tmp_path.name}",
        settings=SETTINGS,
    )
    with cluster:
        made = Scene(cluster)
        made.create_topic()
        yield made
        # Brokers that stop tell ZooKeeper.
        ensemble.start()


def kill_majority(ensemble: ZooKeeperEnsemble) -> None:
    leader = ensemble.leader()
    assert leader is not None
    follower = next(each for each in ensemble.servers if each is not leader)
    ensemble.kill([leader, follower])


ACKNOWLEDGED = {ErrorCode.NONE}
REFUSED = {ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_the_death_of_the_ensembles_leader_is_not_noticed(
    scene: Scene, ensemble: ZooKeeperEnsemble
) -> None:
    with scene.workload() as workload:
        workload.wait_for_progress()
        alone = Writers(scene, workload, "alone", acks=1)
        assert alone.write() == ACKNOWLEDGED
        dead = ensemble.leader()
        assert dead is not None
        dead.kill()
        wait_until("another ZooKeeper leads", lambda: ensemble.leader() not in (None, dead))
        assert alone.write() == ACKNOWLEDGED
        workload.wait_for_progress()
        # Decisions are made again: a broker that dies is replaced.
        killed = scene.leader()
        scene.cluster.kill(killed)
        scene.leader(other_than=killed, ask=scene.others(killed))
        workload.wait_for_progress()
        scene.cluster.start()
        scene.wait_until_in_sync()
        ensemble.start()
        workload.wait_for_progress()
    expect_no_anomaly(workload)
    assert workload.write_errors == []


def test_a_majority_that_stands_still(scene: Scene, ensemble: ZooKeeperEnsemble) -> None:
    """Their kernel takes connections on, and the third one may still call itself a leader."""
    paused = ensemble.servers[:2]
    for server in paused:
        server.signal(signal.SIGSTOP)
    try:
        told = scene.cluster.status().zookeeper_problem
    finally:
        for server in paused:
            server.signal(signal.SIGCONT)
    assert told is not None
    assert told.endswith("where all in-sync replicas run")
    wait_until("it serves", lambda: scene.cluster.status().zookeeper_problem is None)
    scene.wait_until_in_sync()


def test_without_a_majority_of_the_ensemble(scene: Scene, ensemble: ZooKeeperEnsemble) -> None:
    admin = AdminClient({"bootstrap.servers": scene.bootstrap, "log_level": 0})

    def create(name: str) -> KafkaError | None:
        topic = NewTopic(name, 1, 3)
        try:
            admin.create_topics([topic], request_timeout=WAIT_SECONDS)[name].result(WAIT_SECONDS)
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            return error
        return None

    with scene.workload() as workload:
        workload.wait_for_progress()
        alone = Writers(scene, workload, "alone", acks=1)
        together = Writers(scene, workload, "together", acks=-1)
        assert alone.write() == together.write() == ACKNOWLEDGED
        assert scene.cluster.status().zookeeper_problem is None
        kill_majority(ensemble)
        # The one that is left may take itself for a follower for a moment; it is no majority either.
        told = scene.cluster.status()
        assert told.zookeeper_problem is not None
        assert "until it serves again no leader can be elected" in told.zookeeper_problem
        assert not told.healthy
        wait_until("acks=1 is refused", lambda: alone.write() == REFUSED)
        # Longer than any session lives, and than a follower may lag.
        workload.quiet_for(SESSION_SECONDS * 2)
        assert alone.write() == REFUSED
        workload.wait_for_progress(100)
        assert together.write() == ACKNOWLEDGED
        refusal = create("too-early")
        assert refusal is not None
        print(refusal.code(), refusal.str())
        assert "metadata store" in refusal.str()
        # A follower that dies cannot be taken out of the in-sync replicas now.
        dead = scene.leader(0)
        scene.cluster.kill(dead)
        (partition, *_) = (each for each in range(PARTITIONS) if scene.leader(each) != dead)
        waiting = Writer(scene, workload, "waiting", acks=-1, partition=partition)
        assert waiting.write() is ErrorCode.REQUEST_TIMED_OUT

        ensemble.start()
        workload.wait_for_progress()
        scene.cluster.start()
        scene.wait_until_in_sync()
        assert scene.cluster.status().zookeeper_problem is None
        wait_until("topics are made", lambda: create("in-time") is None)
        alone.look()
        together.look()
        wait_until("acks=1 is taken", lambda: alone.write() == ACKNOWLEDGED)
        assert together.write() == ACKNOWLEDGED
        workload.wait_for_progress()
    expect_no_anomaly(workload)
