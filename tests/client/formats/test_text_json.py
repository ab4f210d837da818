"""Text and JSON: whole columns in, whole columns out, and no row ever in another's place."""

from __future__ import annotations

import datetime
import decimal
import doctest
import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client import formats
from ottla.client.formats import (
    JsonFormat,
    SchemaMismatch,
    TextFormat,
    UnsupportedColumn,
    arrow_ipc,
    text,
)
from ottla.client.formats.json import text as json_text

ROW = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("score", pa.float64()),
        ("flag", pa.bool_()),
        ("tags", pa.list_(pa.string())),
        ("inner", pa.struct([("x", pa.int32())])),
    ]
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
rows = st.fixed_dictionaries(
    {
        "id": st.none() | st.integers(-(2**63), 2**63 - 1),
        "name": st.none() | texts,
        "score": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "flag": st.none() | st.booleans(),
        "tags": st.none() | st.lists(st.none() | texts, max_size=3),
        "inner": st.none() | st.fixed_dictionaries({"x": st.none() | st.integers(-9, 9)}),
    }
)
# Values that would shift the rows after them if they were simply joined with newlines.
SHIFTY = [
    b"",
    b" ",
    b"\n",
    b"{",
    b"}",
    b"{}{}",
    b'{"id":1}\n{"id":2}',
    b'{"id":\n',
    b'1}\n{"id":3}',
    b"[{}]",
    b"null",
    b"1",
    b'"{}"',
    b'{"id":1},',
    b'{"name":"}',
    b'{"name":"\xff"}',
    b'{"name":"\\ud800"}',
    b'{"id":1,"id":2}',
    b'{"id":"text"}',
    b'{"id":1.5}',
    b'{"id":9999999999999999999}',
    b'{"tags":[1]}',
    b'{"inner":[]}',
    b"\xef\xbb\xbf{}x",
    b"{}\x00",
    b"{} // {}",
]


def _expected(value: bytes) -> dict[str, Any] | None:
    """What a plain reading of one value gives, or None if it has to be rejected."""
    try:
        parsed = json.loads(value.decode(), object_pairs_hook=_once_each)
    except ValueError:
        return None
    if not isinstance(parsed, dict):
        return None
    # Arrow's conversion of Python objects is laxer than its reader of JSON in these two.
    if isinstance(parsed.get("id"), float) or isinstance(parsed.get("inner"), list):
        return None
    try:
        array = pa.array([parsed], pa.struct(list(ROW)))
        array.validate(full=True)
    except (pa.ArrowInvalid, UnicodeEncodeError, TypeError, OverflowError):
        return None
    return array[0].as_py()  # type: ignore[no-any-return]


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("twice")
    return found


good_values = rows.map(lambda row: json.dumps(row).encode())
pretty_values = rows.map(lambda row: json.dumps(row, indent=1, ensure_ascii=False).encode())
values = st.lists(
    st.none() | good_values | pretty_values | st.sampled_from(SHIFTY) | st.binary(max_size=5),
    max_size=12,
)


@settings(max_examples=3 * settings.default.max_examples, deadline=None)
@given(values, st.integers(0, 3))
def test_every_json_value_stays_in_its_row(given_values: list[bytes | None], skip: int) -> None:
    # A slice, because offsets into a parent's buffers are where such code goes wrong.
    column = pa.array([b"{}"] * skip + given_values, pa.binary()).slice(skip)
    decoded = JsonFormat(ROW).decode(column)
    assert len(decoded.array) == len(decoded.rejected) == len(given_values)
    for value, row, reason in zip(
        given_values, decoded.array.to_pylist(), decoded.rejected.to_pylist(), strict=True
    ):
        expected = None if value is None else _expected(value)
        assert row == expected, value
        assert (reason is not None) == (value is not None and expected is None), value


@settings(max_examples=2 * settings.default.max_examples, deadline=None)
@given(st.lists(rows, min_size=1, max_size=8), st.integers(0, 2))
def test_json_round_trip(given_rows: list[dict[str, Any]], skip: int) -> None:
    column = pa.array([None] * skip + given_rows, pa.struct(list(ROW))).slice(skip)
    encoded = JsonFormat().encode(column)
    assert [json.loads(value) for value in encoded.to_pylist()] == given_rows
    assert JsonFormat(ROW).decode(encoded).array.equals(column)


@pytest.mark.parametrize("value", SHIFTY)
def test_a_bad_value_between_good_ones(value: bytes) -> None:
    column = pa.array([b'{"id":1}', value, b'{"id":3}'])
    decoded = JsonFormat(pa.schema([("id", pa.int64())])).decode(column)
    assert decoded.array[0].as_py() == {"id": 1}
    assert decoded.array[2].as_py() == {"id": 3}


def test_two_faults_that_cancel_out_in_the_count_are_both_found() -> None:
    # One value of two objects, one of none: as many objects as values.
    column = pa.array([b'{"id":1}{"id":2}', b"", b'{"id":3}'])
    decoded = JsonFormat(pa.schema([("id", pa.int64())])).decode(column)
    assert decoded.array.to_pylist() == [None, None, {"id": 3}]
    assert decoded.rejected_mask.to_pylist() == [True, True, False]


