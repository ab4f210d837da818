"""Values decoded while they are read: a typed column `value`, and `_corrupt` for the others."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "client"))

from formats_kit.registry import Registry, running_registry

from ottla import Producer
from ottla.client.admin.client import Admin
from ottla.client.formats import (
    ArrowFormat,
    AvroFormat,
    ConfluentAvroFormat,
    ConfluentJsonFormat,
    ConfluentProtobufFormat,
    ProtobufFormat,
    SchemaRegistry,
)
from ottla.testing import BrokerProcess

UTC = datetime.UTC
JSON_SCHEMA = (
    "id BIGINT, name STRING, price DECIMAL(9,2), at TIMESTAMP, local TIMESTAMP_NTZ, day DATE,"
    " ok BOOLEAN,"
    " small TINYINT, ratio DOUBLE, tags ARRAY<STRING>, lines ARRAY<STRUCT<item: STRING, count: INT>>"
)
GOOD_JSON = [
    (
        b'{"id": 1, "name": "caf\xc3\xa9", "price": 12.5, "at": "2026-01-02T03:04:05.678901Z",'
        b' "local": "2026-01-02T03:04:05", "day": "2026-01-02", "ok": true, "small": -3, "ratio": 0.5,'
        b' "tags": ["a", null], "lines": [{"item": "pen", "count": 2}, {"item": "ink"}], "more": 1}'
    ),
    b'{"id": 2}',
    b'{"id": 3, "at": "2026-01-02T03:04:05+02:00", "lines": []}',
    None,
]
BAD_JSON = [b"{", b"[1]", b"", b'{"id": "x"}', b'{"small": 300}', b"\xff{}", b'{"id": 1}{"id": 2}']


def write(bootstrap: str, admin: Admin, topic: str, values: Iterable[bytes | None]) -> None:
    admin.create_topic(topic, 1)
    with Producer(bootstrap) as producer:
        for number, value in enumerate(values):
            producer.send(topic, value, key=b"%d" % number)


def load(spark: SparkSession, bootstrap: str, topic: str, **options: Any) -> DataFrame:
    """In names of options, __ stands for a dot."""
    reader = spark.read.format("ottla").option("kafka.bootstrap.servers", bootstrap)
    for name, value in options.items():
        reader = reader.option(name.replace("__", "."), value)
    return reader.option("subscribe", topic).load()


def values_of(frame: DataFrame, column: str = "value") -> list[Any]:
    """The column's values in the order of offsets, rows as dictionaries."""
    return [row.asDict(recursive=True)[column] for row in frame.orderBy("offset").collect()]


@pytest.fixture(scope="module")
def json_topic(broker: BrokerProcess, admin: Admin) -> str:
    write(broker.bootstrap, admin, "values-json", [*GOOD_JSON, *BAD_JSON])
    return "values-json"


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with running_registry() as server:
        yield server


def test_json_becomes_columns_and_the_rest_is_corrupt(
    spark: SparkSession, broker: BrokerProcess, json_topic: str
) -> None:
    options = {"valueFormat": "json", "valueSchema": JSON_SCHEMA}
    frame = load(spark, broker.bootstrap, json_topic, includeHeaders="true", **options)
    assert frame.columns[1] == "value"
    assert frame.columns[-2:] == ["headers", "_corrupt"]
    first, second, third, *others = values_of(frame)
    assert first == {
        "id": 1,
        "name": "café",
        "price": Decimal("12.50"),
        "at": datetime.datetime(2026, 1, 2, 3, 4, 5, 678901),
        "local": datetime.datetime(2026, 1, 2, 3, 4, 5),
        "day": datetime.date(2026, 1, 2),
        "ok": True,
        "small": -3,
        "ratio": 0.5,
        "tags": ["a", None],
        "lines": [{"item": "pen", "count": 2}, {"item": "ink", "count": None}],
    }
    assert second == {**dict.fromkeys(first), "id": 2}
    assert third["at"] == datetime.datetime(2026, 1, 2, 1, 4, 5)
    assert third["lines"] == []
    assert others == [None] * (1 + len(BAD_JSON))
    corrupt = values_of(frame, "_corrupt")
    assert corrupt == [None] * len(GOOD_JSON) + [bytearray(value) for value in BAD_JSON]
    # What a query asks for by fields.
    assert frame.where("value.id >= 2").selectExpr("sum(value.id)").collect()[0][0] == 5
    # Spark's own reader of JSON sees the same in the good ones.
    plain = load(spark, broker.bootstrap, json_topic).limit(len(GOOD_JSON))
    own = plain.withColumn("value", from_json(col("value").cast("string"), JSON_SCHEMA))
    assert values_of(own) == [first, second, third, None]


