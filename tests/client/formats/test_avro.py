"""Avro: both parsers against fastavro read plainly, resolution of schemas, rejected rows."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import uuid
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client.formats import AvroFormat, SchemaMismatch, UnsupportedColumn
from ottla.client.formats.avro import format as avro

UTC = datetime.UTC


def record(*types: Any) -> dict[str, Any]:
    fields = [{"name": f"f{at}", "type": each} for at, each in enumerate(types)]
    return {"type": "record", "name": "Row", "fields": fields}


def written(schema: Any, row: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), row)
    return buffer.getvalue()


@pytest.fixture(params=["compiled", "fastavro"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "fastavro":
        monkeypatch.setattr(avro, "compiled", None)
    else:
        assert avro.compiled is not None
    return str(request.param)


MOMENT = datetime.datetime(2024, 2, 29, 1, 2, 3, 4000, tzinfo=UTC)
# Avro type, the value as fastavro writes it, the Arrow type and the value in Arrow if it is another.
CASES: list[tuple[Any, Any, pa.DataType, Any]] = [
    ("null", None, pa.null(), None),
    ("boolean", True, pa.bool_(), True),
    ("int", -5, pa.int32(), -5),
    ("long", 2**40, pa.int64(), 2**40),
    ("float", 1.5, pa.float32(), 1.5),
    ("double", 2.5, pa.float64(), 2.5),
    ("bytes", b"x\x00\xff", pa.binary(), b"x\x00\xff"),
    ("string", "hé", pa.string(), "hé"),
    ({"type": "fixed", "name": "F", "size": 3}, b"abc", pa.binary(3), b"abc"),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", pa.string(), "B"),
    ({"type": "array", "items": "int"}, [1, 2], pa.list_(pa.int32()), [1, 2]),
    ({"type": "map", "values": "long"}, {"a": 1}, pa.map_(pa.string(), pa.int64()), [("a", 1)]),
    (["null", "string"], None, pa.string(), None),
    (["string", "null"], "x", pa.string(), "x"),
    (
        ["null", "string", "int"],
        5,
        pa.struct([("member0", pa.string()), ("member1", pa.int32())]),
        {"member0": None, "member1": 5},
    ),
    ({"type": "int", "logicalType": "date"}, MOMENT.date(), pa.date32(), MOMENT.date()),
    ({"type": "int", "logicalType": "time-millis"}, MOMENT.time(), pa.time32("ms"), MOMENT.time()),
    ({"type": "long", "logicalType": "time-micros"}, MOMENT.time(), pa.time64("us"), MOMENT.time()),
    (
        {"type": "long", "logicalType": "timestamp-millis"},
        MOMENT,
        pa.timestamp("ms", "UTC"),
        MOMENT,
    ),
    (
        {"type": "long", "logicalType": "timestamp-micros"},
        MOMENT,
        pa.timestamp("us", "UTC"),
        MOMENT,
    ),
    (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        MOMENT.replace(tzinfo=None),
        pa.timestamp("us"),
        MOMENT.replace(tzinfo=None),
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        decimal.Decimal("-12.34"),
        pa.decimal128(9, 2),
        decimal.Decimal("-12.34"),
    ),
    (
        {
            "type": "fixed",
            "name": "D",
            "size": 5,
            "logicalType": "decimal",
            "precision": 9,
            "scale": 2,
        },
        decimal.Decimal("12.34"),
        pa.decimal128(9, 2),
        decimal.Decimal("12.34"),
    ),
    (
        {"type": "string", "logicalType": "uuid"},
        uuid.UUID(int=7),
        pa.string(),
        str(uuid.UUID(int=7)),
    ),
    (
        ["null", {"type": "record", "name": "In", "fields": [{"name": "a", "type": "string"}]}],
        {"a": "z"},
        pa.struct([("a", pa.string())]),
        {"a": "z"},
    ),
    (
        {"type": "array", "items": ["null", {"type": "map", "values": "string"}]},
        [None, {"k": "v"}],
        pa.list_(pa.map_(pa.string(), pa.string())),
        [None, [("k", "v")]],
    ),
    (
        [
            "null",
            {"type": "enum", "name": "E2", "symbols": ["X"]},
            {"type": "map", "values": "int"},
        ],
        {"k": 1},
        pa.struct([("member0", pa.string()), ("member1", pa.map_(pa.string(), pa.int32()))]),
        {"member0": None, "member1": [("k", 1)]},
    ),
]


@pytest.mark.parametrize(("kind", "value", "arrow", "expected"), CASES)
def test_every_type_both_ways(
    parser: str, kind: Any, value: Any, arrow: pa.DataType, expected: Any
) -> None:
    schema = record(kind, "int")
    data = written(schema, {"f0": value, "f1": 7})
    avro_format = AvroFormat(json.dumps(schema))
    decoded = avro_format.decode(pa.array([data, None, b"", data[:-1], data]))
    assert decoded.array.type.field(0).type == arrow
    row = {"f0": expected, "f1": 7}
    assert decoded.array.to_pylist() == [row, None, None, None, row]
    assert decoded.rejected_mask.to_pylist() == [False, False, True, True, False]
    assert avro_format.encode(decoded.array).to_pylist() == [data, None, None, None, data]


def test_nanoseconds_are_exact(parser: str) -> None:
    schema = record({"type": "long", "logicalType": "timestamp-nanos"})
    data = written(record("long"), {"f0": 1_700_000_000_123_456_789})
    column = AvroFormat(schema).decode(pa.array([data])).array.field(0)
    assert column.type == pa.timestamp("ns", "UTC")
    assert column.cast(pa.int64()).to_pylist() == [1_700_000_000_123_456_789]


WIDE = {
    "type": "record",
    "name": "Wide",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "score", "type": "double"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": ["null", {"type": "map", "values": ["null", "int"]}]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    ],
}
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
wide_rows = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "name": st.none() | text,
        "score": st.floats(allow_nan=False),
        "tags": st.lists(text, max_size=3),
        "counts": st.none()
        | st.dictionaries(text, st.none() | st.integers(-(2**31), 2**31 - 1), max_size=3),
        "kind": st.sampled_from("AB"),
    }
)


def _plain(value: bytes) -> dict[str, Any] | None:
    """fastavro's own reading, shaped as Arrow gives rows back; None if it refuses."""
    try:
        row: Any = fastavro.schemaless_reader(io.BytesIO(value), fastavro.parse_schema(WIDE), None)
    except (EOFError, ValueError, IndexError, OverflowError):
        return None
    if not -(2**63) <= row["id"] < 2**63:
        return None
    if row["counts"] is not None:
        row["counts"] = list(row["counts"].items())
    return row  # type: ignore[no-any-return]


