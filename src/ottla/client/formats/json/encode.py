"""Arrow columns to JSON text, column by column.

Each column becomes a column of JSON literals with Arrow's own kernels (casts, joins, replacements);
the literals of a struct's fields are then joined row by row. No Python object is made per value but
for strings with control characters, which have no kernel that escapes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from ottla.client.formats.errors import UnsupportedColumn

_NEEDS_ESCAPE = '["\\\\\\x00-\\x1f]'
_CONTROL = "[\\x00-\\x1f]"


def encode_json(column: pa.Array) -> pa.Array:
    """A column of JSON texts; null rows stay null. A table's rows become objects."""
    texts = _literals(column)
    return pc.if_else(pc.is_valid(column), texts, pa.scalar(None, pa.string())).cast(pa.binary())


def _literals(column: pa.Array) -> pa.Array:
    """JSON literals of every row, `null` for a null one."""
    for matches, encoder in _ENCODERS:
        if matches(column.type):
            return pc.fill_null(encoder(column), "null")
    raise UnsupportedColumn(f"{column.type} has no form in JSON")


def _plain(column: pa.Array) -> pa.Array:
    return column.cast(pa.string())


def _nothing(column: pa.Array) -> pa.Array:
    return pa.nulls(len(column), pa.string())


def _float(column: pa.Array) -> pa.Array:
    # JSON has no NaN and no infinity: they become null.
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    texts = column.cast(pa.string())
    fractional = pc.match_substring_regex(texts, "[.e]")
    if not pc.all(fractional).as_py():
        # Or whoever reads it would take it for a whole number.
        texts = pc.if_else(fractional, texts, pc.binary_join_element_wise(texts, ".0", ""))
    return pc.if_else(pc.is_finite(column), texts, pa.scalar(None, pa.string()))


def _string(column: pa.Array) -> pa.Array:
    column = column.cast(pa.string())
    if pc.any(pc.match_substring_regex(column, _NEEDS_ESCAPE)).as_py():
        column = _escaped(column)
    return _quoted(column)


def _escaped(column: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(column, _CONTROL)).as_py():
        texts = [
            None if text is None else json.dumps(text, ensure_ascii=False)[1:-1]
            for text in column.to_pylist()
        ]
        return pa.array(texts, pa.string())
    return pc.replace_substring(pc.replace_substring(column, "\\", "\\\\"), '"', '\\"')


def _quoted(column: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', column, '"', "")


def _binary(column: pa.Array) -> pa.Array:
    # As the reader gives text back for a binary field: its UTF-8 bytes.
    try:
        return _string(column.cast(pa.string()))
    except pa.ArrowInvalid as error:
        raise UnsupportedColumn(
            "a binary column goes into JSON as text, and this one is not UTF-8: encode it first, "
            "in base64 for one"
        ) from error


def _timestamp(column: pa.Array) -> pa.Array:
    text = column.cast(pa.string())
    return _quoted(pc.replace_substring(text, " ", "T", max_replacements=1))


def _text_of(column: pa.Array) -> pa.Array:
    return _quoted(column.cast(pa.string()))


def _dictionary(column: pa.Array) -> pa.Array:
    # Encode each distinct value once.
    values = _literals(column.dictionary)
    return values.take(column.indices)


def _struct(column: pa.Array) -> pa.Array:
    parts: list[pa.Array | str] = []
    for position, field in enumerate(column.type):
        name = json.dumps(field.name, ensure_ascii=False)
        parts.append(("{" if position == 0 else ",") + name + ":")
        # Without the parent's nulls: they are set where the parent is used.
        child = column.field(position)
        parts.append(_literals(child))
    if not parts:
        objects = pa.repeat(pa.scalar("{}"), len(column))
    else:
        objects = pc.binary_join_element_wise(*parts, "}", "")
    return _null_where_null(objects, column)


def _list(column: pa.Array) -> pa.Array:
    if pa.types.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_field))
    elements = _literals(column.values)
    wide = pa.types.is_large_list(column.type)
    # An offset array has no nulls of its own, so null rows (empty ranges here) are set afterwards.
    kind = pa.LargeListArray if wide else pa.ListArray
    joined = pc.binary_join(kind.from_arrays(column.offsets, elements), ",")
    return _null_where_null(pc.binary_join_element_wise("[", joined, "]", ""), column)


def _map(column: pa.Array) -> pa.Array:
    keys = column.keys
    if not (pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type)):
        raise UnsupportedColumn(f"a JSON object's keys are text, not {keys.type}")
    pairs = pc.binary_join_element_wise(_string(keys), ":", _literals(column.items), "")
    joined = pc.binary_join(pa.ListArray.from_arrays(column.offsets, pairs), ",")
    return _null_where_null(pc.binary_join_element_wise("{", joined, "}", ""), column)


def _null_where_null(texts: pa.Array, column: pa.Array) -> pa.Array:
    if not column.null_count:
        return texts
    return pc.if_else(pc.is_valid(column), texts, pa.scalar(None, pa.string()))


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _is_any_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _is_day_or_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_time(kind))


_ENCODERS: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]]] = [
    (_is_plain, _plain),
    (pa.types.is_floating, _float),
    (_is_text, _string),
    (pa.types.is_struct, _struct),
    (_is_any_list, _list),
    (pa.types.is_timestamp, _timestamp),
    (_is_day_or_time, _text_of),
    (_is_binary, _binary),
    (pa.types.is_dictionary, _dictionary),
    (pa.types.is_map, _map),
    (pa.types.is_null, _nothing),
]
