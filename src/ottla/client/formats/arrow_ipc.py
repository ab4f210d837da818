"""Arrow IPC: each value is one stream of record batches.

A value then holds a small table, not a row. Decoding gives a *list* column: entry i is the list of the
rows in value i, so that row i still stands for record i and its offset, key and timestamp.
`exploded()` flattens it to one row per row, with the position of the value that each came from (take
the other columns by it). Encoding takes such a list column, one value per entry, or a struct column or
table, of which every `rows_per_value` rows go into one value.

Streams have to carry the same schema; with `schema` given, a value with another one is rejected (or,
with `cast`, its columns of these names are cast), else the first good value of the first column
decides. Compressed streams are read; `compression` is for
writing ("lz4" or "zstd"; None by default, since the producer compresses whole batches).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ottla.client.formats.base import (
    ROW_ERRORS,
    Decoded,
    Format,
    binary_column,
    decode_rows,
    struct_column,
)
from ottla.client.formats.errors import SchemaMismatch, UnsupportedColumn


class ArrowFormat(Format):
    """Arrow IPC streams as values.

    >>> import pyarrow as pa
    >>> arrow = ArrowFormat(rows_per_value=2)
    >>> values = arrow.encode(pa.table({"a": [1, 2, 3]}))
    >>> arrow.decode(values).array.to_pylist()
    [[{'a': 1}, {'a': 2}], [{'a': 3}]]
    """

    name = "arrow"

    def __init__(
        self,
        schema: pa.Schema | None = None,
        *,
        cast: bool = False,
        rows_per_value: int = 1024,
        compression: str | None = None,
    ) -> None:
        if rows_per_value < 1:
            raise SchemaMismatch(f"rows_per_value is 1 or more, not {rows_per_value}")
        self.schema = schema
        self.cast = cast
        self.rows_per_value = rows_per_value
        self._options = pa.ipc.IpcWriteOptions(compression=compression)

    def decode(self, values: pa.Array | pa.ChunkedArray) -> Decoded:
        array = binary_column(values)
        schema = self.schema if self.schema is not None else _first_schema(array)
        row_type = pa.struct([] if schema is None else list(schema))
        list_type = pa.list_(row_type)

        def decode_all(streams: pa.Array) -> pa.Array:
            counts, tables = [0], []
            for value in streams:
                table = _read(value.as_buffer())
                if self.cast and schema is not None:
                    table = _fitted(table, schema)
                if schema is None or not table.schema.equals(schema):
                    raise ValueError(f"the stream's schema is another one: {_short(table.schema)}")
                tables.append(table)
                counts.append(counts[-1] + table.num_rows)
            rows = struct_column(pa.concat_tables(tables))
            return pa.ListArray.from_arrays(pa.array(counts, pa.int32()), rows.cast(row_type))

        return decode_rows(array, decode_all, list_type)

    def encode(self, column: pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table) -> pa.Array:
        array = struct_column(column)
        if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
            pieces = [each.values if each.is_valid else None for each in array]
            row_type = array.type.value_type
        else:
            count = self.rows_per_value
            pieces = [array.slice(at, count) for at in range(0, len(array), count)]
            row_type = array.type
        if not pa.types.is_struct(row_type):
            raise UnsupportedColumn(
                f"an Arrow stream holds rows: struct or lists of it, not {row_type}"
            )
        schema = pa.schema(list(row_type))
        encoded = [None if rows is None else self._write(rows, schema) for rows in pieces]
        return pa.array(encoded, pa.binary())

    def _write(self, rows: pa.Array, schema: pa.Schema) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema, options=self._options) as writer:
            writer.write_batch(pa.RecordBatch.from_struct_array(rows).cast(schema))
        encoded: bytes = sink.getvalue().to_pybytes()
        return encoded


def exploded(lists: pa.Array) -> tuple[pa.Array, pa.Array]:
    """All rows of a decoded column one after another, and the position of the value of each."""
    return lists.flatten(), pc.list_parent_indices(lists)


def _read(stream: pa.Buffer) -> pa.Table:
    try:
        with pa.ipc.open_stream(stream) as reader:
            table = reader.read_all()
        # Values come from strangers: offsets inside the buffers are checked before anyone uses them.
        table.validate(full=True)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"not an Arrow stream: {error}") from error
    return table


def _fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table's columns of the schema's names, in its types."""
    missing = [name for name in schema.names if name not in table.schema.names]
    if missing:
        raise ValueError(f"the stream has no column {missing[0]!r}")
    try:
        return table.select(schema.names).cast(schema)
    except pa.ArrowException as error:
        raise ValueError(f"the stream's columns do not fit: {error}") from error


def _first_schema(values: pa.Array) -> pa.Schema | None:
    for value in values:
        if value.is_valid:
            try:
                return _read(value.as_buffer()).schema
            except ROW_ERRORS:
                continue
    return None


def _short(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)[:200]
