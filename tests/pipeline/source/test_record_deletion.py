"""Deleting by a condition on Spark, and what Spark sees of deleted records."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ottla import Producer
from ottla.client.admin.client import Admin
from ottla.client.positions import TopicPartition
from ottla.testing import BrokerProcess

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline_kit.commands import run_command


def test_where(spark: SparkSession, broker: BrokerProcess, admin: Admin) -> None:
    topic = "deleted.by-condition"
    admin.create_topic(topic, 2)
    with Producer(broker.bootstrap) as producer:
        for number in range(100):
            value = {"customer": number % 10, "amount": number}
            producer.send(topic, json.dumps(value), partition=number % 2)

    def run(*words: str) -> str:
        return run_command(*words, server=broker.bootstrap).stdout

    command = ("record", "delete", topic, "--where", "customer = 4 AND amount < 50")
    assert "would delete 5 records" in run(*command, "--dry-run")
    answer = json.loads(run(*command, "--json"))
    assert answer == {"topic": topic, "deleted": 5, "partitions": {"0": 5}}
    assert "deleted 0 records" in run(*command)
    # More than a condition, and what is none: nothing is deleted.
    for absurd in (
        "customer = 5 LIMIT 1",
        "false UNION ALL SELECT 0, 1",
        "customer = 5 ORDER BY offset",
        "amount",
        "nothing_of_this = 1",
        "",
        "1 = 1; SELECT 1",
        "customer = (",
    ):
        words = ("record", "delete", topic, "--where", absurd)
        failed = run_command(*words, server=broker.bootstrap, fails=1)
        assert "Traceback" not in failed.output
        assert "deleted 0" not in failed.output
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
    rows = spark.read.format("ottla").options(**options).load()
    values = [json.loads(row["value"]) for row in rows.select("value").collect()]
    assert len(values) == 95
    assert not [each for each in values if each["customer"] == 4 and each["amount"] < 50]


SOURCES = [
    "ottla",
    pytest.param("kafka", marks=[pytest.mark.interop, pytest.mark.long]),  # Spark's own
]


@pytest.fixture
def with_invisible_ends(broker: BrokerProcess, admin: Admin, topic: str) -> str:
    """Three partitions of 50 records: the end of the first is deleted, all of the second, none of the
    third."""
    admin.create_topic(topic, 3)
    with Producer(broker.bootstrap) as producer:
        for number in range(150):
            producer.send(topic, b"%d" % number, partition=number % 3)
    deleted = {TopicPartition(topic, 0): range(40, 50), TopicPartition(topic, 1): range(50)}
    assert sum(admin.delete_records_at(deleted).values()) == 60
    return topic


@pytest.mark.parametrize("source", SOURCES)
def test_batches_read_to_the_end(
    spark: SparkSession,
    broker: BrokerProcess,
    connector: Any,
    with_invisible_ends: str,
    source: str,
) -> None:
    """Up to offsets after which nothing is left to be seen; a reader that waits for a record at each
    would give up, or say that data was lost."""
    if source == "kafka" and connector.missing:
        pytest.skip(connector.missing)
    rows = (
        spark.read.format(source)
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("subscribe", with_invisible_ends)
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .option("failOnDataLoss", "true")
        .load()
        .groupBy("partition")
        .count()
        .collect()
    )
    assert {row["partition"]: row["count"] for row in rows} == {0: 40, 2: 50}


def test_a_folder_without_a_broker(
    spark: SparkSession, broker: BrokerProcess, with_invisible_ends: str
) -> None:
    options = {"path": str(broker.data), "subscribe": with_invisible_ends}
    rows = spark.read.format("ottla").options(**options).load().groupBy("partition").count()
    assert {row["partition"]: row["count"] for row in rows.collect()} == {0: 40, 2: 50}


@pytest.mark.parametrize("source", SOURCES)
def test_streams_read_to_the_end(
    spark: SparkSession,
    broker: BrokerProcess,
    admin: Admin,
    connector: Any,
    with_invisible_ends: str,
    source: str,
    tmp_path: Path,
) -> None:
    """And go on from there."""
    if source == "kafka" and connector.missing:
        pytest.skip(connector.missing)
    topic = with_invisible_ends
    stream = (
        spark.readStream.format(source)
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("partition", "offset")
    )

    def run() -> int:
        query = (
            stream.writeStream.format("parquet")
            .option("path", str(tmp_path / "rows"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(90)
        assert not query.isActive
        return spark.read.parquet(str(tmp_path / "rows")).count()

    assert run() == 90
    with Producer(broker.bootstrap) as producer:
        for partition in range(3):
            producer.send(topic, b"later", partition=partition)
    assert run() == 93
