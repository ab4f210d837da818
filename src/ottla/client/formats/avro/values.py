"""fastavro's Python values and Arrow's: maps and unions look different on the two sides.

| Avro                       | fastavro               | Arrow (as Python values)              |
|----------------------------|------------------------|---------------------------------------|
| map                        | dict                   | list of pairs                         |
| record, enum, fixed in a union | (name, value)      | the value                             |
| union of several types     | the value              | dict of `member0` … with one of them set |

A converter is made once per schema; where a schema needs none, values pass untouched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.client.formats.avro.schema import Schema

Converter = Callable[[Any], Any]

_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (float, int),
    "double": (float, int),
    "bytes": (bytes,),
    "string": (str,),
    "array": (list,),
    "map": (dict,),
}
_NAMED = ("record", "enum", "fixed")


def to_arrow(schema: Schema) -> Converter:
    """From what fastavro reads to what Arrow builds columns of."""
    return _Conversions(reading=True).of(schema) or _same


def from_arrow(schema: Schema) -> Converter:
    """From Arrow's Python values to what fastavro writes."""
    return _Conversions(reading=False).of(schema) or _same


def _same(value: Any) -> Any:
    return value


class _Conversions:
    """Converters of a physical schema (see avro_schema); None stands for "nothing to do"."""

    def __init__(self, *, reading: bool) -> None:
        self._reading = reading
        self._named: dict[str, Converter | None] = {}
        self._kinds: dict[str, str] = {}

    def of(self, schema: Schema) -> Converter | None:
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            return self._named.get(schema)
        match schema["type"]:
            case "record":
                converter = self._record(schema)
            case "array":
                return self._array(self.of(schema["items"]))
            case "map":
                return self._map(self.of(schema["values"]))
            case _:
                converter = None
        if "name" in schema:
            self._named[schema["name"]] = converter
            self._kinds[schema["name"]] = schema["type"]
        return converter

    def _record(self, schema: Schema) -> Converter | None:
        found = [(field["name"], self.of(field["type"])) for field in schema["fields"]]
        changed = [(name, converter) for name, converter in found if converter is not None]
        if not changed:
            return None

        def convert(row: dict[str, Any]) -> dict[str, Any]:
            for name, converter in changed:
                row[name] = converter(row[name])
            return row

        return convert

    def _array(self, item: Converter | None) -> Converter | None:
        if item is None:
            return None
        return lambda items: [item(each) for each in items]

    def _map(self, value: Converter | None) -> Converter:
        each = value or _same
        if self._reading:
            return lambda pairs: [(key, each(item)) for key, item in pairs.items()]
        return lambda pairs: {key: each(item) for key, item in pairs}

    def _union(self, branches: list[Schema]) -> Converter | None:
        others = [branch for branch in branches if branch != "null"]
        converters = [self.of(branch) or _same for branch in others]
        if len(others) == 1:
            return self._optional(others[0], converters[0])
        if not others:
            return None
        kinds = [self._kind(branch) for branch in others]
        if self._reading:
            return _member_of(kinds, converters)
        return _value_of(kinds, converters)

    def _optional(self, branch: Schema, converter: Converter) -> Converter | None:
        kind, _ = self._kind(branch)
        if self._reading and kind in _NAMED:

            def unwrap(value: Any) -> Any:
                if value is None:
                    return None
                return converter(value[1] if isinstance(value, tuple) else value)

            return unwrap
        if converter is _same:
            return None
        return lambda value: None if value is None else converter(value)

    def _kind(self, branch: Schema) -> tuple[str, str]:
        """A branch's kind, and its name if it has one."""
        if isinstance(branch, str):
            return (self._kinds[branch], branch) if branch in self._kinds else (branch, "")
        if branch.get("logicalType") == "decimal":
            return "decimal", branch.get("name", "")
        return branch["type"], branch.get("name", "")


def _member_of(kinds: list[tuple[str, str]], converters: list[Converter]) -> Converter:
    """Which branch a value that fastavro read came from, as a struct with one member set."""

    def convert(value: Any) -> Any:
        if value is None:
            return None
        name, value = value if isinstance(value, tuple) else ("", value)
        for at, (kind, own_name) in enumerate(kinds):
            if (own_name == name) if name else _is_of(value, kind):
                return {f"member{at}": converters[at](value)}
        raise ValueError(f"no branch of the union holds a value of {type(value).__name__}")

    return convert


def _is_of(value: Any, kind: str) -> bool:
    if kind == "decimal":
        return type(value).__name__ == "Decimal"
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _PYTHON_TYPES.get(kind, ()))


def _value_of(kinds: list[tuple[str, str]], converters: list[Converter]) -> Converter:
    def convert(members: Any) -> Any:
        if members is None:
            return None
        for at, (kind, name) in enumerate(kinds):
            value = members[f"member{at}"]
            if value is not None:
                converted = converters[at](value)
                # A branch without a name is told by its type's.
                return (name or _branch_name(kind), converted)
        return None

    return convert


def _branch_name(kind: str) -> str:
    return "bytes" if kind == "decimal" else kind