@settings(max_examples=2 * settings.default.max_examples, deadline=None)
@given(st.lists(st.none() | wide_rows, max_size=8), st.booleans())
def test_round_trip_against_fastavro(rows: list[dict[str, Any] | None], fast: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if not fast:
            patch.setattr(avro, "compiled", None)
        data = [None if row is None else written(WIDE, row) for row in rows]
        decoded = AvroFormat(WIDE).decode(pa.array(data, pa.binary()))
        expected = [None if value is None else _plain(value) for value in data]
        assert decoded.array.to_pylist() == expected
        assert decoded.rejected_count == 0
        # Maps have no order of their own, but both writers keep the one they are given.
        assert AvroFormat(WIDE).encode(decoded.array).to_pylist() == data


@settings(max_examples=2 * settings.default.max_examples, deadline=None)
@given(st.lists(wide_rows, min_size=1, max_size=4), st.data())
def test_damaged_data_never_disturbs_other_rows(rows: list[Any], data: st.DataObject) -> None:
    good = [written(WIDE, row) for row in rows]
    victim = bytearray(good[data.draw(st.integers(0, len(good) - 1))])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(victim) - 1))
        victim[at] = data.draw(st.integers(0, 255))
    victim = victim[: data.draw(st.integers(0, len(victim)))]
    column = pa.array([*good, bytes(victim), *good], pa.binary())
    decoded = AvroFormat(WIDE).decode(column)
    decoded.array.validate(full=True)
    expected = [_plain(value) for value in good]
    found = decoded.array.to_pylist()
    assert found[: len(good)] == expected
    assert found[len(good) + 1 :] == expected
    assert decoded.rejected_count <= 1


