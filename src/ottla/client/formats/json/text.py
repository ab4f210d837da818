"""JSON: one object per value, to a struct column and back.

Decoding joins the values with newlines and gives them to Arrow's JSON reader in one call. That reader
takes a stream of objects and knows no rows: a value with a raw newline, an empty value, or two
objects in one value would shift everything after it. So a batch goes that way only when each value
begins with `{`, ends with `}` and holds no line break, and its result counts only when it has one row
per value. Under these conditions the count is proof: every value yields at least one object, because no
object can go on from a `}` into a `{`, and a line break inside a string is an error of its own.

What fails this is looked at row by row: a value that is not one JSON object is rejected; the rest goes
to the same reader, so that there is one place that decides what fits a type. Rows that fit none are
found by halving.

Types: with a `schema`, fields that the schema does not name are left out, missing ones are null, and a
value that does not fit is rejected. Without one, the schema is inferred from the whole batch as
json_types says: whole numbers int64 (decimal beyond it), with others double, text stays text (dates are
not guessed), objects structs, arrays lists, and where kinds differ the JSON text. Arrow's reader infers
the same as long as rows agree and no whole number is beyond 64 bits. NaN and Infinity, which JSON lacks
and Python's writer emits, are read. A key that occurs twice in an object is rejected.
"""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from ottla.client.formats.base import Decoded, Format, binary_column, decode_rows, struct_column
from ottla.client.formats.errors import SchemaMismatch
from ottla.client.formats.json.encode import encode_json
from ottla.client.formats.json.rows import MAX_DEPTH, CheckedRows

_BLOCK = 1 << 20
_LARGEST = 2**63
_LONG_INTEGER = r"[:,\[]\s*-?[0-9]{19,}\s*[,\]}]"


class JsonFormat(Format):
    """JSON objects.

    >>> import pyarrow as pa
    >>> decoded = JsonFormat().decode(pa.array([b'{"a": 1}', b'{"a": 2, "b": "x"}', b'{"a":']))
    >>> decoded.array.to_pylist()
    [{'a': 1, 'b': None}, {'a': 2, 'b': 'x'}, None]
    >>> decoded.rejected.is_valid().to_pylist()
    [False, False, True]
    >>> mixed = pa.array([b'{"a": 1}', b'{"a": 0.5, "b": 7}', b'{"b": "x"}'])
    >>> JsonFormat().decode(mixed).array.to_pylist()
    [{'a': 1.0, 'b': None}, {'a': 0.5, 'b': '7'}, {'a': None, 'b': 'x'}]
    >>> JsonFormat().encode(pa.table({"a": [1, 2], "b": ["x", None]})).to_pylist()
    [b'{"a":1,"b":"x"}', b'{"a":2,"b":null}']
    """

    name = "json"

    def __init__(self, schema: pa.Schema | pa.StructType | None = None) -> None:
        self.schema = _as_schema(schema) if schema is not None else None
        self._readable = _readable_schema(self.schema) if self.schema is not None else None

    def decode(self, values: pa.Array | pa.ChunkedArray) -> Decoded:
        array = binary_column(values)
        at_once = self._decode_at_once(array)
        return at_once if at_once is not None else self._decode_by_row(array)

    def _decode_at_once(self, values: pa.Array) -> Decoded | None:
        """All values in one call, or None if any of them needs a closer look."""
        lines = values.drop_null() if values.null_count else values
        if not len(lines) or not _one_line_each(lines, shallow=self.schema is None):
            return None
        schema, readable = self.schema, self._readable
        if schema is None or readable is None:
            schema = readable = _inferred(lines)
            if schema is None:
                return None
        try:
            decoded = _struct_of_lines(lines, readable)
        except ValueError:
            return None
        if self.schema is None and _has_beyond_64_bits(decoded) and _has_long_integers(lines):
            return None
        result_type = pa.struct(list(schema))
        return decode_rows(values, lambda _: decoded.cast(result_type), result_type)

    def _decode_by_row(self, values: pa.Array) -> Decoded:
        rows = CheckedRows(values)
        schema, readable = self.schema, self._readable
        if schema is None or readable is None:
            schema = readable = rows.infer()
        rows.reject_misfits(readable)
        result_type = pa.struct(list(schema))
        return decode_rows(
            rows.lines,
            lambda lines: _struct_of_lines(lines, readable).cast(result_type),
            result_type,
            rows.reasons,
        )

    def encode(self, column: pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table) -> pa.Array:
        return encode_json(struct_column(column))


def _as_schema(schema: pa.Schema | pa.StructType) -> pa.Schema:
    if isinstance(schema, pa.Schema):
        return schema
    if pa.types.is_struct(schema):
        return pa.schema(list(schema))
    raise SchemaMismatch(f"JSON values are objects: their schema is a struct, not {schema}")


