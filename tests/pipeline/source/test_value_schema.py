"""What values are, from options: the schema's text, and which options belong together. No Spark runs."""

from __future__ import annotations

import pytest
from pyspark.sql.types import DecimalType, StructField, StructType

from pyspark_ottla.errors import OptionError
from pyspark_ottla.options import read_options
from pyspark_ottla.values.columns import settled, value_field
from pyspark_ottla.values.schema import struct_of

GIVEN = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id BIGINT", "struct<id:bigint>"),
        ("id long, n: integer", "struct<id:bigint,n:int>"),
        ("struct<a: int, b: string>", "struct<a:int,b:string>"),
        ("struct INT", "struct<struct:int>"),
        (
            "a TINYINT NOT NULL, b SmallInt, c FLOAT COMMENT 'it is', d double",
            "struct<a:tinyint,b:smallint,c:float,d:double>",
        ),
        ("`a b` DATE, `c``d` TIMESTAMP", "struct<a b:date,c`d:timestamp>"),
        ("a DECIMAL, b DECIMAL(5), c NUMERIC(10, 2)", None),
        (
            "a ARRAY<STRUCT<x: INT, y ARRAY<TIMESTAMP_NTZ>>>, m MAP<STRING, BINARY>",
            "struct<a:array<struct<x:int,y:array<timestamp_ntz>>>,m:map<string,binary>>",
        ),
        ("e STRUCT<>", "struct<e:struct<>>"),
    ],
)
def test_fields_are_written_as_in_spark(text: str, expected: str | None) -> None:
    parsed = struct_of(text)
    if expected is not None:
        assert parsed.simpleString() == expected
    else:
        assert [each.dataType for each in parsed] == [
            DecimalType(10, 0),
            DecimalType(5, 0),
            DecimalType(10, 2),
        ]
    assert struct_of(parsed.json()) == parsed


def test_everything_may_be_null() -> None:
    json = StructType([StructField("a", DecimalType(3, 1), nullable=False)]).json()
    assert struct_of(json)["a"].nullable
    assert struct_of("a INT NOT NULL")["a"].nullable


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the end at character 1, where a field's name should be"),
        ("id", "where a type should be"),
        ("id BIGINT,", "where a field's name should be"),
        ("id BIGINT name STRING", "'name' at character 11, where a comma or the end"),
        ("id UUID", "'UUID' at character 4 is no type"),
        ("id ARRAY<INT", "the end at character 13, where '>' should be"),
        ("id INT, id INT", "'id' is there twice"),
        ("id DECIMAL(39)", "too many digits"),
        ("id DECIMAL(x)", "where a number should be"),
        ("id INT; DROP", "';' at character 7"),
        ("a " + "ARRAY<" * 500 + "INT" + ">" * 500, "nested deeper"),
        ("{}", "no StructType"),
        ('{"type": "struct", "fields": [{"name": "a", "type": "nothing"}]}', "no StructType"),
        ("{" * 10_000, "no StructType"),
    ],
)
def test_what_makes_no_sense_is_said_with_its_place(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        struct_of(text)
    with pytest.raises(OptionError, match="^valueSchema: .*" + reason):
        _field(valueFormat="json", valueSchema=text)


def _field(**options: str) -> StructField:
    values = read_options({**GIVEN, **{k.replace("__", "."): v for k, v in options.items()}}).values
    assert values is not None
    return value_field(settled(values))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"valueSchema": "a INT"}, "valueSchema needs valueFormat: json, avro"),
        ({"valueFormat": "xml"}, "valueFormat is one of json, .* not 'xml'"),
        ({"valueFormat": "json"}, "valueFormat=json needs valueSchema: its fields"),
        ({"valueFormat": "avro"}, "valueFormat=avro needs valueSchema: the Avro schema"),
        ({"valueFormat": "arrow"}, "valueFormat=arrow needs valueSchema"),
        ({"valueFormat": "protobuf"}, "valueFormat=protobuf needs valueMessage"),
        ({"valueFormat": "protobuf", "valueMessage": "x"}, "protobuf needs valueSchema"),
        ({"valueFormat": "confluent-avro"}, "needs schema.registry.url"),
        ({"valueFormat": "confluent-json"}, "confluent-json needs valueSchema: its fields"),
        ({"valueFormat": "confluent-protobuf"}, "confluent-protobuf needs valueMessage"),
        (
            {"valueFormat": "json", "schema.registry.url": "http://x"},
            "schema.registry.url is for valueFormat=confluent-avro",
        ),
        (
            {"valueFormat": "json", "valueMessage": "x"},
            "valueMessage is for valueFormat=protobuf",
        ),
        (
            {
                "valueFormat": "confluent-avro",
                "schema.registry.url": "http://x",
                "subscribe": "a,b",
            },
            "needs valueSchema or valueSubject",
        ),
        ({"valueFromat": "json"}, "did you mean valueFormat"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(
    options: dict[str, str], reason: str
) -> None:
    with pytest.raises(OptionError, match=reason):
        read_options({**GIVEN, **options})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"valueFormat": "json", "valueSchema": "a STRUCT<b ARRAY<BINARY>>"},
            r"value\.a\.b cannot be binary in JSON; take STRING",
        ),
        ({"valueFormat": "json", "valueSchema": "a MAP<STRING,INT>"}, "cannot be map<string,int>"),
        ({"valueFormat": "avro", "valueSchema": "{"}, "valueSchema: the Avro schema is not JSON"),
        (
            {"valueFormat": "protobuf", "valueMessage": "x", "valueSchema": "/nowhere.desc"},
            "valueSchema: .*No such file",
        ),
        (
            {"valueFormat": "confluent-avro", "schema.registry.url": "http://127.0.0.1:9"},
            "schema.registry.url: GET /subjects/orders-value",
        ),
        (
            {"valueFormat": "confluent-avro", "schema.registry.url": "nonsense"},
            "schema.registry.url: not the address",
        ),
    ],
)
def test_what_load_finds_out_names_the_option(options: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        _field(**{name.replace(".", "__"): value for name, value in options.items()})