def test_a_reader_schema_is_resolved() -> None:
    old = {
        "type": "record",
        "name": "Row",
        "fields": [{"name": "a", "type": "int"}, {"name": "gone", "type": "string"}],
    }
    new = {
        "type": "record",
        "name": "Row",
        "fields": [
            {"name": "b", "type": "string", "default": "none"},
            {"name": "a", "type": "long"},
        ],
    }
    data = written(old, {"a": 1, "gone": "x"})
    decoded = AvroFormat(old, reader_schema=new).decode(pa.array([data]))
    assert decoded.array.type == pa.struct([("b", pa.string()), ("a", pa.int64())])
    assert decoded.array.to_pylist() == [{"b": "none", "a": 1}]


def test_schemas_that_do_not_resolve_reject_every_row() -> None:
    data = written(record("string"), {"f0": "x"})
    decoded = AvroFormat(record("string"), reader_schema=record("int")).decode(pa.array([data]))
    assert decoded.rejected_count == 1


def test_a_schema_is_made_from_columns() -> None:
    table = pa.table(
        {
            "a": pa.array([1, None], pa.int16()),
            "b": pa.array([MOMENT, None], pa.timestamp("s", "UTC")),
            "c": pa.array([{"d": [1.5]}, None]),
            "e": pa.array(["x", None]).dictionary_encode(),
            "f": pa.array([decimal.Decimal("1.2"), None]),
            "g": pa.array([b"ab", None], pa.binary(2)),
        }
    )
    encoded = AvroFormat().encode(table)
    schema = avro.avro_schema(table.to_struct_array().type)
    rows = AvroFormat(schema).decode(encoded).array.to_pylist()
    assert rows[0]["a"] == 1
    assert rows[0]["b"] == MOMENT.replace(microsecond=0)
    assert rows[0]["c"] == {"d": [1.5]}
    assert (rows[0]["e"], rows[0]["f"], rows[0]["g"]) == ("x", decimal.Decimal("1.2"), b"ab")
    assert set(rows[1].values()) == {None}


def test_columns_that_do_not_fit_are_refused(parser: str) -> None:
    with pytest.raises(UnsupportedColumn, match="f0 is null"):
        AvroFormat(record("int")).encode(pa.table({"f0": [1, None]}))
    with pytest.raises(SchemaMismatch, match="no field 'other'"):
        AvroFormat(record("int")).encode(pa.table({"f0": [1], "other": [1]}))
    with pytest.raises(SchemaMismatch, match="does not fit"):
        AvroFormat(record("int")).encode(pa.table({"f0": ["x"]}))
    with pytest.raises(SchemaMismatch, match="does not fit"):
        AvroFormat(record("int")).encode(pa.table({"f0": [2**40]}))


def test_schemas_that_columns_cannot_have_are_refused() -> None:
    recursive = {
        "type": "record",
        "name": "Node",
        "fields": [{"name": "next", "type": ["null", "Node"]}],
    }
    with pytest.raises(SchemaMismatch, match="contains itself"):
        AvroFormat(recursive).decode(pa.array([b"\x00"]))
    with pytest.raises(SchemaMismatch, match="not JSON"):
        AvroFormat("{")
    with pytest.raises(SchemaMismatch, match="does not define: 'Elsewhere'"):
        AvroFormat(record("Elsewhere")).decode(pa.array([b"\x00"]))
    with pytest.raises(SchemaMismatch, match="with a schema"):
        AvroFormat().decode(pa.array([b"\x00"]))


def test_a_type_named_twice() -> None:
    inner = {"type": "record", "name": "In", "fields": [{"name": "a", "type": "int"}]}
    schema = {**record(inner, ["null", "In"]), "namespace": "some.where"}
    data = written(schema, {"f0": {"a": 1}, "f1": {"a": 2}})
    decoded = AvroFormat(schema).decode(pa.array([data]))
    assert decoded.array.to_pylist() == [{"f0": {"a": 1}, "f1": {"a": 2}}]
    assert AvroFormat(schema).encode(decoded.array).to_pylist() == [data]
