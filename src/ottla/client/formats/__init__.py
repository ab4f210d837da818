"""Formats of values: bytes to typed Arrow columns and back.

    JsonFormat(schema).decode(batch["value"]).array

`format_named` makes one from its name, for `format="json"` and the command line. Packages that a format
stands on are imported when it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from ottla.client.formats.errors import (
    FormatError,
    MissingPackage,
    RegistryError,
    SchemaMismatch,
    UnsupportedColumn,
)

if TYPE_CHECKING:
    from ottla.client.formats.arrow_ipc import ArrowFormat, exploded
    from ottla.client.formats.avro.format import AvroFormat
    from ottla.client.formats.base import Decoded, Format
    from ottla.client.formats.confluent import ConfluentAvroFormat, ConfluentJsonFormat
    from ottla.client.formats.json.text import JsonFormat
    from ottla.client.formats.protobuf import ConfluentProtobufFormat, ProtobufFormat
    from ottla.client.formats.registry import Reference, RegisteredSchema, SchemaRegistry
    from ottla.client.formats.text import TextFormat

_HOMES: Final = {
    "ArrowFormat": "arrow_ipc",
    "AvroFormat": "avro.format",
    "ConfluentAvroFormat": "confluent",
    "ConfluentJsonFormat": "confluent",
    "ConfluentProtobufFormat": "protobuf",
    "Decoded": "base",
    "Format": "base",
    "JsonFormat": "json.text",
    "ProtobufFormat": "protobuf",
    "Reference": "registry",
    "RegisteredSchema": "registry",
    "SchemaRegistry": "registry",
    "TextFormat": "text",
    "exploded": "arrow_ipc",
}

_NAMES: Final = {
    "text": "TextFormat",
    "json": "JsonFormat",
    "avro": "AvroFormat",
    "protobuf": "ProtobufFormat",
    "arrow": "ArrowFormat",
    "confluent-avro": "ConfluentAvroFormat",
    "confluent-json": "ConfluentJsonFormat",
    "confluent-protobuf": "ConfluentProtobufFormat",
}

__all__ = [
    "ArrowFormat",
    "AvroFormat",
    "ConfluentAvroFormat",
    "ConfluentJsonFormat",
    "ConfluentProtobufFormat",
    "Decoded",
    "Format",
    "FormatError",
    "JsonFormat",
    "MissingPackage",
    "ProtobufFormat",
    "Reference",
    "RegisteredSchema",
    "RegistryError",
    "SchemaMismatch",
    "SchemaRegistry",
    "TextFormat",
    "UnsupportedColumn",
    "exploded",
    "format_named",
]


def format_named(name: str, **options: Any) -> Format:
    """The format with this name: text, json, avro, protobuf, arrow, confluent-avro …"""
    if name not in _NAMES:
        raise FormatError(f"no format is called {name!r}: there are {', '.join(sorted(_NAMES))}")
    made: Format = __getattr__(_NAMES[name])(**options)
    return made


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
