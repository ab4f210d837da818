"""The fields of JSON values, found in a sample of them.

A field has the type that all its values in the sample have: boolean, bigint, double, string, array or
struct. Whole numbers and others together are double, numbers beyond 64 bits are double. Values
of different kinds are string, and so is a field that is only ever null: Spark then gives the JSON text
of whatever stands there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

_LARGEST: Final = 2**63
_NOTHING: Final = "nothing"
_SIMPLE: Final[Mapping[str, DataType]] = {
    "boolean": BooleanType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "string": StringType(),
    _NOTHING: StringType(),
}


@dataclass(frozen=True)
class _Array:
    items: _Kind


# A simple type by its name, an array, or an object by its fields.
_Kind = str | _Array | dict[str, Any]


def json_fields(values: Iterable[bytes]) -> StructType | None:
    """The fields of these values; None if one of them is not a JSON object, or none has fields."""
    seen: _Kind = {}
    for value in values:
        try:
            document = json.loads(value)
        except (ValueError, RecursionError):
            return None
        if not isinstance(document, dict):
            return None
        seen = _together(seen, _kind(document))
    return _struct(seen) if isinstance(seen, dict) and seen else None


def _kind(value: Any) -> _Kind:
    match value:
        case None:
            return _NOTHING
        case bool():
            return "boolean"
        case int():
            return "bigint" if -_LARGEST <= value < _LARGEST else "double"
        case float():
            return "double"
        case str():
            return "string"
        case list():
            items: _Kind = _NOTHING
            for item in value:
                items = _together(items, _kind(item))
            return _Array(items)
        case _:
            return {name: _kind(field) for name, field in value.items()}


def _together(one: _Kind, other: _Kind) -> _Kind:
    if one == other or other == _NOTHING:
        return one
    if one == _NOTHING:
        return other
    if isinstance(one, dict) and isinstance(other, dict):
        return {
            **one,
            **{name: _together(one.get(name, _NOTHING), kind) for name, kind in other.items()},
        }
    if isinstance(one, _Array) and isinstance(other, _Array):
        return _Array(_together(one.items, other.items))
    numbers = ("bigint", "double")
    return "double" if one in numbers and other in numbers else "string"


def _spark_type(kind: _Kind) -> DataType:
    if isinstance(kind, str):
        return _SIMPLE[kind]
    if isinstance(kind, _Array):
        return ArrayType(_spark_type(kind.items))
    # An object that never has a field is shown as its text.
    return _struct(kind) if kind else StringType()


def _struct(fields: Mapping[str, _Kind]) -> StructType:
    return StructType([StructField(name, _spark_type(kind)) for name, kind in fields.items()])
