"""Tables to batches: what is Arrow, which column is what, which row goes where.

A table that is written has columns by these names, each of which may be missing:

    key        bytes or text (or anything, with `key_format`)
    value      bytes or text (or anything, with `format`)
    headers    list<struct<key, value>> or map
    timestamp  a timestamp (UTC, if it has no zone), or milliseconds as integers
    partition  integers; where it is null the partitioner chooses
    topic      text; read only where `write` was called without a topic, which wins

With a `format`, values are encoded from the column `value`, or, if there is none, from all the columns
that are not in this list. A column that would get lost on the way is an error. What a consumer gives
has the columns `offset` and `timestamp_type`, too; they are passed over beside a `value`, so that rows
can be copied from topic to topic as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.client.formats.base import Format, binary_column, one_array
from ottla.client.producer.batches import RECORD_OVERHEAD
from ottla.client.times import warn_without_zone
from ottla.record.columns.inputs import bytes_column

RESERVED = ("key", "value", "headers", "timestamp", "partition", "topic")
# Columns that a consumer's batches have and that mean nothing when they are written.
READ_ONLY = ("offset", "timestamp_type")


def record_batches(data: Any) -> Iterator[pa.RecordBatch]:
    """Record batches of anything that is Arrow or can be had as Arrow."""
    if isinstance(data, pa.RecordBatch):
        yield data
    elif isinstance(data, pa.Table):
        yield from data.to_batches()
    elif isinstance(data, pa.RecordBatchReader):
        yield from data
    elif hasattr(data, "__arrow_c_stream__"):
        yield from pa.RecordBatchReader.from_stream(data)
    elif hasattr(data, "__arrow_c_array__"):
        yield pa.record_batch(data)
    elif type(data).__module__.startswith("pandas"):
        yield from pa.Table.from_pandas(data, preserve_index=False).to_batches()
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes | dict):
        for piece in data:
            yield from record_batches(piece)
    else:
        raise TypeError(
            f"a table to write is an Arrow table, batch or stream, or a data frame, "
            f"not {type(data).__name__}"
        )


def numbers(column: pa.Array | pa.ChunkedArray) -> np.ndarray[Any, Any]:
    """A column of whole numbers without nulls, as numpy sees it.

    Not by `to_numpy`: that imports pandas where it is installed, for half a second.
    """
    return np.from_dlpack(one_array(column))


def true_rows(column: pa.Array) -> np.ndarray[Any, Any]:
    """The rows of a column of truth values, without nulls, that are true."""
    return np.flatnonzero(numbers(column.cast(pa.uint8())))


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of records, ready to be encoded; None stands for nulls."""

    count: int
    keys: pa.Array | None
    values: pa.Array | None
    headers: pa.Array | None
    timestamps: pa.Array | None
    partitions: pa.Array | None
    topics: pa.Array | None

    def sizes(self) -> np.ndarray[Any, Any]:
        """About the bytes of each record in a batch."""
        sizes = np.full(self.count, RECORD_OVERHEAD, np.int64)
        for column in (self.keys, self.values):
            if column is not None:
                sizes += np.diff(bytes_column(column, "records").offsets)
        return sizes


def columns_of(
    batch: pa.RecordBatch,
    value_format: Format | None,
    key_format: Format | None,
    topic: str | None = None,
) -> Columns:
    """Find the columns of a table, and encode those that need it.

    ValueError for a table with a column that would not be written. `topic` is the one that all rows go
    to, if one was named.
    """
    names = batch.schema.names
    _check_names(names, value_format is not None, topic)
    found = {name: _plain(batch.column(name)) for name in RESERVED if name in names}
    values = found.get("value")
    if value_format is not None and values is None:
        others = [name for name in names if name not in RESERVED]
        values = value_format.encode(batch.select(others))
    elif value_format is not None:
        values = value_format.encode(values)
    if values is not None and len(values) != batch.num_rows and found:
        raise ValueError(
            f"the format makes {len(values)} values of {batch.num_rows} rows, so that keys and "
            "other columns do not belong to any one of them; write the values alone"
        )
    keys = found.get("key")
    if key_format is not None and keys is not None:
        keys = key_format.encode(keys)
    return Columns(
        count=batch.num_rows if values is None else len(values),
        keys=_bytes(keys, "key", "key_format"),
        values=_bytes(values, "value", "format"),
        headers=found.get("headers"),
        timestamps=_times(found.get("timestamp")),
        partitions=found.get("partition"),
        topics=found.get("topic") if topic is None else None,
    )


