"""Streaming reads in a real Spark session, beside Spark's own source, and of Apache Kafka."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from ottla import Producer
from ottla.client.admin.client import Admin
from ottla.client.positions import TopicPartition
from ottla.pipeline.spark.described import described
from ottla.pipeline.spark.lag import lag
from ottla.testing import BrokerProcess

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline_kit.reading import write_transactions
from pipeline_kit.streamed_reads import Run, available_now, started, stream


def send(bootstrap: str, topic: str, *values: bytes, partitions: int = 2) -> None:
    with Producer(bootstrap) as producer:
        for number, value in enumerate(values):
            producer.send(topic, value, partition=number % partitions)


def ends(run: Run) -> list[Any]:
    """Where Spark says that each batch ended."""
    return [json.loads(progress["sources"][0]["endOffset"]) for progress in run.progress]


@pytest.fixture
def servers(broker: BrokerProcess, topic: str) -> dict[str, Any]:
    return {"kafka__bootstrap__servers": broker.bootstrap, "subscribe": topic}


def test_a_checkpoint_is_continued(
    spark: SparkSession,
    broker: BrokerProcess,
    admin: Admin,
    topic: str,
    servers: dict[str, Any],
    tmp_path: Path,
) -> None:
    admin.create_topic(topic, 2)
    frame = stream(
        spark, **servers, startingOffsets="earliest", maxOffsetsPerTrigger=4, groupId=topic
    )
    send(broker.bootstrap, topic, *[b"a%d" % n for n in range(10)])
    run = available_now(frame, tmp_path)
    assert [len(batch) for batch in run.batches] == [4, 4, 2]
    assert sorted(run.values) == sorted(b"a%d" % n for n in range(10))
    assert ends(run)[:2] == [{topic: {"0": 2, "1": 2}}, {topic: {"0": 4, "1": 4}}]
    assert sum(each.lag or 0 for each in admin.group_lag(topic)) == 0
    send(broker.bootstrap, topic, b"b0", b"b1", b"b2")
    assert sum(each.lag or 0 for each in admin.group_lag(topic)) == 3
    assert sorted(available_now(frame, tmp_path).values) == [b"b0", b"b1", b"b2"]
    assert available_now(frame, tmp_path).values == []


def test_a_query_that_follows(
    spark: SparkSession,
    broker: BrokerProcess,
    admin: Admin,
    topic: str,
    servers: dict[str, Any],
    tmp_path: Path,
) -> None:
    admin.create_topic(topic, 1)
    send(broker.bootstrap, topic, b"before", partitions=1)
    run = Run()
    query = started(stream(spark, **servers), tmp_path, run)
    try:
        query.processAllAvailable()
        assert run.values == []
        send(broker.bootstrap, topic, b"0", b"1", partitions=1)
        query.processAllAvailable()
        assert run.values == [b"0", b"1"]
        admin.create_partitions(topic, 2)
        send(broker.bootstrap, topic, b"2", b"3")
        query.processAllAvailable()
        assert sorted(run.values) == [b"0", b"1", b"2", b"3"]
    finally:
        query.stop()
    assert lag(query) == {TopicPartition(topic, 0): 0, TopicPartition(topic, 1): 0}
    assert query.lastProgress is not None
    [source] = described(query.lastProgress)["sources"]
    assert (source["description"], source["endOffset"]) == (
        f"ottla[{topic}]",
        {topic: {"0": 4, "1": 1}},
    )
    send(broker.bootstrap, topic, b"4")
    assert lag(query, admin) == {TopicPartition(topic, 0): 1, TopicPartition(topic, 1): 0}
    admin.delete_topics([topic])
    assert lag(query, admin) == {}


def test_a_first_batch_that_fails_is_made_up_for(
    spark: SparkSession,
    broker: BrokerProcess,
    admin: Admin,
    topic: str,
    servers: dict[str, Any],
    tmp_path: Path,
) -> None:
    admin.create_topic(topic, 1)
    frame = stream(spark, **servers)

    def fail(_: DataFrame, __: int) -> None:
        raise RuntimeError("the sink is broken")

    writer = frame.writeStream.option("checkpointLocation", str(tmp_path)).foreachBatch(fail)
    with pytest.raises(StreamingQueryException, match="the sink is broken"):
        writer.start().awaitTermination()
    send(broker.bootstrap, topic, b"meanwhile", partitions=1)
    assert available_now(frame, tmp_path).values == [b"meanwhile"]


def test_checkpoints_on_a_local_disk_are_written_without_running_commands(
    spark: SparkSession,
) -> None:
    manager = spark.conf.get("spark.sql.streaming.checkpointFileManagerClass")
    assert manager is not None
    assert manager.endswith(".FileSystemBasedCheckpointFileManager")


def test_wrong_options_are_told_at_load(spark: SparkSession, servers: dict[str, Any]) -> None:
    with pytest.raises(AnalysisException, match="maxOffsetsPerTrigger takes a positive whole num"):
        stream(spark, **servers, maxOffsetsPerTrigger="many")


def test_what_is_for_batch_queries_is_told_when_a_query_starts(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = stream(spark, path="/somewhere", subscribe="orders")
    with pytest.raises(StreamingQueryException, match="path is for batch queries"):
        started(frame, tmp_path, Run()).awaitTermination()


@pytest.mark.long
def test_apache_kafka(spark: SparkSession, apache: Any, topic: str, tmp_path: Path) -> None:
    with Admin(apache.bootstrap) as admin:
        admin.create_topic(topic, 1)
        committed = write_transactions(apache.bootstrap, topic)
        frame = stream(
            spark,
            kafka__bootstrap__servers=apache.bootstrap,
            subscribePattern=f"{topic}.*",
            startingOffsets="earliest",
            maxOffsetsPerTrigger=15,
            groupId=topic,
        )
        assert available_now(frame, tmp_path).values == committed
        admin.create_topic(f"{topic}-later", 1)
        send(apache.bootstrap, f"{topic}-later", b"later", partitions=1)
        assert available_now(frame, tmp_path).values == [b"later"]
        lags = {each.partition: each.lag for each in admin.group_lag(topic)}
        assert lags == {TopicPartition(topic, 0): 0, TopicPartition(f"{topic}-later", 0): 0}


# Beside Spark's own source


@pytest.fixture
def both_sources(connector: Any) -> None:
    if connector.missing:
        pytest.skip(f"Spark's own Kafka source is not to be had: {connector.missing}")


@pytest.mark.interop
@pytest.mark.usefixtures("both_sources")
@pytest.mark.long
def test_batches_are_those_of_sparks_own_source(
    spark: SparkSession, broker: BrokerProcess, admin: Admin, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 3)
    write_transactions(broker.bootstrap, topic)
    send(broker.bootstrap, topic, *[b"%d" % n for n in range(40)], partitions=3)
    runs = [
        available_now(
            stream(
                spark,
                format_,
                kafka__bootstrap__servers=broker.bootstrap,
                subscribe=topic,
                startingOffsets="earliest",
                maxOffsetsPerTrigger=30,
                kafka__isolation__level="read_committed",
            ),
            tmp_path / format_,
        )
        for format_ in ("kafka", "ottla")
    ]
    assert runs[0].batches == runs[1].batches
    assert ends(runs[0]) == ends(runs[1])
    latest = [run.progress[0]["sources"][0]["latestOffset"] for run in runs]
    assert json.loads(latest[0]) == json.loads(latest[1])


@pytest.mark.interop
@pytest.mark.usefixtures("both_sources")
@pytest.mark.long
def test_a_checkpoint_of_sparks_own_source_is_continued_and_the_reverse(
    spark: SparkSession,
    broker: BrokerProcess,
    admin: Admin,
    topic: str,
    servers: dict[str, Any],
    tmp_path: Path,
) -> None:
    admin.create_topic(topic, 2)
    options = servers | {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 4}
    for turn, format_ in enumerate(("kafka", "ottla", "kafka", "ottla")):
        values = [b"%d-%d" % (turn, number) for number in range(7)]
        send(broker.bootstrap, topic, *values)
        run = available_now(stream(spark, format_, **options), tmp_path)
        assert sorted(run.values) == values