def test_a_folder_is_decoded_as_well(
    spark: SparkSession, broker: BrokerProcess, json_topic: str
) -> None:
    options = {"valueFormat": "json", "valueSchema": JSON_SCHEMA, "subscribe": json_topic}
    frame = spark.read.format("ottla").options(**options).load(str(broker.data))
    expected = load(spark, broker.bootstrap, json_topic, **options)
    assert frame.schema == expected.schema
    assert values_of(frame) == values_of(expected)
    assert values_of(frame, "_corrupt") == values_of(expected, "_corrupt")


def test_a_stream_is_decoded_as_well(
    spark: SparkSession, broker: BrokerProcess, json_topic: str, tmp_path: Path
) -> None:
    reader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap)
    reader = reader.option("subscribe", json_topic).option("startingOffsets", "earliest")
    frame = reader.option("valueFormat", "json").option("valueSchema", "id BIGINT").load()
    query = (
        frame.selectExpr("value.id AS id", "_corrupt IS NOT NULL AS bad", "offset")
        .writeStream.format("memory")
        .queryName("decoded")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    rows = spark.table("decoded").orderBy("offset").collect()
    assert [row.id for row in rows[:4]] == [1, 2, 3, None]
    # The value whose `small` is too large has nothing wrong with its id here.
    assert sum(row.bad for row in rows) == len(BAD_JSON) - 1


PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
AVRO_SCHEMA = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "sensor", "type": "string"},
        {"name": "degrees", "type": ["null", "double"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "price", "type": PRICE},
        {"name": "raw", "type": {"type": "fixed", "name": "Raw", "size": 2}},
        {"name": "time", "type": {"type": "int", "logicalType": "time-millis"}},
    ],
}  # fmt: skip
AVRO_ROW: dict[str, Any] = {
    "sensor": "a",
    "degrees": None,
    "at": datetime.datetime(2026, 1, 2, 3, 4, 5, 678000),
    "counts": {"x": 1},
    "kind": "B",
    "price": Decimal("1.25"),
    "raw": b"\x01\x02",
    "time": datetime.time(1, 2, 3, 4000),
}


def test_avro(spark: SparkSession, broker: BrokerProcess, admin: Admin) -> None:
    row = {**AVRO_ROW, "at": AVRO_ROW["at"].replace(tzinfo=UTC)}
    column = pa.array([row], _arrow_type())
    encoded = AvroFormat(AVRO_SCHEMA).encode(column).to_pylist()
    write(broker.bootstrap, admin, "values-avro", [*encoded, None, b"\x80"])
    options = {"valueFormat": "avro", "valueSchema": json.dumps(AVRO_SCHEMA)}
    frame = load(spark, broker.bootstrap, "values-avro", **options)
    assert frame.schema["value"].dataType.simpleString() == (
        "struct<sensor:string,degrees:double,at:timestamp,counts:map<string,bigint>,kind:string,"
        "price:decimal(5,2),raw:binary,time:time(6)>"
    )
    assert values_of(frame) == [AVRO_ROW, None, None]
    assert values_of(frame, "_corrupt") == [None, None, bytearray(b"\x80")]


def _arrow_type() -> pa.DataType:
    from ottla.client.formats.avro.schema import resolve

    return resolve(AVRO_SCHEMA).logical


