"""Lines of JSON as columns of records, by Arrow's reader: many times as fast as line by line.

It reads what `ottla consume --json` prints, and whatever is like it: keys and values that are strings or
null, headers as a list. Of everything else (values that are objects, base64, a mistake) it says nothing:
then `record_text` looks at each line, and has the last word on what is right.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from ottla.cli.records.input_blocks import Block
from ottla.record.columns import HEADERS_TYPE

_HEADER = pa.struct({"key": pa.string(), "value": pa.string()})
_RECORD = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int64(),
        "offset": pa.int64(),
        "timestamp": pa.int64(),
        "key": pa.string(),
        "value": pa.string(),
        "headers": pa.list_(_HEADER),
    }
)
_PARSING = arrow_json.ParseOptions(explicit_schema=_RECORD, unexpected_field_behavior="error")
_LARGEST_PARTITION = 2**31 - 1
_OPEN, _CLOSE, _BREAK = b"{}\n"


def columns_of_json(block: Block) -> dict[str, pa.Array] | None:
    """The columns of the records, one for each line; None where that is not as plain as it seems."""
    data = block.data
    if block.delimiter != b"\n" or not data:
        return None
    letters = np.frombuffer(data, np.uint8)
    breaks = np.flatnonzero(letters == _BREAK)
    # Where each line begins and ends like an object, none can be a part of what another begins.
    if not (
        data[:1] + data[-1:] == b"{}"
        and (letters[breaks - 1] == _CLOSE).all()
        and (letters[breaks + 1] == _OPEN).all()
    ):
        return None
    try:
        data.decode()
        reading = arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        table = arrow_json.read_json(pa.BufferReader(data), reading, _PARSING)
    except (UnicodeDecodeError, pa.ArrowInvalid):
        return None
    if table.num_rows != len(breaks) + 1:
        return None  # two on a line
    [rows] = table.to_batches()
    numbers = {name: rows.column(name) for name in ("partition", "timestamp")}
    headers = _headers(rows.column("headers"))
    if headers is None or not all(map(_are_natural, numbers.values())):
        return None
    columns = {name: rows.column(name).cast(pa.binary()) for name in ("key", "value")}
    if len(headers.values):
        columns["headers"] = headers
    if numbers["timestamp"].null_count < len(rows):
        columns["timestamp"] = numbers["timestamp"]
    if numbers["partition"].null_count < len(rows):
        if pc.max(numbers["partition"]).as_py() > _LARGEST_PARTITION:
            return None
        columns["partition"] = numbers["partition"].cast(pa.int32())
    return columns


def _are_natural(numbers: pa.Array) -> bool:
    lowest = pc.min(numbers).as_py()
    return lowest is None or lowest >= 0


def _headers(given: pa.Array) -> pa.Array | None:
    """As records have them; none where there is null. None if a header has no key."""
    headers = given.values
    names, values = headers.field("key"), headers.field("value")
    if headers.null_count or names.null_count:
        return None
    renamed = pa.StructArray.from_arrays(
        [names, values.cast(pa.binary())], fields=list(HEADERS_TYPE.value_type)
    )
    count = len(given)
    buffers = [None, given.buffers()[1]]
    return pa.Array.from_buffers(HEADERS_TYPE, count, buffers, children=[renamed])
