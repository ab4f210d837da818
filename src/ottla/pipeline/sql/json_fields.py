"""The columns of JSON values, found in a sample of them.

The types are those of ottla.client.formats.json.types as Spark has them. A field that is only ever null,
or an object that never has a field, is a string: Spark then gives the JSON text of what stands there. So
are decimals inside of arrays and objects: Spark would round a number that is none, without a word. (Of
columns, that is looked after: see tables.)
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
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from ottla.client.formats.json.types import (
    DECIMAL_DIGITS,
    NOTHING,
    TEXT,
    ArrayKind,
    Kind,
    fields_of,
)

_SIMPLE: Final[Mapping[str, DataType]] = {
    "boolean": BooleanType(),
    "bigint": LongType(),
    "decimal": StringType(),
    "double": DoubleType(),
    TEXT: StringType(),
    NOTHING: StringType(),
}


@dataclass(frozen=True)
class JsonFields:
    """What values have in common; `struct` has no fields where none of them is a JSON object."""

    struct: StructType
    refused: int  # values that are no JSON objects


def json_fields(values: Iterable[bytes]) -> JsonFields:
    """The fields of those of the values that are JSON objects."""
    objects: list[dict[str, Any]] = []
    refused = 0
    for value in values:
        try:
            document = json.loads(value)
        except (ValueError, RecursionError):
            refused += 1
            continue
        if isinstance(document, dict):
            objects.append(document)
        else:
            refused += 1
    return JsonFields(_columns(fields_of(objects)), refused)


def _spark_type(kind: Kind) -> DataType:
    if isinstance(kind, str):
        return _SIMPLE[kind]
    if isinstance(kind, ArrayKind):
        return ArrayType(_spark_type(kind.items))
    return _struct(kind) if kind else StringType()


def _columns(fields: Mapping[str, Kind]) -> StructType:
    whole = DecimalType(DECIMAL_DIGITS, 0)
    return StructType(
        [
            StructField(name, whole if kind == "decimal" else _spark_type(kind))
            for name, kind in fields.items()
        ]
    )


def _struct(fields: Mapping[str, Kind]) -> StructType:
    return StructType([StructField(name, _spark_type(kind)) for name, kind in fields.items()])
