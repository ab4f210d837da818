"""The source in a real Spark session."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceRegistration
from pyspark.sql.functions import spark_partition_id, udf

from ottla import Producer
from ottla.client.admin.client import Admin
from ottla.client.positions import TopicPartition
from ottla.pipeline.spark.session import _cores, register_source
from ottla.testing import BrokerProcess

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline_kit.reading import write_transactions

SCHEMA = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
    "timestamp:timestamp,timestampType:int"
)


def load(spark: SparkSession, format_: str = "ottla", **options: Any) -> DataFrame:
    """In names of options, __ stands for a dot."""
    reader = spark.read.format(format_)
    for name, value in options.items():
        reader = reader.option(name.replace("__", "."), value)
    return reader.load()


@pytest.fixture(scope="module")
def mixed(broker: BrokerProcess, admin: Admin) -> str:
    """Three partitions: nulls, headers, codecs, transactions, a beginning that was deleted."""
    topic = "spark-mixed"
    admin.create_topic(topic, 3)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        with Producer(broker.bootstrap, compression_type=codec) as producer:
            for number in range(500):
                producer.send(
                    topic,
                    None if number % 7 == 0 else b"%d" % number * (number % 50),
                    key=None if number % 3 == 0 else b"k%d" % number,
                    partition=number % 3,
                    headers=[("a", b"1"), ("a", None), ("é", b"")] if number % 2 else None,
                )
    write_transactions(broker.bootstrap, topic)
    admin.delete_records({TopicPartition(topic, 2): 10})
    return topic


def test_schema(spark: SparkSession) -> None:
    servers = {"kafka__bootstrap__servers": "localhost:9092", "subscribe": "orders"}
    assert load(spark, **servers).schema.simpleString() == SCHEMA + ">"
    headers = ",headers:array<struct<key:string,value:binary>>>"
    assert load(spark, includeHeaders=True, **servers).schema.simpleString() == SCHEMA + headers


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffset": "earliest"}, "did you mean startingOffsets?"),
        ({"kafka__security__protocol": "SSH"}, "kafka.security.protocol takes"),
    ],
)
def test_wrong_options_are_told_at_load(
    spark: SparkSession, options: dict[str, str], said: str
) -> None:
    with pytest.raises(AnalysisException) as raised:
        load(spark, kafka__bootstrap__servers="localhost:9092", subscribe="orders", **options)
    assert said in str(raised.value)


def test_what_only_streaming_queries_may_have_is_told_with_the_plan(spark: SparkSession) -> None:
    servers = {"kafka__bootstrap__servers": "localhost:9092", "subscribe": "orders"}
    with pytest.raises(PySparkException, match="startingOffsets cannot be latest"):
        load(spark, startingOffsets="latest", **servers).collect()


def test_a_schema_of_ones_own_is_refused(spark: SparkSession) -> None:
    reader = spark.read.format("ottla").schema("a int").option("subscribe", "orders")
    with pytest.raises(PySparkException, match="has a schema of its own"):
        reader.option("kafka.bootstrap.servers", "localhost:9092").load().collect()


def test_queries(spark: SparkSession, broker: BrokerProcess, mixed: str) -> None:
    servers = {"kafka__bootstrap__servers": broker.bootstrap, "subscribe": mixed}
    frame = load(spark, minPartitions=5, **servers)
    groups = frame.groupBy("partition", spark_partition_id().alias("task")).count().collect()
    assert len({row["task"] for row in groups}) == 5
    assert sum(row["count"] for row in groups) == 5 * 500 + 20 - 10
    assert len(frame.limit(3).collect()) == 3


def test_a_folder_gives_the_same(spark: SparkSession, broker: BrokerProcess, mixed: str) -> None:
    common = {"subscribe": mixed, "includeHeaders": True}
    online = load(spark, kafka__bootstrap__servers=broker.bootstrap, **common)
    # Which of the first records were deleted, the broker writes down now and then.
    offline = load(spark, path=str(broker.data), **common).where("partition != 2 or offset >= 10")
    rows = sorted(map(repr, online.collect()))
    assert len(rows) == 5 * 500 + 20 - 10
    assert sorted(map(repr, offline.collect())) == rows


# Options, and whether Spark's own source refuses them.
ROWS, REFUSED = False, True
DIFFERENTIAL: list[tuple[bool, dict[str, Any]]] = [
    (ROWS, {"includeHeaders": "true", "minPartitions": "7"}),
    (ROWS, {"maxRecordsPerPartition": "500", "kafka__isolation__level": "read_uncommitted"}),
    (
        ROWS,
        {
            "startingOffsets": {"0": 3, "1": -2, "2": 10},
            "endingOffsets": {"0": 700, "1": -1, "2": 10},
        },
    ),
    (ROWS, {"startingOffsets": {"0": 0, "1": 0, "2": 0}, "failOnDataLoss": "false"}),
    (REFUSED, {"startingOffsets": {"0": 0, "1": 0, "2": 0}}),
    (REFUSED, {"startingOffsets": {"0": 3, "1": -2}}),
    (REFUSED, {"startingOffsets": "latest"}),
    (REFUSED, {"endingOffsets": "earliest"}),
    (REFUSED, {"startingTimestamp": "9999999999999"}),
    (REFUSED, {"failOnDataLoss": "maybe"}),
    (REFUSED, {"minPartitions": "0"}),
    (REFUSED, {"kafka__auto__offset__reset": "latest"}),
]
# In `make test`: rows, and something that is refused. `make test-long` has all.
SHORTLY = (0, 5)


@pytest.mark.interop
@pytest.mark.parametrize(
    ("refused", "options"),
    [
        pytest.param(refused, options, marks=() if at in SHORTLY else pytest.mark.long)
        for at, (refused, options) in enumerate(DIFFERENTIAL)
    ],
)
def test_as_sparks_own_source(
    spark: SparkSession,
    connector: Any,
    broker: BrokerProcess,
    mixed: str,
    refused: bool,
    options: dict[str, Any],
) -> None:
    """The same rows and the same schema; what the one refuses, the other refuses, too."""
    if connector.missing:
        pytest.skip(f"Spark's own Kafka source is not to be had: {connector.missing}")
    given = {
        name: json.dumps({mixed: value}) if isinstance(value, dict) else value
        for name, value in options.items()
    }
    given = {
        "kafka__bootstrap__servers": broker.bootstrap,
        "subscribe": mixed,
        # The one thing that differs: the default here is read_committed.
        "kafka__isolation__level": "read_committed",
        **given,
    }
    results = [_result(spark, format_, given) for format_ in ("kafka", "ottla")]
    assert results[0] == results[1]


def _result(spark: SparkSession, format_: str, options: dict[str, Any]) -> object:
    try:
        frame = load(spark, format_, **options)
        return frame.schema, sorted(map(repr, frame.collect()))
    except (PySparkException, Py4JJavaError):
        return "refused"


def test_a_wrong_address_is_told_soon(spark: SparkSession) -> None:
    """By the exception of the client, not after the minute that a cluster is waited for."""
    servers = {"kafka__bootstrap__servers": "127.0.0.1:1", "kafka__bootstrap__timeout__ms": "300"}
    told = "ClusterUnreachable: cannot connect to 127.0.0.1:1: Connection refused"
    with pytest.raises((Py4JJavaError, PySparkException), match=told) as raised:
        load(spark, subscribe="orders", **servers).collect()
    assert "Traceback" not in str(raised.value)
    rows = spark.sql("SELECT 'a' AS value")
    writer = rows.write.format("ottla").mode("append").option("topic", "orders")
    for name, value in servers.items():
        writer = writer.option(name.replace("__", "."), value)
    with pytest.raises((Py4JJavaError, PySparkException), match=told):
        writer.save()


def test_mistakes_are_their_sentence_alone(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException) as raised:
        load(spark, subscribe="orders", kafka__bootstrap__servers="a:1", startingOffset="x")
    told = str(raised.value)
    assert "OptionError: startingoffset is no option of the source ottla; did you mean" in told
    assert "Traceback" not in told
    assert len(told.strip().splitlines()) <= 3


@pytest.mark.parametrize("trigger", [{"processingTime": "0 seconds"}, {"availableNow": True}])
def test_mistakes_of_streams_are_their_sentence(
    spark: SparkSession, tmp_path: Path, trigger: dict[str, Any]
) -> None:
    """Of what only streaming queries refuse, Spark is told when a query begins."""
    stream = spark.readStream.format("ottla").option("subscribe", "orders")
    frame = stream.option("kafka.bootstrap.servers", "a:1").option("endingOffsets", "latest").load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    told = "OptionError: endingOffsets is for batch queries: a streaming query has no end"
    with pytest.raises(StreamingQueryException, match=told) as raised:
        query.trigger(**trigger).start().awaitTermination(60)
    first, *rest = str(raised.value).splitlines()
    assert first.endswith(told)
    assert "Traceback" not in "".join(rest)
    assert len(rest) < 15  # what Spark says of the query


def test_mistakes_of_others_keep_their_stack(spark: SparkSession) -> None:
    def broken(value: str) -> str:
        raise KeyError(value)

    rows = spark.sql("SELECT 'a' AS value").select(udf(broken, "string")("value"))
    with pytest.raises(PySparkException, match=r"(?s)Traceback.*in broken"):
        rows.collect()


@pytest.mark.parametrize(
    ("master", "cores"), [("local", 1), ("local[3]", 3), ("local[2,4]", 2), ("local[*]", None)]
)
def test_shuffles_have_as_many_partitions_as_tasks_run(master: str, cores: int | None) -> None:
    assert _cores(master) == (cores or os.cpu_count())


def test_a_source_that_spark_has_found_is_not_replaced(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[object] = []
    monkeypatch.setattr(DataSourceRegistration, "register", lambda _, kind: registered.append(kind))
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    assert manager.dataSourceExists("ottla")
    register_source(spark)
    assert registered == []