def _readable_schema(schema: pa.Schema) -> pa.Schema:
    """The schema in types that Arrow's reader parses; the result is cast to the real one."""
    readable = pa.schema([_readable_field(field) for field in schema])
    try:
        _read(pa.array([b"{}"], pa.binary()), _nullable(readable))
    except pa.ArrowNotImplementedError as error:
        raise SchemaMismatch(f"JSON cannot be decoded to this schema: {error}") from error
    return readable


def _readable_field(field: pa.Field) -> pa.Field:
    return field.with_type(_readable_type(field.type))


def _readable_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_date(kind):
        return pa.timestamp("ms")
    if pa.types.is_dictionary(kind):
        return _readable_type(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([_readable_field(field) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_readable_field(kind.value_field))
    return kind


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


def _one_line_each(values: pa.Array, *, shallow: bool) -> bool:
    """Whether every value looks like one object on one line (and, if asked, not a deep one)."""
    buffer = values.buffers()[2]
    joined = buffer.to_pybytes() if buffer is not None else b""
    for line_break in ("\n", "\r"):
        # A search of all bytes is fast; it may also find a neighbour of this slice, so look closer.
        if line_break.encode() in joined and _any_contains(values, line_break):
            return False
    braces = pc.and_(pc.starts_with(values, "{"), pc.ends_with(values, "}"))
    if not pc.all(braces).as_py():
        return False
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    if not shallow:
        return True
    openings = pc.add(pc.count_substring(values, "{"), pc.count_substring(values, "["))
    return bool(pc.max(openings).as_py() <= MAX_DEPTH)


def _has_beyond_64_bits(values: pa.Array) -> bool:
    """Whether there are doubles so large that whole numbers may have been taken for them."""
    kind = values.type
    if pa.types.is_struct(kind):
        return any(_has_beyond_64_bits(values.field(at)) for at in range(kind.num_fields))
    if pa.types.is_list(kind):
        return _has_beyond_64_bits(values.flatten())
    if not pa.types.is_floating(kind):
        return False
    bounds = pc.min_max(values).as_py()
    smallest, largest = bounds["min"], bounds["max"]
    return largest is not None and bool(largest >= _LARGEST or smallest <= -_LARGEST)


def _has_long_integers(values: pa.Array) -> bool:
    """Whether something looks like a whole number of so many digits that 64 bits may not do."""
    return bool(pc.any(pc.match_substring_regex(values, _LONG_INTEGER)).as_py())


def _any_contains(values: pa.Array, text: str) -> bool:
    return bool(pc.any(pc.match_substring(values, text)).as_py())


def _struct_of_lines(lines: pa.Array, schema: pa.Schema) -> pa.Array:
    table = _read(lines, schema)
    if table.num_rows != len(lines):
        raise ValueError("more than one JSON value in one record's value")
    if not len(schema):
        return pa.array([{}] * table.num_rows, pa.struct([]))
    columns = [table.column(field.name).combine_chunks() for field in schema]
    return pa.StructArray.from_arrays(columns, fields=list(schema))


def _read(lines: pa.Array, schema: pa.Schema | None) -> pa.Table:
    """Arrow's reader over values that are one line each."""
    size = lines.nbytes + len(lines)
    whole = pa.LargeListArray.from_arrays(
        pa.array([0, len(lines)], pa.int64()), lines.cast(pa.large_binary())
    )
    joined = pc.binary_join(whole, pa.scalar(b"\n", pa.large_binary()))[0]
    return pyarrow.json.read_json(
        io.BytesIO(joined.as_buffer()),
        # A block that holds everything where it is small: no line can straddle more than two.
        pyarrow.json.ReadOptions(use_threads=size > _BLOCK, block_size=_block_size(lines, size)),
        pyarrow.json.ParseOptions(
            explicit_schema=schema,
            unexpected_field_behavior="infer" if schema is None else "ignore",
        ),
    )


def _block_size(lines: pa.Array, size: int) -> int:
    if size < _BLOCK:
        return _BLOCK
    longest: int = pc.max(pc.binary_length(lines)).as_py()
    return min(max(_BLOCK, 2 * longest + 2), 2**31 - 1)


def _inferred(lines: pa.Array) -> pa.Schema | None:
    """The schema that Arrow infers from all lines, or None if they do not agree on one."""
    if not len(lines):
        return pa.schema([])
    try:
        table = _read(lines, None)
    except ValueError:
        return None
    if table.num_rows != len(lines):
        return None
    return pa.schema([pa.field(field.name, _without_guesses(field.type)) for field in table.schema])


def _without_guesses(kind: pa.DataType) -> pa.DataType:
    """Arrow's reader takes text that looks like a date for one; here text stays text.

    What is only ever null is text, too: the reader stumbles over lists of nothing.
    """
    if pa.types.is_timestamp(kind) or pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_guesses(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_without_guesses(kind.value_type))
    return kind
