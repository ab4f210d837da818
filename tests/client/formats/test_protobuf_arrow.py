"""Protobuf against google's own package, and Arrow streams as values."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory, struct_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client.formats import (
    ArrowFormat,
    MissingPackage,
    ProtobufFormat,
    SchemaMismatch,
    UnsupportedColumn,
    exploded,
)
from ottla.client.formats.base import required

Field = descriptor_pb2.FieldDescriptorProto


def _file() -> descriptor_pb2.FileDescriptorProto:
    """syntax = "proto3": an Order with most kinds of fields."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NEW", number=0)
    kind.value.add(name="PAID", number=1)
    item = file.message_type.add(name="Item")
    item.field.add(name="sku", number=1, type=Field.TYPE_STRING, label=1)
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=Field.TYPE_SINT64, label=1)
    order.field.add(name="note", number=2, type=Field.TYPE_STRING, label=1)
    order.field.add(name="raw", number=3, type=Field.TYPE_BYTES, label=1)
    order.field.add(name="kind", number=4, type=Field.TYPE_ENUM, label=1, type_name=".shop.Kind")
    order.field.add(
        name="first", number=5, type=Field.TYPE_MESSAGE, label=1, type_name=".shop.Item"
    )
    order.field.add(
        name="items", number=6, type=Field.TYPE_MESSAGE, label=3, type_name=".shop.Item"
    )
    order.field.add(name="sizes", number=7, type=Field.TYPE_UINT32, label=3)
    order.field.add(
        name="price", number=8, type=Field.TYPE_DOUBLE, label=1, proto3_optional=True, oneof_index=0
    )
    order.oneof_decl.add(name="_price")
    return file


POOL = descriptor_pool.DescriptorPool()
POOL.Add(_file())
Order: Any = message_factory.GetMessageClass(POOL.FindMessageTypeByName("shop.Order"))

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
orders = st.builds(
    lambda **fields: Order(**{name: value for name, value in fields.items() if value is not None}),
    id=st.integers(-(2**63), 2**63 - 1),
    note=text,
    raw=st.binary(max_size=4),
    kind=st.sampled_from(["NEW", "PAID"]),
    first=st.none() | st.fixed_dictionaries({"sku": text}),
    items=st.lists(st.fixed_dictionaries({"sku": text}), max_size=3),
    sizes=st.lists(st.integers(0, 2**32 - 1), max_size=3),
    price=st.none() | st.floats(allow_nan=False),
)


def _row(order: Any) -> dict[str, Any]:
    return {
        "id": order.id,
        "note": order.note,
        "raw": order.raw,
        "kind": ["NEW", "PAID"][order.kind] if order.kind in (0, 1) else str(order.kind),
        "first": {"sku": order.first.sku} if order.HasField("first") else None,
        "items": [{"sku": item.sku} for item in order.items],
        "sizes": list(order.sizes),
        "price": order.price if order.HasField("price") else None,
    }


@settings(max_examples=2 * settings.default.max_examples, deadline=None)
@given(st.lists(st.none() | orders, max_size=6), st.integers(0, 2))
def test_messages_against_google(given_orders: list[Any], skip: int) -> None:
    data = [None if order is None else order.SerializeToString() for order in given_orders]
    column = pa.array([b"\xff"] * skip + data, pa.binary()).slice(skip)
    protobuf = ProtobufFormat(Order)
    decoded = protobuf.decode(column)
    assert decoded.rejected_count == 0
    assert decoded.array.to_pylist() == [
        None if order is None else _row(order) for order in given_orders
    ]
    encoded = protobuf.encode(decoded.array).to_pylist()
    assert [None if each is None else Order.FromString(each) for each in encoded] == given_orders


@settings(max_examples=2 * settings.default.max_examples, deadline=None)
@given(st.lists(st.binary(max_size=12) | orders.map(lambda o: o.SerializeToString()), max_size=6))
def test_malformed_messages_are_rejected_as_google_does(values: list[bytes]) -> None:
    decoded = ProtobufFormat(Order).decode(pa.array(values, pa.binary()))
    decoded.array.validate(full=True)
    for value, row, reason in zip(
        values, decoded.array.to_pylist(), decoded.rejected.to_pylist(), strict=True
    ):
        try:
            expected = _row(Order.FromString(value))
        except message.DecodeError:
            # ptars is laxer about what it skips: field numbers beyond what Protobuf allows, and
            # groups (wire type 3) that are ended by another field's number.
            lax = re.search(rb"[\x80-\xff]{4}", value) or any(byte & 7 == 3 for byte in value)
            assert lax or (row, reason is not None) == (None, True), value
        else:
            assert reason is None, (value, reason)
            assert repr(row) == repr(expected)


