"""JSON values one by one: which are JSON objects at all, and which fit a schema.

Only batches that the fast path refuses come here. Python's parser decides what is JSON; a look at each
parsed object then finds most of those that do not fit, so that the search by halving is left with few.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from ottla.client.formats.json.types import arrow_schema, fields_of, in_kind

# Arrow's reader recurses over nested types when it infers them, and a value of a million brackets
# overflows the stack. No type that is inferred is deeper than this.
MAX_DEPTH = 100

Misfit = Callable[[Any], str | None]


class CheckedRows:
    """Values with those that are not one JSON object set aside.

    `lines` has one entry per value, on one line; null where the value is null or in `reasons`.
    """

    def __init__(self, values: pa.Array) -> None:
        self.reasons: dict[int, str] = {}
        self._objects: list[dict[str, Any] | None] = []
        lines: list[bytes | None] = []
        for position, value in enumerate(values.to_pylist()):
            parsed, line = None, None
            if value is not None:
                try:
                    parsed = _parsed(value)
                    # Valid JSON has line breaks only between tokens, where a blank means the same.
                    line = value.replace(b"\n", b" ").replace(b"\r", b" ")
                except RecursionError:
                    self.reasons[position] = _TOO_DEEP
                except ValueError as error:
                    self.reasons[position] = str(error)
            self._objects.append(parsed)
            lines.append(line)
        self.lines = pa.array(lines, pa.binary())

    def reject_misfits(self, schema: pa.Schema) -> None:
        """Reject the rows that plainly do not fit; the reader has the last word on the others."""
        find = _misfit_finder(pa.struct(list(schema)), "")
        for position, parsed in enumerate(self._objects):
            if parsed is not None:
                misfit = find(parsed)
                if misfit is not None:
                    self.reasons[position] = misfit

    def infer(self) -> pa.Schema:
        """The schema that all rows fit; lines that say something else than text where text is to be
        are written anew, with its JSON text."""
        fields = fields_of(each for each in self._objects if each is not None)
        lines = self.lines.to_pylist()
        for position, parsed in enumerate(self._objects):
            if parsed is not None:
                fitting = in_kind(parsed, fields)
                if fitting is not parsed:
                    self._objects[position] = fitting
                    lines[position] = json.dumps(fitting).encode()
        self.lines = pa.array(lines, pa.binary())
        return arrow_schema(fields)


_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
_KINDS = {
    list: "an array",
    dict: "an object",
    str: "a string",
    type(None): "null",
    bool: "a boolean",
}


def _parsed(value: bytes) -> dict[str, Any]:
    if not value.strip():
        raise ValueError("the value is empty")
    text = value.decode()
    parsed = json.loads(text)
    if not isinstance(parsed, dict):
        raise ValueError(f"not a JSON object but {_kind_of(parsed)}")
    if text.count("{") + text.count("[") > MAX_DEPTH and _depth(parsed) > MAX_DEPTH:
        raise ValueError(_TOO_DEEP)
    return parsed


def _kind_of(parsed: Any) -> str:
    return _KINDS.get(type(parsed), "a number")


def _depth(parsed: Any) -> int:
    depth, level = 0, [parsed]
    while level:
        depth += 1
        below: list[Any] = []
        for item in level:
            below += item.values() if isinstance(item, dict) else item
        level = [item for item in below if isinstance(item, dict | list)]
    return depth


def _misfit_finder(kind: pa.DataType, path: str) -> Misfit:
    """A function that says why a value cannot be of this type, or None if it may."""
    if pa.types.is_struct(kind):
        return _object_misfit(kind, path)
    if pa.types.is_list(kind):
        return _array_misfit(kind, path)
    for matches, accepted, wanted in _SCALARS:
        if matches(kind):
            return _scalar_misfit(accepted, wanted, path)
    return _no_misfit


def _object_misfit(kind: pa.DataType, path: str) -> Misfit:
    fields = [(field.name, _misfit_finder(field.type, f"{path}/{field.name}")) for field in kind]

    def misfit(parsed: Any) -> str | None:
        if not isinstance(parsed, dict):
            return _wanted("an object", parsed, path)
        for name, find in fields:
            item = parsed.get(name)
            found = None if item is None else find(item)
            if found is not None:
                return found
        return None

    return misfit


def _array_misfit(kind: pa.DataType, path: str) -> Misfit:
    find = _misfit_finder(kind.value_type, path)

    def misfit(parsed: Any) -> str | None:
        if not isinstance(parsed, list):
            return _wanted("an array", parsed, path)
        for item in parsed:
            found = None if item is None else find(item)
            if found is not None:
                return found
        return None

    return misfit


def _scalar_misfit(accepted: tuple[type, ...], wanted: str, path: str) -> Misfit:
    def misfit(parsed: Any) -> str | None:
        return None if type(parsed) in accepted else _wanted(wanted, parsed, path)

    return misfit


def _no_misfit(parsed: Any) -> str | None:
    del parsed
    return None


_SCALARS: list[tuple[Callable[[pa.DataType], bool], tuple[type, ...], str]] = [
    (pa.types.is_boolean, (bool,), "a boolean"),
    (pa.types.is_integer, (int,), "a whole number"),
    (pa.types.is_floating, (int, float), "a number"),
    (pa.types.is_string, (str,), "a string"),
    (pa.types.is_binary, (str,), "a string"),
]


def _wanted(kind: str, parsed: Any, path: str) -> str:
    return f"{path or '/'} is {_kind_of(parsed)}, not {kind}"
