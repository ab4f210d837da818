"""A streaming query from topic to topic, while leaders of its partitions are killed.

Three brokers, three replicas of everything. The query goes on by itself: neither the source nor the sink
lets a dead leader end it, and what it writes is there once.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ottla import Admin, Consumer, Producer
from ottla.client.errors import OttlaError
from ottla.client.positions import TopicPartition
from ottla.testing.cluster import LocalCluster

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline_kit.writing import until

SOURCE, TARGET = "failover-source", "failover-target"
PARTITIONS = 2
AT_LEAST = 400  # records that pass before, between and after the deaths
PACE = 0.005  # seconds between records

pytestmark = [pytest.mark.long, pytest.mark.timeout(600, func_only=True)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    settings = {"min.insync.replicas": "2"}
    with LocalCluster(tmp_path / "cluster", base_port=None, settings=settings) as made:
        yield made


class Writing:
    """Numbers from 0 on, sent in a thread until it is told to end."""

    def __init__(self, bootstrap: str) -> None:
        self.sent = 0
        self.failed: list[OttlaError] = []
        self._bootstrap = bootstrap
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with Producer(self._bootstrap) as producer:
                while not self._over.wait(PACE):
                    producer.send(SOURCE, str(self.sent), partition=self.sent % PARTITIONS)
                    self.sent += 1
        except OttlaError as error:
            self.failed.append(error)


def leader(admin: Admin, topic: str) -> int:
    """Of the topic's first partition."""
    [first, *_] = admin.describe_topics(topic)[topic].partitions
    assert first.leader is not None
    return first.leader


def has_another_leader(admin: Admin, topic: str, dead: int) -> bool:
    return leader(admin, topic) != dead


def test_leaders_die_during_a_stream(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    with Admin(cluster.bootstrap) as admin, Consumer(cluster.bootstrap) as consumer:
        for topic in (SOURCE, TARGET):
            admin.create_topic(topic, PARTITIONS, replication_factor=3)

        def arrived() -> int:
            ends = admin.list_offsets(
                {TopicPartition(TARGET, each): "latest" for each in range(PARTITIONS)}
            )
            return sum(each.offset or 0 for each in ends.values())

        def pass_on(more: int) -> None:
            wanted = arrived() + more
            until(lambda: not query.isActive or arrived() >= wanted)
            assert query.isActive, query.exception()

        stream = (
            spark.readStream.format("ottla")
            .option("kafka.bootstrap.servers", cluster.bootstrap)
            .option("subscribe", SOURCE)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 200)
            .load()
        )
        with Writing(cluster.bootstrap) as writing:
            query = (
                stream.selectExpr("key", "value")
                .writeStream.format("ottla")
                .option("kafka.bootstrap.servers", cluster.bootstrap)
                .option("topic", TARGET)
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .start()
            )
            pass_on(AT_LEAST)
            for topic in (SOURCE, TARGET):
                dead = leader(admin, topic)
                cluster.kill(dead)
                until(partial(has_another_leader, admin, topic, dead))
                pass_on(AT_LEAST)
                cluster.start([dead])
            pass_on(AT_LEAST)
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        assert writing.failed == []
        values = consumer.read(TARGET, columns=["value"])["value"].to_pylist()
    assert sorted(map(int, values)) == list(range(writing.sent))