def test_a_descriptor_set_serves_as_well() -> None:
    data = descriptor_pb2.FileDescriptorSet(file=[_file()]).SerializeToString()
    protobuf = ProtobufFormat(descriptor_set=data, message_name="shop.Order")
    assert protobuf.decode(pa.array([Order(id=3).SerializeToString()])).array[0].as_py()["id"] == 3
    with pytest.raises(SchemaMismatch, match="no message"):
        ProtobufFormat(descriptor_set=data, message_name="shop.Nothing")
    with pytest.raises(SchemaMismatch, match="message_name"):
        ProtobufFormat(descriptor_set=data)
    with pytest.raises(SchemaMismatch, match="descriptor set"):
        ProtobufFormat(descriptor_set=b"\xff", message_name="shop.Order")
    with pytest.raises(SchemaMismatch, match="message class"):
        ProtobufFormat()


def test_columns_find_their_fields_by_name() -> None:
    protobuf = ProtobufFormat(Order)
    table = pa.table({"sizes": [[1], None], "id": pa.array([5, None], pa.int32())})
    first, second = (Order.FromString(each) for each in protobuf.encode(table).to_pylist())
    assert (first.id, list(first.sizes)) == (5, [1])
    assert second == Order()
    with pytest.raises(SchemaMismatch, match="no field 'colour'"):
        protobuf.encode(pa.table({"colour": [1]}))
    with pytest.raises(SchemaMismatch, match="'id'"):
        protobuf.encode(pa.table({"id": ["x"]}))
    with pytest.raises(SchemaMismatch, match="struct column"):
        protobuf.encode(pa.array([1]))


def test_a_recursive_message_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="contains itself"):
        ProtobufFormat(struct_pb2.Struct)


def test_a_missing_package_names_the_extra() -> None:
    with pytest.raises(MissingPackage, match=r"pip install 'ottla\[avro\]'"):
        required("no_such_package_at_all", "avro")


tables = st.lists(
    st.none() | st.lists(st.fixed_dictionaries({"a": st.none() | st.integers(-9, 9)}), max_size=4),
    max_size=6,
)


@settings(max_examples=80, deadline=None)
@given(tables, st.sampled_from([None, "lz4", "zstd"]))
def test_streams_round_trip(lists: list[Any], compression: str | None) -> None:
    kind = pa.list_(pa.struct([("a", pa.int64())]))
    column = pa.array([[], *lists], kind).slice(1)
    arrow = ArrowFormat(pa.schema([("a", pa.int64())]), compression=compression)
    decoded = arrow.decode(arrow.encode(column))
    assert decoded.rejected_count == 0
    assert decoded.array.to_pylist() == lists
    flat, parents = exploded(decoded.array)
    assert flat.to_pylist() == [row for rows in lists if rows is not None for row in rows]
    assert parents.to_pylist() == [
        at for at, rows in enumerate(lists) if rows is not None for _ in rows
    ]


@settings(max_examples=2 * settings.default.max_examples, deadline=None)
@given(st.data())
def test_damaged_streams_are_rejected(data: st.DataObject) -> None:
    schema = pa.schema([("s", pa.string()), ("l", pa.list_(pa.int32()))])
    arrow = ArrowFormat(schema)
    table = pa.table({"s": ["one", None, "three"], "l": [[1], None, [2, 3]]}, schema)
    (good,) = arrow.encode(table).to_pylist()
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(bad[: data.draw(st.integers(0, len(bad)))])
    decoded = arrow.decode(pa.array([good, cut, good]))
    decoded.array.validate(full=True)
    assert decoded.array[0].as_py() == decoded.array[2].as_py() == table.to_pylist()


def test_streams_of_another_schema_are_rejected() -> None:
    one = ArrowFormat().encode(pa.table({"a": [1]})).to_pylist()
    other = ArrowFormat().encode(pa.table({"b": [1]})).to_pylist()
    decoded = ArrowFormat().decode(pa.array([b"junk", *one, *other]))
    assert decoded.array.to_pylist() == [None, [{"a": 1}], None]
    assert "another one: b int64" in decoded.rejected[2].as_py()


def test_rows_are_spread_over_values() -> None:
    encoded = ArrowFormat(rows_per_value=2).encode(pa.table({"a": [1, 2, 3]}))
    assert len(encoded) == 2
    with pytest.raises(UnsupportedColumn, match="holds rows"):
        ArrowFormat().encode(pa.array([1]))
    with pytest.raises(SchemaMismatch, match="1 or more"):
        ArrowFormat(rows_per_value=0)