def _record(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": list(fields)})


def test_values_of_a_registry_are_read_by_the_schema_that_load_has_found(
    spark: SparkSession, broker: BrokerProcess, admin: Admin, registry: Registry
) -> None:
    topic = "values-confluent"
    id_, note = {"name": "id", "type": "long"}, {"name": "note", "type": "string", "default": "-"}
    later = {"name": "later", "type": "int", "default": 7}
    older = ConfluentAvroFormat(registry.url, schema=_record(id_), subject=f"{topic}-value")
    newer = ConfluentAvroFormat(registry.url, schema=_record(id_, note), subject=f"{topic}-value")
    values = older.encode(pa.table({"id": [1]})).to_pylist()
    values += newer.encode(pa.table({"id": [2], "note": ["x"]})).to_pylist()
    write(broker.bootstrap, admin, topic, [*values, b"\0\0\0\0\x63?", b"no frame"])
    options = {"valueFormat": "confluent-avro", "schema__registry__url": registry.url}
    frame = load(spark, broker.bootstrap, topic, **options)
    # A schema that comes after load() does not change what the query gives.
    SchemaRegistry(registry.url).register(f"{topic}-value", _record(id_, note, later))
    expected: list[Any] = [{"id": 1, "note": "-"}, {"id": 2, "note": "x"}, None, None]
    assert values_of(frame) == expected
    assert [value is not None for value in values_of(frame, "_corrupt")] == [False] * 2 + [True] * 2
    anew = load(spark, broker.bootstrap, topic, **options)
    assert values_of(anew)[0] == {"id": 1, "note": "-", "later": 7}
    own = load(spark, broker.bootstrap, topic, valueSchema=_record(note), **options)
    assert values_of(own) == [{"note": "-"}, {"note": "x"}, None, None]


@pytest.mark.parametrize("framed", [False, True])
def test_protobuf(
    spark: SparkSession,
    broker: BrokerProcess,
    admin: Admin,
    registry: Registry,
    tmp_path: Path,
    framed: bool,
) -> None:
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="s.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=field.TYPE_UINT32, label=field.LABEL_OPTIONAL)
    order.field.add(name="tags", number=2, type=field.TYPE_STRING, label=field.LABEL_REPEATED)
    described = tmp_path / "shop.desc"
    described.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    name = "confluent-protobuf" if framed else "protobuf"
    topic = f"values-{name}"
    meant = {"descriptor_set": described.read_bytes(), "message_name": "shop.Order"}
    protobuf = (
        ConfluentProtobufFormat(registry.url, subject=f"{topic}-value", **meant)
        if framed
        else ProtobufFormat(**meant)
    )
    encoded = protobuf.encode(pa.table({"id": [4_000_000_000], "tags": [["a"]]})).to_pylist()
    write(broker.bootstrap, admin, topic, [*encoded, b"\xff"])
    options = {"valueFormat": name, "valueSchema": str(described)}
    frame = load(spark, broker.bootstrap, topic, valueMessage="shop.Order", **options)
    described.unlink()  # it is read once, at load()
    assert values_of(frame) == [{"id": 4_000_000_000, "tags": ["a"]}, None]
    assert values_of(frame, "_corrupt") == [None, bytearray(b"\xff")]


def test_json_behind_the_id_of_a_schema(
    spark: SparkSession, broker: BrokerProcess, admin: Admin, registry: Registry
) -> None:
    """The columns are those of valueSchema; nobody asks the registry."""
    topic = "values-confluent-json"
    framed = ConfluentJsonFormat(
        registry.url, json_schema='{"type": "object"}', subject=f"{topic}-value"
    )
    encoded = framed.encode(pa.table({"id": [1, 2], "name": ["a", None]})).to_pylist()
    write(broker.bootstrap, admin, topic, [*encoded, b'{"id": 3}', encoded[0][:5] + b"{"])
    options = {"valueFormat": "confluent-json", "valueSchema": "id BIGINT, name STRING"}
    frame = load(spark, broker.bootstrap, topic, **options)
    expected: list[Any] = [{"id": 1, "name": "a"}, {"id": 2, "name": None}, None, None]
    assert values_of(frame) == expected
    assert [value is not None for value in values_of(frame, "_corrupt")] == [False] * 2 + [True] * 2


def test_arrow_streams_hold_many_rows(
    spark: SparkSession, broker: BrokerProcess, admin: Admin
) -> None:
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int32()), "name": ["a", None, "c"]})
    encoded = ArrowFormat(rows_per_value=2).encode(rows).to_pylist()
    other = ArrowFormat().encode(pa.table({"id": ["x"]})).to_pylist()
    write(broker.bootstrap, admin, "values-arrow", [*encoded, *other])
    options = {"valueFormat": "arrow", "valueSchema": "id BIGINT, name STRING"}
    frame = load(spark, broker.bootstrap, "values-arrow", **options)
    exploded = frame.selectExpr("offset", "inline(value)").orderBy("id").collect()
    assert [(row.offset, row.id, row.name) for row in exploded] == [
        (0, 1, "a"),
        (0, 2, None),
        (1, 3, "c"),
    ]
    assert values_of(frame, "_corrupt") == [None, None, bytearray(other[0])]


def test_what_is_wrong_is_told_at_load(spark: SparkSession, broker: BrokerProcess) -> None:
    with pytest.raises(PySparkException, match="valueSchema: 'NUMBER' at character 4"):
        load(spark, broker.bootstrap, "x", valueFormat="json", valueSchema="id NUMBER")