def test_types_are_inferred_from_all_rows() -> None:
    column = pa.array(
        [
            b'{"a":1}',
            b'{"b":"2020-01-01"}',
            b'{"a":"x","e":1}',
            b'{"a":2.5,"c":{"d":[1]}}',
            b"{",
            None,
            b'{"c":{"d":[0.5]},"e":2.5}',
        ]
    )
    decoded = JsonFormat().decode(column)
    assert decoded.array.type == pa.struct(
        [
            ("a", pa.string()),
            ("b", pa.string()),
            ("e", pa.float64()),
            ("c", pa.struct([("d", pa.list_(pa.float64()))])),
        ]
    )
    assert decoded.rejected_mask.to_pylist() == [False, False, False, False, True, False, False]
    nothing = {"a": None, "b": None, "c": None, "e": None}
    assert decoded.array.to_pylist() == [
        {**nothing, "a": "1"},
        {**nothing, "b": "2020-01-01"},
        {**nothing, "a": "x", "e": 1.0},
        {**nothing, "a": "2.5", "c": {"d": [1.0]}},
        None,
        None,
        {**nothing, "c": {"d": [0.5]}, "e": 2.5},
    ]


def test_what_stands_beside_other_kinds_is_its_text() -> None:
    values = [{"a": {"b": 1}}, {"a": [1, "é"]}, {"a": True}, {"a": None}, {"a": "text"}, {"a": 1.0}]
    values += [{"n": [{"x": 1}, {"x": "y", "z": 99999999999999999999}]}]
    decoded = JsonFormat().decode(pa.array([json.dumps(value).encode() for value in values]))
    assert decoded.rejected_count == 0
    assert [row["a"] for row in decoded.array.to_pylist()] == [
        '{"b": 1}',
        '[1, "é"]',
        "true",
        None,
        "text",
        "1.0",
        None,
    ]
    assert decoded.array[6]["n"].as_py() == [
        {"x": "1", "z": None},
        {"x": "y", "z": 99999999999999999999},
    ]


@pytest.mark.parametrize(
    ("numbers", "kind", "found"),
    [
        ([2**63 - 1, -(2**63)], pa.int64(), None),
        ([2**63, 1, None], pa.decimal128(38, 0), None),
        ([-(2**63) - 1], pa.decimal128(38, 0), None),
        ([99999999999999999999, 1], pa.decimal128(38, 0), None),
        ([10**38 - 1, 1 - 10**38], pa.decimal128(38, 0), None),
        ([10**38, 7], pa.string(), [str(10**38), "7"]),
        ([99999999999999999999, 0.5], pa.float64(), [1e20, 0.5]),
        ([1e20, 0.5], pa.float64(), None),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_whole_numbers_keep_their_digits(
    numbers: list[Any], kind: pa.DataType, found: list[Any] | None, nested: bool
) -> None:
    rows = [{"n": {"of": [each]}} if nested else {"n": each} for each in numbers]
    decoded = JsonFormat().decode(pa.array([json.dumps(row).encode() for row in rows]))
    assert decoded.rejected_count == 0
    values = [row["n"]["of"][0] if nested else row["n"] for row in decoded.array.to_pylist()]
    assert values == (numbers if found is None else found)
    column = decoded.array.type.field("n").type
    assert (column.field("of").type.value_type if nested else column) == kind


plain_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=3 * settings.default.max_examples, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("abc"), plain_json, max_size=3), max_size=6))
def test_no_json_object_is_refused_and_no_field_is_lost(given_rows: list[dict[str, Any]]) -> None:
    column = pa.array([json.dumps(row).encode() for row in given_rows], pa.binary())
    decoded = JsonFormat().decode(column)
    assert decoded.rejected.to_pylist() == [None] * len(given_rows)
    # The fast way and the slow one agree.
    by_row = JsonFormat()._decode_by_row(column)
    assert {field.name: field.type for field in by_row.array.type} == {
        field.name: field.type for field in decoded.array.type
    }
    for row, found in zip(given_rows, decoded.array.to_pylist(), strict=True):
        for name, value in row.items():
            assert (found[name] is None) == (value is None)


def test_floats_stay_floats() -> None:
    table = pa.table({"price": [1.0, -0.0, 2.5, 1e20, None, 3e-9]})
    values = JsonFormat().encode(table)
    assert values[0].as_py() == b'{"price":1.0}'
    assert [json.loads(each)["price"] for each in values.to_pylist()] == table["price"].to_pylist()
    for at in range(len(values)):
        if at != 4:
            assert (
                JsonFormat().decode(values[at : at + 1]).array.type.field("price").type == "double"
            )


@pytest.mark.parametrize("schema", [None, ROW])
def test_a_value_of_a_million_brackets_is_rejected_or_ignored(schema: pa.Schema | None) -> None:
    deep = b'{"id":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}"
    decoded = JsonFormat(schema).decode(pa.array([b'{"id":1}', deep]))
    assert decoded.rejected_mask.to_pylist() == [False, True]


