"""Avro schemas and Arrow types.

| Avro                                   | Arrow                                            |
|----------------------------------------|--------------------------------------------------|
| null, boolean, int, long               | null, bool, int32, int64                         |
| float, double, bytes, string           | float32, float64, binary, string                 |
| record, array, map, enum, fixed        | struct, list, map<string, …>, string, fixed-size binary |
| union of null and one type             | that type, nullable                              |
| any other union                        | struct of `member0`, `member1` …, one of them set |
| date, time-millis, time-micros         | date32, time32[ms], time64[us]                   |
| timestamp-millis, -micros, -nanos      | timestamp[ms/us/ns, UTC]                         |
| local-timestamp-millis, -micros, -nanos | timestamp[ms/us/ns]                             |
| decimal                                | decimal128, decimal256 above 38 digits           |
| uuid                                   | string                                           |

Parsers are given the *physical* schema, in which dates and times are the numbers they are on the wire,
and Arrow's cast turns whole columns of them into the logical type: faster than a Python object per
value, and exact where Python's datetime is not (nanoseconds, years beyond 9999).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ottla.client.formats.errors import SchemaMismatch

Schema = Any  # what Avro's JSON allows: a name, an object, or a list of branches

_PRIMITIVES: dict[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}

_LOGICAL: dict[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}

# What the compiled decoder handles; a schema with anything else takes fastavro.
_FAST = frozenset({"null", "boolean", "int", "long", "float", "double", "string"})


@dataclass(frozen=True, slots=True)
class AvroType:
    """A schema, resolved: what it is in Arrow, and what its parsers are told and give.

    `logical` is the column that a user sees. `schema` is the physical schema, `physical` the column
    of its values. `fast` says whether the compiled decoder knows all of it.
    """

    schema: Schema
    logical: pa.DataType
    physical: pa.DataType
    nullable: bool
    fast: bool


def load_schema(schema: str | bytes | Mapping[str, Any] | list[Any]) -> Schema:
    """A schema from its JSON text, or as Python objects."""
    if not isinstance(schema, str | bytes):
        return schema
    try:
        return json.loads(schema)
    except ValueError as error:
        if isinstance(schema, str) and schema in _PRIMITIVES:
            return schema
        raise SchemaMismatch(f"the Avro schema is not JSON: {error}") from error


def resolve(schema: Schema) -> AvroType:
    """Work out a schema's types. Recursive schemas have no Arrow type and are refused."""
    return _Resolver().resolve(schema, "")


class _Resolver:
    def __init__(self) -> None:
        self._named: dict[str, AvroType | None] = {}  # None: still being worked out

    def resolve(self, schema: Schema, namespace: str) -> AvroType:
        if isinstance(schema, list):
            return self._union(schema, namespace)
        if isinstance(schema, str):
            return self._name(schema, namespace)
        if not isinstance(schema, Mapping) or "type" not in schema:
            raise SchemaMismatch(f"not an Avro schema: {schema!r}")
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.resolve(kind, namespace)
        match kind:
            case "record" | "error":
                return self._record(schema, namespace)
            case "array":
                item = self.resolve(schema["items"], namespace)
                return AvroType(
                    {"type": "array", "items": item.schema},
                    pa.list_(_field("item", item.logical)),
                    pa.list_(_field("item", item.physical)),
                    nullable=False,
                    fast=item.fast,
                )
            case "map":
                value = self.resolve(schema["values"], namespace)
                return AvroType(
                    {"type": "map", "values": value.schema},
                    pa.map_(pa.string(), _field("value", value.logical)),
                    pa.map_(pa.string(), _field("value", value.physical)),
                    nullable=False,
                    fast=value.fast,
                )
            case "enum":
                plain = {"type": "enum", "name": _full_name(schema, namespace)}
                plain |= {key: schema[key] for key in ("symbols", "default") if key in schema}
                return self._define(plain, AvroType(plain, pa.string(), pa.string(), False, True))
            case "fixed":
                return self._fixed(schema, namespace)
        return self._primitive(kind, schema, namespace)

    def _primitive(self, kind: str, schema: Mapping[str, Any], namespace: str) -> AvroType:
        plain = self._name(kind, namespace)
        logical = schema.get("logicalType")
        if kind == "bytes" and logical == "decimal":
            decimal = _decimal(schema)
            kept = {
                key: schema[key]
                for key in ("type", "logicalType", "precision", "scale")
                if key in schema
            }
            return AvroType(kept, decimal, decimal, nullable=False, fast=False)
        if isinstance(logical, str) and (kind, logical) in _LOGICAL:
            return AvroType(plain.schema, _LOGICAL[kind, logical], plain.physical, False, True)
        return plain

    def _name(self, name: str, namespace: str) -> AvroType:
        if name in _PRIMITIVES:
            kind = _PRIMITIVES[name]
            return AvroType(name, kind, kind, name == "null", name in _FAST)
        for full in (f"{namespace}.{name}", name) if "." not in name and namespace else (name,):
            if full in self._named:
                known = self._named[full]
                if known is None:
                    raise SchemaMismatch(f"the Avro type {full!r} contains itself; a column cannot")
                # A repeated name: the parsers get a reference, the compiled one knows none.
                return AvroType(full, known.logical, known.physical, known.nullable, False)
        raise SchemaMismatch(f"the Avro schema names a type that it does not define: {name!r}")

    def _define(self, schema: Mapping[str, Any], resolved: AvroType) -> AvroType:
        self._named[schema["name"]] = resolved
        return resolved

    def _fixed(self, schema: Mapping[str, Any], namespace: str) -> AvroType:
        plain: dict[str, Any] = {
            "type": "fixed",
            "name": _full_name(schema, namespace),
            "size": schema["size"],
        }
        if schema.get("logicalType") == "decimal":
            decimal = _decimal(schema)
            plain |= {"logicalType": "decimal", "precision": schema["precision"]}
            plain["scale"] = schema.get("scale", 0)
            return self._define(plain, AvroType(plain, decimal, decimal, False, False))
        kind = pa.binary(schema["size"])
        return self._define(plain, AvroType(plain, kind, kind, False, False))

    def _record(self, schema: Mapping[str, Any], namespace: str) -> AvroType:
        name = _full_name(schema, namespace)
        self._named[name] = None
        fields, logical, physical, fast = [], [], [], True
        for field in schema["fields"]:
            resolved = self.resolve(field["type"], name.rpartition(".")[0])
            kept = {key: field[key] for key in ("name", "default", "aliases") if key in field}
            fields.append({**kept, "type": resolved.schema})
            logical.append(_field(field["name"], resolved.logical))
            physical.append(_field(field["name"], resolved.physical))
            fast = fast and resolved.fast
        plain = {"type": "record", "name": name, "fields": fields}
        if "aliases" in schema:
            plain["aliases"] = schema["aliases"]
        return self._define(
            plain,
            AvroType(plain, pa.struct(logical), pa.struct(physical), False, fast and bool(fields)),
        )

    def _union(self, branches: list[Schema], namespace: str) -> AvroType:
        resolved = [self.resolve(branch, namespace) for branch in branches]
        schema = [branch.schema for branch in resolved]
        others = [branch for branch in resolved if branch.schema != "null"]
        has_null = len(others) < len(resolved)
        if len(others) == 1:
            only = others[0]
            fast = only.fast and len(resolved) == 2
            return AvroType(schema, only.logical, only.physical, has_null, fast)
        if not others:
            return AvroType(schema, pa.null(), pa.null(), True, False)
        return AvroType(
            schema,
            pa.struct([pa.field(f"member{at}", each.logical) for at, each in enumerate(others)]),
            pa.struct([pa.field(f"member{at}", each.physical) for at, each in enumerate(others)]),
            nullable=has_null,
            fast=False,
        )


