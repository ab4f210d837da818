"""Writes in a real Spark session."""

from __future__ import annotations

import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from ottla import Consumer
from ottla.client.admin.client import Admin
from ottla.testing import BrokerProcess
from pyspark_ottla import write_batches

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline_kit.streams import Numbers, wait_for


def save(frame: DataFrame, bootstrap: str, format_: str = "ottla", **options: Any) -> None:
    """In names of options, __ stands for a dot."""
    given = {name.replace("__", "."): value for name, value in options.items()}
    writer = frame.write.format(format_).mode("append")
    writer.option("kafka.bootstrap.servers", bootstrap).options(**given).save()


def rows_of(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    with Consumer(bootstrap) as consumer:
        table = consumer.read(topic, columns=["partition", "key", "value", "headers", "timestamp"])
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def records_of(bootstrap: str, topic: str) -> Counter[str]:
    """Everything but the timestamps, and how often it is there."""
    rows = rows_of(bootstrap, topic)
    return Counter(
        repr([row[name] for name in ("partition", "key", "value", "headers")]) for row in rows
    )


def values_of(bootstrap: str, topic: str) -> list[str]:
    return sorted(row["value"].decode() for row in rows_of(bootstrap, topic))


MIXED = """
    SELECT
        CASE WHEN id % 5 = 0 THEN NULL ELSE concat('key-', id % 97) END AS key,
        CASE WHEN id % 7 = 0 THEN NULL ELSE encode(repeat('x', int(id % 40)), 'utf-8') END AS value,
        CASE WHEN id % 5 = 0 THEN int(id % 4) END AS partition,
        CASE WHEN id % 3 = 0 THEN NULL WHEN id % 3 = 1 THEN array() ELSE array(
            named_struct('key', 'a', 'value', encode(string(id), 'utf-8')),
            named_struct('key', 'a', 'value', CAST(NULL AS BINARY))) END AS headers,
        'passed over' AS other,
        id
    FROM range(0, 2000, 1, 3)
"""


def test_the_same_records_as_sparks_own_sink(
    spark: SparkSession, broker: BrokerProcess, admin: Admin, connector: Any, topic: str
) -> None:
    if not connector.jars:
        pytest.skip(connector.missing)
    frame = spark.sql(MIXED)
    for name, format_ in ((f"{topic}-ours", "ottla"), (f"{topic}-theirs", "kafka")):
        admin.create_topic(name, 4)
        save(frame, broker.bootstrap, format_, topic=name, kafka__compression__type="lz4")
    ours = records_of(broker.bootstrap, f"{topic}-ours")
    assert ours == records_of(broker.bootstrap, f"{topic}-theirs")
    assert ours.total() == 2000


def test_records_without_keys_are_spread(
    spark: SparkSession, broker: BrokerProcess, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, 3)
    frame = spark.range(0, 3000, 1, 2).selectExpr("repeat('x', 2000) AS value")
    save(frame, broker.bootstrap, topic=topic, kafka__batch__size=16384)
    counts = Counter(row["partition"] for row in rows_of(broker.bootstrap, topic))
    assert counts.total() == 3000
    assert all(counts[partition] > 300 for partition in range(3))


def test_topics_by_column_and_by_option(
    spark: SparkSession, broker: BrokerProcess, admin: Admin, topic: str
) -> None:
    for number in range(3):
        admin.create_topic(f"{topic}-{number}")
    frame = spark.range(9).selectExpr(
        f"concat('{topic}-', id % 2) AS topic", "CAST(id AS STRING) AS value"
    )
    save(frame, broker.bootstrap)
    save(frame, broker.bootstrap, topic=f"{topic}-2")
    assert values_of(broker.bootstrap, f"{topic}-0") == list("02468")
    assert values_of(broker.bootstrap, f"{topic}-1") == list("1357")
    assert values_of(broker.bootstrap, f"{topic}-2") == list("012345678")


def test_timestamps_are_written_if_that_is_wanted(
    spark: SparkSession, broker: BrokerProcess, admin: Admin, topic: str
) -> None:
    for name in (topic, f"{topic}-now"):
        admin.create_topic(name)
    frame = spark.range(1).selectExpr(
        "'v' AS value", "TIMESTAMP '2026-01-02 03:04:05.678' AS timestamp"
    )
    save(frame, broker.bootstrap, topic=topic, includeTimestamp=True)
    save(frame, broker.bootstrap, topic=f"{topic}-now")
    [row] = rows_of(broker.bootstrap, topic)
    assert row["timestamp"].isoformat() == "2026-01-02T03:04:05.678000+00:00"
    [row] = rows_of(broker.bootstrap, f"{topic}-now")
    assert row["timestamp"].isoformat() > "2026-01-03"


@pytest.mark.parametrize(
    ("select", "options", "said"),
    [
        (["1 AS value"], {"topic": "t"}, "the column value must be string or binary"),
        (["'v' AS value"], {}, "no topic: set the option topic"),
        (["'v' AS value"], {"topic": "t", "tpic": 1}, "did you mean topic?"),
        (["'v' AS value", "int(9) AS partition"], {}, "partition 9 is not one of the topic's 2"),
        (["'v' AS value", "CAST(NULL AS STRING) AS topic"], {}, "topic is null in some row"),
        (
            ["'v' AS value"],
            {"topic": "no-such", "kafka.max.block.ms": 300},
            "UNKNOWN_TOPIC_OR_PARTITION",
        ),
    ],
)
def test_what_cannot_be_written_is_told(
    spark: SparkSession,
    broker: BrokerProcess,
    admin: Admin,
    topic: str,
    select: list[str],
    options: dict[str, Any],
    said: str,
) -> None:
    if "int(9)" in str(select):
        admin.create_topic(topic, 2)
        options = {"topic": topic}
    with pytest.raises((PySparkException, Py4JJavaError)) as raised:
        save(spark.range(1).selectExpr(*select), broker.bootstrap, **options)
    assert said in str(raised.value)


def test_overwriting_is_refused(spark: SparkSession) -> None:
    writer = spark.range(1).selectExpr("'v' AS value").write.format("ottla").mode("overwrite")
    with pytest.raises(AnalysisException, match="topics cannot be overwritten"):
        writer.options(**{"kafka.bootstrap.servers": "localhost:1", "topic": "t"}).save()


# Versions


def test_a_version_is_written_once(
    spark: SparkSession, broker: BrokerProcess, admin: Admin, topic: str
) -> None:
    for name in (topic, f"{topic}-other"):
        admin.create_topic(name, 2)
    application = uuid.uuid4().hex

    def write(values: int, version: int, to: str = topic) -> None:
        frame = spark.range(0, values, 1, 2).selectExpr("CAST(id AS STRING) AS value")
        save(frame, broker.bootstrap, topic=to, txnAppId=application, txnVersion=version)

    write(4, version=5)
    write(9, version=5)
    write(9, version=3)
    assert values_of(broker.bootstrap, topic) == list("0123")
    write(2, version=6)
    assert values_of(broker.bootstrap, topic) == list("001123")
    write(3, version=5, to=f"{topic}-other")
    assert values_of(broker.bootstrap, f"{topic}-other") == list("012")


def test_a_version_without_rows(
    spark: SparkSession, broker: BrokerProcess, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic)
    empty = spark.range(3).where("id > 5").selectExpr("CAST(id AS STRING) AS value")
    save(empty, broker.bootstrap, topic=topic, txnAppId=topic, txnVersion=0)
    save(empty, broker.bootstrap, topic=topic)
    assert values_of(broker.bootstrap, topic) == []


def test_a_failed_version_leaves_nothing(
    spark: SparkSession, broker: BrokerProcess, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, 2)
    frame = spark.range(0, 1000, 1, 2).selectExpr("'v' AS value", "int(id / 300) AS partition")
    with pytest.raises((PySparkException, Py4JJavaError), match=r"partition [23] is not one"):
        save(frame, broker.bootstrap, topic=topic, txnAppId=topic, txnVersion=0)
    assert values_of(broker.bootstrap, topic) == []
    frame = spark.range(2).selectExpr("'v' AS value")
    save(frame, broker.bootstrap, topic=topic, txnAppId=topic, txnVersion=0)
    assert values_of(broker.bootstrap, topic) == ["v", "v"]


# Streams


def test_a_stream_at_least_once(
    spark: SparkSession, broker: BrokerProcess, admin: Admin, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 2)
    guarantee = {"deliveryGuarantee": "at-least-once"}
    numbers = Numbers(spark, broker.bootstrap, topic, tmp_path / "checkpoint", guarantee)
    assert numbers.run_until(2) == 0
    assert set(numbers.written()) >= set(range(90))
    listed = admin.list_transactions(states=["Ongoing", "CompleteCommit", "Empty"])
    described = admin.describe_transactions(each.transactional_id for each in listed)
    assert not [each for each in described.values() if topic in str(each.partitions)]


def test_wrong_options_are_told_in_the_first_batch(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    wrong = {"kafka.acks": "1"}
    numbers = Numbers(spark, broker.bootstrap, "t", tmp_path / "checkpoint", wrong)
    query = numbers.start()
    with pytest.raises(StreamingQueryException, match=r"kafka\.acks is too weak"):
        wait_for(query, 0)


def counts_of(spark: SparkSession, rows_per_batch: int = 10) -> DataFrame:
    """How many of each remainder by 3 there are, so far: a stream."""
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows_per_batch)
    remainders = numbers.load().selectExpr("CAST(value % 3 AS STRING) AS key")
    return remainders.groupBy("key").count().selectExpr("key", "CAST(count AS STRING) AS value")


@pytest.mark.long
def test_complete_mode_appends_all_results(
    spark: SparkSession, broker: BrokerProcess, admin: Admin, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic)
    query = (
        counts_of(spark).writeStream.format("ottla").outputMode("complete")
        .options(**{"kafka.bootstrap.servers": broker.bootstrap, "topic": topic})
        .option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    )  # fmt: skip
    wait_for(query, 1)
    query.stop()
    written = [(row["key"], row["value"]) for row in rows_of(broker.bootstrap, topic)]
    assert sorted(written[:3]) == [(b"0", b"4"), (b"1", b"3"), (b"2", b"3")]
    assert sorted(written[3:6]) == [(b"0", b"7"), (b"1", b"7"), (b"2", b"6")]


@pytest.mark.long
def test_update_mode_through_foreach_batch(
    spark: SparkSession, broker: BrokerProcess, admin: Admin, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic)
    write = write_batches({"kafka.bootstrap.servers": broker.bootstrap, "topic": topic})

    def write_twice(batch: DataFrame, number: int) -> None:
        write(batch, number)
        write(batch, number)

    query = (
        counts_of(spark, 2).writeStream.outputMode("update").foreachBatch(write_twice)
        .option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    )  # fmt: skip
    wait_for(query, 1)
    query.stop()
    written = [(row["key"], row["value"]) for row in rows_of(broker.bootstrap, topic)]
    assert sorted(written[:2]) == [(b"0", b"1"), (b"1", b"1")]
    assert sorted(written[2:4]) == [(b"0", b"2"), (b"2", b"1")]


def test_write_batches_wants_a_name_where_spark_tells_none(spark: SparkSession) -> None:
    write = write_batches({"kafka.bootstrap.servers": "localhost:1", "topic": "t"})
    with pytest.raises(ValueError, match="name it with write_batches"):
        write(spark.createDataFrame([Row(value="v")]), 0)


# Apache Kafka


@pytest.mark.long
def test_apache_kafka(spark: SparkSession, apache: Any, topic: str, tmp_path: Path) -> None:
    with Admin(apache.bootstrap) as admin:
        for name in (topic, f"{topic}-stream"):
            admin.create_topic(name, 4)
        save(spark.sql(MIXED), apache.bootstrap, topic=topic, kafka__compression__type="zstd")
        assert records_of(apache.bootstrap, topic).total() == 2000
        numbers = Numbers(spark, apache.bootstrap, f"{topic}-stream", tmp_path / "checkpoint")
        assert numbers.run_until(2) == 0
        numbers.check(3)
        listed = admin.list_transactions()
        described = admin.describe_transactions(
            each.transactional_id for each in listed if "ottla-spark" in each.transactional_id
        )
        assert {each.timeout_ms for each in described.values()} == {900_000, 10_000}
