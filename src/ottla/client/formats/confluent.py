"""Values framed with the id of a schema in a registry: Avro, Protobuf and JSON Schema.

Reading: the values of a column may have been written with several schemas. Each is decoded with its own
and the pieces are put together in one column of the reader's schema. That is `reader_schema` if it is
given; otherwise the newest schema met so far (ids grow), so a column's type may change once, when a
new schema arrives: give a schema where it must not.

A schema id that the registry does not know rejects the values that carry it; a registry that does not
answer is an exception, since it would otherwise reject good values.

Writing: the schema is registered under `subject` (by convention the topic's name with -value or -key)
unless `register=False`, when it must be there already.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.client.formats.avro.format import AvroDecoder, AvroEncoder, SchemaText
from ottla.client.formats.avro.schema import Schema, avro_schema, load_schema
from ottla.client.formats.base import (
    Decoded,
    Format,
    binary_column,
    reasons_column,
    struct_column,
)
from ottla.client.formats.errors import RegistryError, SchemaMismatch
from ottla.client.formats.framing import split_by_schema, with_header, without_header
from ottla.client.formats.json.text import JsonFormat
from ottla.client.formats.registry import RegisteredSchema, SchemaRegistry

_NOT_FOUND = 404


class FramedFormat(Format):
    """What the framed formats share: the registry, and putting pieces of a column together."""

    kind: str

    def __init__(
        self, registry: SchemaRegistry | str, *, subject: str | None = None, register: bool = True
    ) -> None:
        self.registry = SchemaRegistry(registry) if isinstance(registry, str) else registry
        self.subject = subject
        self._register = register

    def _schema_id(self, text: str) -> int:
        if self.subject is None:
            raise SchemaMismatch(
                "to encode with a schema id, name the subject: subject='orders-value'"
            )
        find = self.registry.register if self._register else self.registry.lookup
        return find(self.subject, text, kind=self.kind)

    def _schema_of(self, schema_id: int) -> RegisteredSchema | str:
        """The schema, or why the values that carry the id are rejected."""
        try:
            found = self.registry.schema(schema_id)
        except RegistryError as error:
            if error.status == _NOT_FOUND:
                return f"the registry knows no schema {schema_id}"
            raise
        if found.kind != self.kind:
            return f"schema {schema_id} is {found.kind}, not {self.kind}"
        return found


def assemble(
    length: int, pieces: Sequence[tuple[np.ndarray[Any, Any], Decoded]], reasons: dict[int, str]
) -> Decoded:
    """One column of pieces that were decoded apart, each with the positions of its rows."""
    pieces = [piece for piece in pieces if len(piece[0])]
    if len(pieces) == 1 and len(pieces[0][0]) == length:
        return pieces[0][1]
    reasons_found = reasons_column(reasons, length)
    if not pieces:
        return Decoded(pa.nulls(length), reasons_found)
    # Row i of the column is row at[i] of all pieces one after the other.
    at = np.full(length, -1, np.int64)
    done = 0
    for positions, _ in pieces:
        at[positions] = np.arange(done, done + len(positions))
        done += len(positions)
    rows = pa.array(at, mask=at < 0)
    array = pa.concat_arrays([decoded.array for _, decoded in pieces]).take(rows)
    rejected = pa.concat_arrays([decoded.rejected for _, decoded in pieces]).take(rows)
    return Decoded(array, pc.coalesce(rejected, reasons_found))


class ConfluentAvroFormat(FramedFormat):
    """Avro after a schema id.

    `schema` is what values are written with; without it a schema is made from the column's type.
    """

    name = "confluent-avro"
    kind = "AVRO"

    def __init__(
        self,
        registry: SchemaRegistry | str,
        *,
        schema: SchemaText | None = None,
        reader_schema: SchemaText | None = None,
        subject: str | None = None,
        register: bool = True,
    ) -> None:
        super().__init__(registry, subject=subject, register=register)
        self.schema = None if schema is None else load_schema(schema)
        self._reader_schema = None if reader_schema is None else load_schema(reader_schema)
        self._newest = 0
        self._decoders: dict[tuple[int, int], AvroDecoder] = {}

    def decode(self, values: pa.Array | pa.ChunkedArray) -> Decoded:
        array = binary_column(values)
        framed = split_by_schema(array)
        reasons = dict(framed.reasons)
        known: dict[int, np.ndarray[Any, Any]] = {}
        for schema_id, positions in framed.positions.items():
            found = self._schema_of(schema_id)
            if isinstance(found, str):
                reasons |= dict.fromkeys(map(int, positions), found)
            else:
                known[schema_id] = positions
        self._newest = max([self._newest, *known])
        pieces = []
        for schema_id, positions in known.items():
            data = without_header(array.take(pa.array(positions)))
            pieces.append((positions, self._decoder(schema_id).decode(data)))
        return assemble(len(array), pieces, reasons)

    def _decoder(self, schema_id: int) -> AvroDecoder:
        key = (schema_id, self._newest)
        if key not in self._decoders:
            self._decoders[key] = AvroDecoder(
                self._parsed(schema_id),
                self._reader_schema
                if self._reader_schema is not None
                else self._parsed(self._newest),
            )
        return self._decoders[key]

    def _parsed(self, schema_id: int) -> Schema:
        return self._with_references(self.registry.schema(schema_id))

    def _with_references(self, registered: RegisteredSchema) -> Schema:
        """The schema with the types that it imports written out where they are first used."""
        imported: dict[str, Schema] = {}
        for each in registered.references:
            imported[each.name] = self._with_references(
                self.registry.version(each.subject, each.version)
            )
        return _inlined(load_schema(registered.text), imported, "")

    def encode(self, column: pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table) -> pa.Array:
        array = struct_column(column)
        schema = self.schema if self.schema is not None else avro_schema(array.type)
        encoded = AvroEncoder(schema).encode(array)
        return with_header(self._schema_id(json.dumps(schema)), encoded)


def _inlined(schema: Schema, imported: dict[str, Schema], namespace: str) -> Schema:
    if isinstance(schema, str):
        for name in (schema, f"{namespace}.{schema}"):
            if name in imported:
                return imported.pop(name)
        return schema
    if isinstance(schema, list):
        return [_inlined(branch, imported, namespace) for branch in schema]
    inside = schema.get("namespace", namespace)
    inlined = dict(schema)
    for key in ("type", "items", "values"):
        if key in inlined:
            inlined[key] = _inlined(inlined[key], imported, inside)
    if "fields" in inlined:
        inlined["fields"] = [
            {**field, "type": _inlined(field["type"], imported, inside)}
            for field in inlined["fields"]
        ]
    return inlined


class ConfluentJsonFormat(FramedFormat):
    """JSON after the id of a JSON Schema.

    The JSON Schema is not applied to the values: columns are by the Arrow `schema`, or inferred.
    """

    name = "confluent-json"
    kind = "JSON"

    def __init__(
        self,
        registry: SchemaRegistry | str,
        *,
        schema: pa.Schema | None = None,
        json_schema: str | None = None,
        subject: str | None = None,
        register: bool = True,
    ) -> None:
        super().__init__(registry, subject=subject, register=register)
        self._json = JsonFormat(schema)
        self._json_schema = json_schema

    def decode(self, values: pa.Array | pa.ChunkedArray) -> Decoded:
        array = binary_column(values)
        framed = split_by_schema(array)
        if not framed.positions:
            return assemble(len(array), [], framed.reasons)
        positions = np.sort(np.concatenate(list(framed.positions.values())))
        decoded = self._json.decode(without_header(array.take(pa.array(positions))))
        return assemble(len(array), [(positions, decoded)], framed.reasons)

    def encode(self, column: pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table) -> pa.Array:
        if self._json_schema is None:
            raise SchemaMismatch("to encode with a schema id, give the JSON schema: json_schema=…")
        return with_header(self._schema_id(self._json_schema), self._json.encode(column))
