"""What the sink takes, and how it says what it does not take."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_ottla import OttlaDataSource, write_batches
from pyspark_ottla.errors import NotOffered, OptionError
from pyspark_ottla.writing.options import Mode, SinkOptions, read_sink_options
from pyspark_ottla.writing.rows import RecordColumns, UnfitRows


def read(mode: Mode = "batch", **options: str) -> SinkOptions:
    """As Spark hands them over: in lower case. In names, __ stands for a dot."""
    given = {"kafka.bootstrap.servers": "localhost:9092"}
    given |= {name.replace("__", ".").lower(): value for name, value in options.items()}
    return read_sink_options({name: value for name, value in given.items() if value}, mode)


def test_defaults() -> None:
    options = read()
    assert options.topic is None
    assert options.guarantee == "at-least-once"
    assert read("streaming").guarantee == "exactly-once"
    assert read(txnAppId="a", txnVersion="7").guarantee == "exactly-once"
    assert options.settings.acks == -1


def test_options_of_the_client_have_their_java_names() -> None:
    settings = read(
        kafka__acks="1",
        kafka__compression__type="zstd",
        kafka__linger__ms="20",
        kafka__buffer__memory="1000000",
        kafka__max__request__size="2000000",
        kafka__sasl__jaas__config="",
    ).settings
    assert (settings.acks, settings.compression, settings.linger) == (1, "zstd", 0.02)
    assert (settings.buffer_limit, settings.request_size) == (1_000_000, 2_000_000)


@pytest.mark.parametrize(
    ("mode", "options", "said"),
    [
        ("batch", {"tpic": "t"}, "tpic is no option of the sink ottla; did you mean topic?"),
        ("batch", {"deliveryGuarante": "x"}, "did you mean deliveryGuarantee?"),
        ("batch", {"topic": " "}, "topic takes the name of a topic"),
        ("batch", {"kafka__key__serializer": "x"}, "kafka.key.serializer is no option of writes"),
        ("batch", {"kafka__value__serializer": "x"}, "kafka.value.serializer is no option"),
        ("batch", {"kafka__transactional__id": "x"}, "kafka.transactional.id is no option"),
        ("batch", {"startingOffsets": "x"}, "startingOffsets is no option of writes here: it is"),
        ("batch", {"kafka__acks": "5"}, "kafka.acks takes"),
        ("batch", {"kafka__compresion__type": "x"}, "did you mean kafka.compression.type?"),
        ("batch", {"txnAppId": "a"}, "txnAppId and txnVersion belong together"),
        ("batch", {"txnVersion": "1"}, "txnAppId and txnVersion belong together"),
        ("batch", {"txnAppId": "a", "txnVersion": "-1"}, "txnVersion takes a whole number"),
        ("streaming", {"txnAppId": "a", "txnVersion": "1"}, "are for batch queries and foreach"),
        ("batch", {"deliveryGuarantee": "exactly-once"}, "needs txnAppId and txnVersion"),
        ("streaming", {"deliveryGuarantee": "twice"}, "takes exactly-once or at-least-once, not"),
        ("streaming", {"kafka__acks": "1"}, "kafka.acks is too weak to write exactly once"),
        ("streaming", {"kafka__enable__idempotence": "false"}, "kafka.enable.idempotence is too"),
        ("batch", {"includeTimestamp": "1"}, "includeTimestamp takes true or false, not '1'"),
        ("batch", {"kafka__bootstrap__servers": ""}, "kafka.bootstrap.servers is needed"),
    ],
)
def test_wrong_options(mode: Mode, options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as raised:
        read(mode, **options)
    assert said in str(raised.value)


def test_weak_producers_may_write_at_least_once() -> None:
    options = read("streaming", deliveryGuarantee="at-least-once", kafka__acks="1")
    assert options.settings.acks == 1


def test_what_spark_hands_over_for_itself_is_no_mistake() -> None:
    read("streaming", checkpointLocation="/tmp/x", queryName="q", includeHeaders="true")


def test_other_clients_get_no_options_of_producers() -> None:
    options = read(kafka__linger__ms="1", kafka__client__id="c", kafka__security__protocol="SSL")
    assert set(options.any_client) == {"bootstrap.servers", "client.id", "security.protocol"}


def test_overwriting_is_refused() -> None:
    source = OttlaDataSource({"kafka.bootstrap.servers": "localhost:9092", "topic": "t"})
    with pytest.raises(NotOffered, match="topics cannot be overwritten"):
        source.writer(schema_of("value string"), overwrite=True)
    source.streamWriter(schema_of("value string"), overwrite=True)  # complete mode


def test_write_batches_sets_the_version() -> None:
    with pytest.raises(OptionError, match="sets txnVersion itself"):
        write_batches({"txnVersion": 1})


# Columns

TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "struct": StructType([StructField("a", IntegerType())]),
    "strings": ArrayType(
        StructType([StructField("key", StringType()), StructField("value", StringType())])
    ),
}


def schema_of(columns: str) -> StructType:
    """Of `name type, name type` (Spark's own reader of such texts needs a session)."""
    pairs = [column.split() for column in columns.split(",")]
    return StructType([StructField(name, TYPES[type_]) for name, type_ in pairs])


def columns(schema: str, **options: Any) -> RecordColumns:
    return RecordColumns(schema_of(schema), SinkOptions(**{"topic": "t", **options}))


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        ("key string", {}, "the DataFrame has no column value"),
        ("value int", {}, "the column value must be string or binary, and it is int; cast it"),
        ("value struct", {}, "or use to_json(value)"),
        ("key bigint, value string", {}, "the column key must be string or binary, and it is big"),
        ("value string, partition bigint", {}, "the column partition must be int, and it is bigi"),
        ("value string, headers string", {}, "the column headers must be array<struct<key:str"),
        ("value string, headers strings", {}, "the column headers"),
        ("value string", {"topic": None}, "no topic: set the option topic, or give the DataFrame"),
        ("value string, topic int", {"topic": None}, "the column topic must be string, and it i"),
        ("value string, value string", {}, "has 2 columns called value"),
        ("value string", {"include_timestamp": True}, "and the DataFrame has no column timestamp"),
        (
            "value string, timestamp string",
            {"include_timestamp": True},
            "the column timestamp must be timestamp, and it is string",
        ),
    ],
)
def test_columns_that_do_not_fit(schema: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UnfitRows) as raised:
        columns(schema, **options)
    assert said in str(raised.value)


def test_other_columns_are_passed_over() -> None:
    schema = "offset bigint, value string, timestamp timestamp, key binary, topic int"
    rows = pa.RecordBatch.from_arrays(
        [pa.array([1]), pa.array(["v"]), pa.array([0]), pa.array([b"k"]), pa.array([3])],
        names=["offset", "value", "timestamp", "key", "topic"],
    )
    assert columns(schema).records(rows).to_pylist() == [{"value": "v", "key": b"k"}]
    timed = columns(schema, include_timestamp=True).records(rows)
    assert timed.schema.names == ["value", "timestamp", "key"]


def test_a_null_topic_is_told() -> None:
    rows = pa.RecordBatch.from_pydict({"value": ["a", "b"], "topic": ["t", None]})
    chosen = columns("value string, topic string", topic=None)
    with pytest.raises(UnfitRows, match="the column topic is null in some row"):
        chosen.records(rows)
    # The option wins.
    assert columns("value string, topic string").records(rows).schema.names == ["value"]
