"""Reads the declarations of a message class into what the compiler works from.

Annotations are strings until a class is compiled; here they are resolved, once per class.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from ottla.protocol.message import EMPTY, Field, Part

# Wire type -> struct code of the types that have one size.
FIXED: Final = {
    "Bool": "?",
    "Int8": "b",
    "Int16": "h",
    "UInt16": "H",
    "Int32": "i",
    "UInt32": "I",
    "Int64": "q",
    "Float64": "d",
    "Uuid": "16s",
}
SIZES: Final = {"?": 1, "b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "d": 8, "16s": 16}
_VARIABLE: Final = {"String": "string", "Bytes": "bytes", "Records": "records"}


class Kind:
    """A resolved wire type.

    name is one of fixed, string, bytes, records, part, array; an array's element is none of
    records and array.
    """

    __slots__ = ("code", "element", "name", "part")

    def __init__(
        self,
        name: str,
        code: str = "",
        part: type[Part] | None = None,
        element: Kind | None = None,
    ) -> None:
        self.name = name
        self.code = code  # of fixed kinds
        self.part = part  # of parts, and of no other kind
        self.element = element  # of arrays, and of no other kind


class Slot:
    """One field of a class, resolved."""

    __slots__ = ("field", "kind", "label", "name", "nullable")

    def __init__(self, label: str, name: str, kind: Kind, nullable: bool, declared: Field) -> None:
        self.label = label  # "FetchTopic.partitions", for error texts
        self.name = name
        self.kind = kind
        self.nullable = nullable  # somewhere; `null_allowed` knows about the version
        self.field = declared

    def present(self, version: int) -> bool:
        """Whether the version carries the field, tagged or not."""
        return self.field.since <= version <= self.field.until

    def tagged(self, version: int) -> bool:
        """Whether the version carries the field in the tagged section."""
        return (
            self.field.tag is not None
            and self.present(version)
            and version >= self.field.tagged_since
        )

    def null_allowed(self, version: int) -> bool:
        """Whether the field may be null on the wire in this version."""
        declared = self.field
        return self.nullable and declared.nullable_since <= version <= declared.nullable_until


_resolved: dict[type[Part], list[Slot]] = {}


def slots_of(part: type[Part]) -> list[Slot]:
    """The fields of a class in wire order."""
    slots = _resolved.get(part)
    if slots is None:
        slots = _resolved[part] = [_slot(part, name) for name in part.declared]
    return slots


def _slot(part: type[Part], name: str) -> Slot:
    annotation = part.__annotations__[name]
    declared: Any = part.declared[name]
    if not isinstance(declared, Field):
        declared = Field(declared)
    kind_text, _, null = annotation.partition(" | ")
    return Slot(f"{part.__name__}.{name}", name, _kind(part, kind_text), null == "None", declared)


def _kind(part: type[Part], text: str) -> Kind:
    if text.startswith("list["):
        return Kind("array", element=_kind(part, text[5:-1]))
    code = FIXED.get(text)
    if code is not None:
        return Kind("fixed", code)
    variable = _VARIABLE.get(text)
    if variable is not None:
        return Kind(variable)
    return Kind("part", part=getattr(sys.modules[part.__module__], text))


def smallest_size(kind: Kind, version: int, flexible: bool) -> int:
    """The fewest bytes that one non-null value can take: what bounds a count before allocation."""
    if kind.name == "fixed":
        return SIZES[kind.code]
    if kind.name == "string":
        return 1 if flexible else 2
    if kind.part is None:
        return 1 if flexible else 4
    total = 1 if flexible else 0
    for slot in slots_of(kind.part):
        if slot.present(version) and not slot.tagged(version):
            if slot.kind.name == "part" and slot.null_allowed(version):
                total += 1
            else:
                total += smallest_size(slot.kind, version, flexible)
    return max(total, 1)


def default_source(slot: Slot, part_name: str) -> str:
    """Source text of an expression that makes the field's default."""
    default = slot.field.default
    if default is EMPTY:
        return "[]" if slot.kind.name == "array" else f"{part_name}()"
    return repr(default)