def _check_names(names: list[str], with_format: bool, topic: str | None) -> None:
    """ValueError if a column would get lost, or if nobody says what is to become of it."""
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"the table has several columns called {min(twice)!r}")
    others = [name for name in names if name not in RESERVED and name not in READ_ONLY]
    reserved = f"the columns {', '.join(RESERVED)} are what records are made of"
    if "value" in names:
        if others and with_format:
            raise ValueError(
                f"with a column 'value' that one alone becomes the value, and {_listed(others)} "
                f"would be lost: {reserved}, so call 'value' something else, or leave the others out"
            )
    elif with_format:
        lost = [name for name in READ_ONLY if name in names]
        if topic is not None and "topic" in names:
            lost.append("topic")
        if lost:
            where = f"; all rows go to the topic {topic!r}, as was said" if "topic" in lost else ""
            raise ValueError(
                f"{_listed(lost)} would be lost: {reserved}, and {', '.join(READ_ONLY)} are set by "
                f"the broker{where}. Call the column something else, or leave it out"
            )
    if others and not with_format:
        raise ValueError(
            f"nothing says what to do with the column {others[0]!r}: with a format "
            "(format='json') such columns become the value; without, there may only be "
            f"{', '.join(RESERVED)}"
        )


def _listed(names: list[str]) -> str:
    quoted = ", ".join(map(repr, names))
    return f"the column {quoted}" if len(names) == 1 else f"the columns {quoted}"


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _times(column: pa.Array | None) -> pa.Array | None:
    """The timestamps as they are; those without a zone are UTC, which is told where it is in doubt."""
    if column is not None and pa.types.is_timestamp(column.type) and column.type.tz is None:
        first = column.drop_null()[:1].cast(pa.timestamp("us"), safe=False).to_pylist()
        if first:
            warn_without_zone(first[0])
    return column


def _bytes(column: pa.Array | None, name: str, option: str) -> pa.Array | None:
    if column is None or pa.types.is_null(column.type):
        return None
    try:
        return binary_column(column)
    except TypeError:
        raise TypeError(
            f"the column {name!r} is {column.type}, not bytes or text: choose a format for it "
            f"({option}='json')"
        ) from None


def by_topic(
    columns: Columns, default: str | None
) -> Iterator[tuple[str, np.ndarray[Any, Any] | None]]:
    """The topics of a table, with the rows of each (None: all)."""
    topics = columns.topics
    if topics is None or topics.null_count == len(topics):
        if default is None:
            raise ValueError("no topic: name one, or give the table a column 'topic'")
        yield default, None
        return
    if topics.null_count:
        if default is None:
            raise ValueError("the column 'topic' is null in some row, and no topic was named")
        topics = pc.fill_null(topics, default)
    encoded = one_array(topics.cast(pa.string())).dictionary_encode()
    codes = numbers(encoded.indices)
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], None
        return
    for code, name in enumerate(names):
        yield name, np.flatnonzero(codes == code)


def by_partition(
    partitions: np.ndarray[Any, Any], rows: np.ndarray[Any, Any] | None
) -> Iterator[tuple[int, np.ndarray[Any, Any] | None]]:
    """The partitions of these rows, with the rows of each in order (None: all of the table)."""
    if not len(partitions):
        return
    first = int(partitions[0])
    if (partitions == first).all():
        yield first, rows
        return
    order = np.argsort(partitions, kind="stable")
    arranged = partitions[order]
    starts = np.flatnonzero(np.diff(arranged, prepend=-1))
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        chosen = order[start:end]
        yield int(arranged[start]), chosen if rows is None else rows[chosen]