def _field(name: str, kind: pa.DataType) -> pa.Field:
    # Nullable whatever the schema says: a rejected row is null in every field.
    return pa.field(name, kind)


def _full_name(schema: Mapping[str, Any], namespace: str) -> str:
    name = str(schema["name"])
    space = schema.get("namespace", namespace)
    return name if "." in name or not space else f"{space}.{name}"


def _decimal(schema: Mapping[str, Any]) -> pa.DataType:
    precision, scale = schema["precision"], schema.get("scale", 0)
    if precision > 76:
        raise SchemaMismatch(f"a decimal of {precision} digits has no Arrow type (76 at most)")
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


_LOGICAL_OF_ARROW = {kind: names for names, kind in _LOGICAL.items()}


def avro_schema(kind: pa.DataType, name: str = "Value") -> Schema:
    """The Avro schema for a column; types that Avro lacks take the next wider one it has."""
    return _schema_of(kind, name)


def _schema_of(kind: pa.DataType, name: str) -> Schema:
    types = pa.types
    for avro, arrow in _PRIMITIVES.items():
        if kind.equals(arrow):
            return avro
    if kind in _LOGICAL_OF_ARROW:
        physical, logical = _LOGICAL_OF_ARROW[kind]
        return {"type": physical, "logicalType": logical}
    if types.is_timestamp(kind):
        # Seconds become milliseconds; zones are kept as the instant.
        unit = {"s": "millis", "ms": "millis", "us": "micros", "ns": "nanos"}[kind.unit]
        local = "local-" if kind.tz is None else ""
        return {"type": "long", "logicalType": f"{local}timestamp-{unit}"}
    if types.is_integer(kind):
        return "int" if kind.bit_width < 32 or kind.equals(pa.int32()) else "long"
    if types.is_float16(kind):
        return "float"
    if types.is_large_string(kind) or types.is_string_view(kind):
        return "string"
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return "bytes"
    if types.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if types.is_time(kind):
        exact = "time-millis" if kind.unit in ("s", "ms") else "time-micros"
        return {"type": "int" if exact == "time-millis" else "long", "logicalType": exact}
    if types.is_decimal(kind):
        return {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": kind.precision,
            "scale": kind.scale,
        }
    if types.is_dictionary(kind):
        return _schema_of(kind.value_type, name)
    if types.is_fixed_size_binary(kind):
        return {"type": "fixed", "name": f"{name}_fixed", "size": kind.byte_width}
    if types.is_struct(kind):
        return {
            "type": "record",
            "name": name,
            "fields": [_record_field(field, f"{name}_{field.name}") for field in kind],
        }
    if types.is_map(kind) and types.is_string(kind.key_type):
        return {"type": "map", "values": _nullable_of(kind.item_field, f"{name}_value")}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return {"type": "array", "items": _nullable_of(kind.value_field, f"{name}_item")}
    raise SchemaMismatch(f"{kind} has no Avro type")


def _record_field(field: pa.Field, name: str) -> dict[str, Any]:
    schema = {"name": field.name, "type": _nullable_of(field, name)}
    if field.nullable:
        schema["default"] = None
    return schema


def _nullable_of(field: pa.Field, name: str) -> Schema:
    schema = _schema_of(field.type, name)
    return ["null", schema] if field.nullable and schema != "null" else schema
