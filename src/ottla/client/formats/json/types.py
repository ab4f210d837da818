"""The types of JSON values: what each value says, widened to what holds all of them.

    null           any type; string, if nothing else ever comes
    boolean        boolean
    bigint         whole numbers of 64 bits
    decimal        whole numbers of up to 38 digits, where some are beyond 64 bits
    double         other numbers, and whole numbers beside them
    string         text; whole numbers beyond 38 digits; and whatever else stands beside another kind,
                   as its JSON text
    array, object  of what their items and fields are, each widened in the same way

So no value contradicts another, and every field that occurs is a field of the result. The client's JSON
format and `ottla sql` both infer their columns with this.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

NOTHING: Final = "nothing"
TEXT: Final = "string"
_LARGEST: Final = 2**63
DECIMAL_DIGITS: Final = 38
_LARGEST_DECIMAL: Final = 10**DECIMAL_DIGITS
# The later ones hold what the earlier ones do; double, of whole numbers beyond 53 bits, not every digit.
_NUMBERS: Final = ("bigint", "decimal", "double")
_SIMPLE: Final[Mapping[str, pa.DataType]] = {
    NOTHING: pa.string(),
    "boolean": pa.bool_(),
    "bigint": pa.int64(),
    "decimal": pa.decimal128(DECIMAL_DIGITS, 0),
    "double": pa.float64(),
    TEXT: pa.string(),
}


@dataclass(frozen=True)
class ArrayKind:
    items: Kind


# A simple type by its name, an array, or an object by its fields.
Kind = str | ArrayKind | dict[str, Any]


def kind_of(value: Any) -> Kind:
    """What a parsed value says of its type."""
    match value:
        case None:
            return NOTHING
        case bool():
            return "boolean"
        case int():
            if -_LARGEST <= value < _LARGEST:
                return "bigint"
            return "decimal" if -_LARGEST_DECIMAL < value < _LARGEST_DECIMAL else TEXT
        case float():
            return "double"
        case str():
            return TEXT
        case list():
            items: Kind = NOTHING
            for item in value:
                items = widened(items, kind_of(item))
            return ArrayKind(items)
        case _:
            return {name: kind_of(field) for name, field in value.items()}


def widened(one: Kind, other: Kind) -> Kind:
    """The narrowest type that holds the values of both."""
    if one == other or other == NOTHING:
        return one
    if one == NOTHING:
        return other
    if isinstance(one, dict) and isinstance(other, dict):
        return {
            **one,
            **{name: widened(one.get(name, NOTHING), kind) for name, kind in other.items()},
        }
    if isinstance(one, ArrayKind) and isinstance(other, ArrayKind):
        return ArrayKind(widened(one.items, other.items))
    if one in _NUMBERS and other in _NUMBERS:
        return max(str(one), str(other), key=_NUMBERS.index)
    return TEXT


def fields_of(documents: Iterable[dict[str, Any]]) -> dict[str, Kind]:
    """The fields of parsed objects, in the order in which they first occur."""
    fields: dict[str, Kind] = {}
    for document in documents:
        for name, value in document.items():
            known = fields.get(name, NOTHING)
            if value is not None or name not in fields:
                fields[name] = widened(known, kind_of(value))
    return fields


def arrow_schema(fields: Mapping[str, Kind]) -> pa.Schema:
    return pa.schema([(name, _arrow_type(kind)) for name, kind in fields.items()])


def _arrow_type(kind: Kind) -> pa.DataType:
    if isinstance(kind, str):
        return _SIMPLE[kind]
    if isinstance(kind, ArrayKind):
        return pa.list_(_arrow_type(kind.items))
    return pa.struct([(name, _arrow_type(field)) for name, field in kind.items()])


def in_kind(value: Any, kind: Kind) -> Any:
    """The value with the JSON text of whatever stands where text is to be; itself if nothing does."""
    if value is None or isinstance(kind, str):
        if kind != TEXT or value is None or isinstance(value, str):
            return value
        return json.dumps(value, ensure_ascii=False)
    if isinstance(kind, ArrayKind):
        items = [in_kind(item, kind.items) for item in value]
        return value if all(map(_is, items, value)) else items
    changed = {name: in_kind(field, kind[name]) for name, field in value.items()}
    return value if all(map(_is, changed.values(), value.values())) else changed


def _is(one: object, other: object) -> bool:
    return one is other
