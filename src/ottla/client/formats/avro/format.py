"""Avro: one datum per value (no container file), to a column of the schema's Arrow type and back.

There are two parsers. fastavro reads and writes every schema and resolves a writer's schema
against a reader's; it makes a Python object per record. pyruhvro, if it is installed, is compiled and
works on whole columns, about forty times faster, but knows fewer types and no schema resolution: it
takes the schemas it knows, when the writer's and the reader's schema are the same. What either refuses
is rejected by row.

Bytes after the end of a datum are ignored, as Avro's own readers do.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ottla.client.formats.avro.schema import AvroType, Schema, avro_schema, load_schema, resolve
from ottla.client.formats.avro.values import from_arrow, to_arrow
from ottla.client.formats.base import (
    Decoded,
    Format,
    available,
    binary_column,
    decode_rows,
    required,
    struct_column,
)
from ottla.client.formats.errors import SchemaMismatch, UnsupportedColumn

compiled: Any = available("pyruhvro")

SchemaText = str | bytes | Mapping[str, Any] | list[Any]


class AvroDecoder:
    """Decodes data of one writer's schema to one reader's."""

    def __init__(self, writer: Schema, reader: Schema | None = None) -> None:
        self.writer = resolve(writer)
        self.result = self.writer if reader is None else resolve(reader)
        same = self.writer.schema == self.result.schema
        self._fast = compiled is not None and same and self.writer.fast and _is_record(self.writer)
        self._text = json.dumps(self.writer.schema) if self._fast else ""

    def decode(self, values: pa.Array, reasons: dict[int, str] | None = None) -> Decoded:
        read = self._read_fast if self._fast else self._reader()
        physical, logical = self.result.physical, self.result.logical
        changed = physical != logical

        def decode_all(data: pa.Array) -> pa.Array:
            column = read(data)
            return column.cast(logical) if changed else column

        return decode_rows(values, decode_all, logical, reasons)

    def _read_fast(self, data: pa.Array) -> pa.Array:
        batch = compiled.deserialize_array(data.to_pylist(), self._text)
        column = batch.to_struct_array()
        # The parser lets text through that is not UTF-8, and lists of it can be cut anywhere.
        column.validate(full=True)
        return column.cast(self.result.physical)

    def _reader(self) -> Callable[[pa.Array], pa.Array]:
        fastavro = required("fastavro", "avro")
        try:
            writer = fastavro.parse_schema(self.writer.schema)
            reader = None
            if self.result is not self.writer:
                reader = fastavro.parse_schema(self.result.schema)
        except (ValueError, fastavro.schema.SchemaParseException) as error:
            raise SchemaMismatch(f"not an Avro schema: {error}") from error
        read = fastavro.schemaless_reader
        unresolvable = fastavro.read.SchemaResolutionError
        convert = to_arrow(self.result.schema)
        physical = self.result.physical

        def decode_all(data: pa.Array) -> pa.Array:
            rows = []
            for value in data.to_pylist():
                try:
                    row = read(io.BytesIO(value), writer, reader, return_named_type=True)
                except (unresolvable, RecursionError, MemoryError, AssertionError) as error:
                    raise ValueError(f"{type(error).__name__}: {error}") from error
                rows.append(convert(row))
            return pa.array(rows, physical)

        return decode_all


class AvroEncoder:
    """Encodes a column by one schema."""

    def __init__(self, schema: Schema) -> None:
        self.type = resolve(schema)
        self._fast = compiled is not None and self.type.fast and _is_record(self.type)
        self._text = json.dumps(self.type.schema) if self._fast else ""

    def encode(self, column: pa.Array) -> pa.Array:
        """Data without framing; null rows stay null."""
        present = column.drop_null() if column.null_count else column
        physical = self._physical(present)
        encoded = self._write_fast(physical) if self._fast else self._write(physical)
        if not column.null_count:
            return encoded
        at = pc.subtract(pc.cumulative_sum(pc.is_valid(column).cast(pa.int64())), 1)
        return encoded.take(pc.if_else(pc.is_valid(column), at, pa.scalar(None, pa.int64())))

    def _physical(self, column: pa.Array) -> pa.Array:
        try:
            logical = _arranged(column, self.type.logical)
            physical = logical.cast(self.type.physical)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise SchemaMismatch(
                f"a column of {column.type} does not fit the Avro schema: {error}"
            ) from error
        _check_required(physical, self.type.schema, "the value")
        return physical

    def _write_fast(self, column: pa.Array) -> pa.Array:
        if not len(column):
            return pa.array([], pa.binary())
        pieces = compiled.serialize_record_batch(
            pa.RecordBatch.from_struct_array(column), self._text, 1
        )
        return pa.concat_arrays(pieces).cast(pa.binary())

    def _write(self, column: pa.Array) -> pa.Array:
        fastavro = required("fastavro", "avro")
        schema = fastavro.parse_schema(self.type.schema)
        convert = from_arrow(self.type.schema)
        buffer = io.BytesIO()
        encoded = []
        for row in column.to_pylist():
            buffer.seek(0)
            buffer.truncate()
            try:
                fastavro.schemaless_writer(buffer, schema, convert(row))
            except (ValueError, TypeError, KeyError) as error:
                raise UnsupportedColumn(f"a row does not fit the Avro schema: {error}") from error
            encoded.append(buffer.getvalue())
        return pa.array(encoded, pa.binary())


class AvroFormat(Format):
    """Avro data of one schema, without framing.

    `schema` is the one that values are written with. Reading gives columns by it too, unless
    `reader_schema` is given: then values are resolved to that one, by Avro's rules.
    Without a schema values can only be encoded, by a schema made from the column's type.
    """

    name = "avro"

    def __init__(
        self, schema: SchemaText | None = None, *, reader_schema: SchemaText | None = None
    ) -> None:
        self.schema = None if schema is None else load_schema(schema)
        self._reader_schema = None if reader_schema is None else load_schema(reader_schema)

    @cached_property
    def _decoder(self) -> AvroDecoder:
        if self.schema is None:
            raise SchemaMismatch("Avro without framing is read with a schema: AvroFormat(schema)")
        return AvroDecoder(self.schema, self._reader_schema)

    def decode(self, values: pa.Array | pa.ChunkedArray) -> Decoded:
        return self._decoder.decode(binary_column(values))

    def encode(self, column: pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table) -> pa.Array:
        array = struct_column(column)
        schema = self.schema if self.schema is not None else avro_schema(array.type)
        return AvroEncoder(schema).encode(array)


def _is_record(resolved: AvroType) -> bool:
    return isinstance(resolved.schema, dict) and resolved.schema.get("type") == "record"


def _arranged(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column with the schema's fields in the schema's order; what it does not have is null."""
    if not pa.types.is_struct(kind) or not pa.types.is_struct(column.type):
        return column.cast(kind)
    names = {field.name: at for at, field in enumerate(column.type)}
    unknown = sorted(set(names) - {field.name for field in kind})
    if unknown:
        raise SchemaMismatch(f"the Avro schema has no field {', '.join(map(repr, unknown))}")
    columns, fields = [], []
    for field in kind:
        at = names.get(field.name)
        child = pa.nulls(len(column), field.type) if at is None else column.field(at)
        child = _arranged(child, field.type)
        columns.append(child)
        fields.append(pa.field(field.name, child.type))
    if not columns:
        return pa.array([{}] * len(column), pa.struct([]))
    mask = pc.is_null(column) if column.null_count else None
    return pa.StructArray.from_arrays(columns, fields=fields, mask=mask)


def _check_required(column: pa.Array, schema: Schema, path: str) -> None:
    """Refuse nulls where the schema has none."""
    if isinstance(schema, list):
        others = [branch for branch in schema if branch != "null"]
        if len(others) == len(schema) and column.null_count:
            raise UnsupportedColumn(f"{path} is null in some row, and the Avro schema forbids it")
        if len(others) == 1:
            _check_required(column.drop_null(), others[0], path)
        return
    if schema != "null" and column.null_count:
        raise UnsupportedColumn(f"{path} is null in some row, and the Avro schema forbids it")
    if isinstance(schema, str):
        return
    if schema["type"] == "record":
        for at, field in enumerate(schema["fields"]):
            _check_required(column.field(at), field["type"], field["name"])
    elif schema["type"] == "array":
        _check_required(column.flatten(), schema["items"], f"an element of {path}")
    elif schema["type"] == "map":
        _check_required(column.items, schema["values"], f"an entry of {path}")