def test_json_types_by_schema() -> None:
    schema = pa.schema(
        [
            ("day", pa.date32()),
            ("at", pa.timestamp("ms", "UTC")),
            ("price", pa.decimal128(9, 2)),
            ("kind", pa.dictionary(pa.int32(), pa.string())),
        ]
    )
    value = b'{"day":"2024-02-29","at":"2024-02-29T01:02:03.004Z","price":12.34,"kind":"a","no":1}'
    row = JsonFormat(schema).decode(pa.array([value, value])).array[1].as_py()
    assert row["day"] == datetime.date(2024, 2, 29)
    assert row["at"] == datetime.datetime(2024, 2, 29, 1, 2, 3, 4000, tzinfo=datetime.UTC)
    assert row["price"] == decimal.Decimal("12.34")
    assert row["kind"] == "a"


def test_json_of_every_kind_of_column() -> None:
    table = pa.table(
        {
            "i": pa.array([1, None], pa.uint8()),
            "f": pa.array([math.nan, math.inf]),
            "half": pa.array([1.5, None], pa.float16()),
            "s": ['quote " back \\ tab \t nul \x00 é', None],
            "m": pa.array([[("k", 1), ('"', None)], None], pa.map_(pa.string(), pa.int32())),
            "t": pa.array([0, None], pa.timestamp("us", "UTC")),
            "d": pa.array([datetime.date(2020, 1, 1), None]),
            "p": pa.array([decimal.Decimal("1.20"), None]),
            "b": pa.array([b"text", None], pa.large_binary()),
            "k": pa.array(["q", None]).dictionary_encode(),
            "n": pa.nulls(2),
            "l": pa.array([[[1], None], None], pa.large_list(pa.list_(pa.int8()))),
            "z": pa.array([[1, 2], None], pa.list_(pa.int8(), 2)),
            "e": pa.array([{}, None], pa.struct([])),
        }
    )
    first, second = (json.loads(value) for value in JsonFormat().encode(table).to_pylist())
    assert first == {
        "i": 1,
        "f": None,
        "half": 1.5,
        "s": 'quote " back \\ tab \t nul \x00 é',
        "m": {"k": 1, '"': None},
        "t": "1970-01-01T00:00:00.000000Z",
        "d": "2020-01-01",
        "p": 1.2,
        "b": "text",
        "k": "q",
        "n": None,
        "l": [[1], None],
        "z": [1, 2],
        "e": {},
    }
    assert set(second.values()) == {None}


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(UnsupportedColumn, match="base64"):
        JsonFormat().encode(pa.table({"b": [b"\xff"]}))
    with pytest.raises(UnsupportedColumn, match="duration"):
        JsonFormat().encode(pa.table({"d": pa.array([1], pa.duration("s"))}))
    with pytest.raises(SchemaMismatch, match="map"):
        JsonFormat(pa.schema([("m", pa.map_(pa.string(), pa.int8()))]))
    with pytest.raises(SchemaMismatch, match="struct"):
        JsonFormat(pa.int64())


@settings(max_examples=2 * settings.default.max_examples, deadline=None)
@given(st.lists(st.none() | st.binary(max_size=6) | texts.map(str.encode), max_size=20))
def test_text_against_python(given_values: list[bytes | None]) -> None:
    decoded = TextFormat().decode(pa.array(given_values, pa.binary()))
    decoded.array.validate(full=True)
    for value, text_value, reason in zip(
        given_values, decoded.array.to_pylist(), decoded.rejected.to_pylist(), strict=True
    ):
        try:
            expected = None if value is None else value.decode()
        except UnicodeDecodeError:
            assert text_value is None
            assert reason is not None
        else:
            assert (text_value, reason) == (expected, None)
    encoded = TextFormat().encode(decoded.array)
    assert TextFormat().decode(encoded).array.equals(decoded.array)


def test_text_of_other_columns() -> None:
    assert TextFormat().encode(pa.array([1, None])).to_pylist() == [b"1", None]
    assert TextFormat().encode(pa.table({"a": ["x"]})).to_pylist() == [b"x"]
    assert TextFormat().encode(pa.chunked_array([["x"], [None]])).to_pylist() == [b"x", None]
    with pytest.raises(UnsupportedColumn, match="one column"):
        TextFormat().encode(pa.table({"a": ["x"], "b": ["y"]}))
    with pytest.raises(UnsupportedColumn, match="bytes or text"):
        TextFormat().decode(pa.array([1]))


def test_formats_by_name() -> None:
    assert isinstance(formats.format_named("json", schema=ROW), JsonFormat)
    with pytest.raises(formats.FormatError, match="confluent-avro"):
        formats.format_named("jason")


@pytest.mark.parametrize("module", [text, json_text, arrow_ipc])
def test_the_examples_in_the_documentation_run(module: Any) -> None:
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0
