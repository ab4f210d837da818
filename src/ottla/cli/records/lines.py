"""Lines of input as records: one by one, or (many at once) as columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.cli.failures import Failure
from ottla.cli.records.text import Headers, OutgoingRecord, record_from_json

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.cli.records.input_blocks import Block


@dataclass(frozen=True)
class RecordLines:
    """How the options of `ottla produce` make records of lines."""

    json: bool = False  # each line is a JSON object; else it is a value, or key and value
    repartition: bool = False  # ignore the partitions in JSON
    key: bytes | None = None  # of every record
    separator: bytes | None = None  # between key and value
    separator_shown: str = ""
    null_marker: bytes | None = None
    headers: Headers = ()
    partition: int | None = None  # of every record

    def record(self, number: int, line: bytes) -> OutgoingRecord | None:
        """The record in the line of this number; None if there is none. Failure names the line."""
        if self.json:
            if not line.strip():
                return None
            record = record_from_json(line, f"line {number}")
            named = None if self.repartition else record.partition
            return OutgoingRecord(
                record.key,
                record.value,
                record.headers + self.headers,
                named if self.partition is None else self.partition,
                record.timestamp,
            )
        key, value = self.key, line
        if self.separator is not None:
            key, found, value = line.partition(self.separator)
            if not found:
                raise self._no_separator(number)
        marker = self.null_marker
        return OutgoingRecord(
            None if key == marker else key,
            None if value == marker else value,
            self.headers,
            self.partition,
        )

    def columns(self, first: int, block: Block) -> tuple[pa.RecordBatch | None, Failure | None]:
        """The records of many lines, of which the first has this number, and what is wrong.

        That is of the first line that cannot be read; the columns hold the records before it.
        """
        return self._json_columns(first, block) if self.json else self._text_columns(first, block)

    def _text_columns(
        self, first: int, block: Block
    ) -> tuple[pa.RecordBatch | None, Failure | None]:
        import pyarrow as pa

        from ottla.cli.records.plain_columns import same_bytes

        failure = None
        values = block.column()
        keys: pa.Array | None = None
        if self.separator is not None:
            keys, values = _split_once(values, self.separator)
            if len(values) < block.count:
                failure = self._no_separator(first + len(values))
        elif self.key is not None:
            keys = same_bytes(self.key, len(values))
        if self.null_marker is not None:
            values = _with_nulls(values, self.null_marker)
            keys = keys and _with_nulls(keys, self.null_marker)
        if not len(values):
            return None, failure
        columns = {"value": values}
        if keys is not None:
            columns["key"] = keys if keys.null_count < len(keys) else pa.nulls(len(keys), keys.type)
        return self._batch(columns), failure

    def _json_columns(
        self, first: int, block: Block
    ) -> tuple[pa.RecordBatch | None, Failure | None]:
        from ottla.cli.records.json_columns import columns_of_json

        columns = columns_of_json(block)
        if columns is not None and not (self.headers and "headers" in columns):
            if self.repartition:
                columns.pop("partition", None)
            return self._batch(columns), None
        # What is not plain, or wrong: line by line, which also tells the line that is wrong.
        failure = None
        records = []
        try:
            for number, line in enumerate(block.pieces, start=first):
                if (record := self.record(number, line)) is not None:
                    records.append(record)
        except Failure as problem:
            failure = problem
        return (self._batch(_columns_of(records)) if records else None), failure

    def _batch(self, columns: dict[str, pa.Array]) -> pa.RecordBatch:
        """A batch of the columns, with those that all records have in common."""
        import pyarrow as pa

        from ottla.cli.records.plain_columns import same_number
        from ottla.record.columns import HEADERS_TYPE

        count = len(columns["value"])
        if self.headers and "headers" not in columns:
            one = pa.array([self.headers], HEADERS_TYPE)
            columns["headers"] = one.take(pa.repeat(pa.scalar(0), count))
        if self.partition is not None:
            columns["partition"] = same_number(self.partition, count)
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _no_separator(self, number: int) -> Failure:
        return Failure(f"line {number} has no key separator '{self.separator_shown}'")


def _split_once(lines: pa.Array, separator: bytes) -> tuple[pa.Array, pa.Array]:
    """What stands before and after the first separator, up to the first line that has none."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = pc.split_pattern(lines, separator, max_splits=1)
    ends = np.frombuffer(parts.buffers()[1], np.int32)[1 : len(lines) + 1]
    both = np.arange(2, 2 * len(lines) + 1, 2)
    alone = np.flatnonzero(ends != both)
    count = int(alone[0]) if len(alone) else len(lines)

    def every_second(start: int) -> pa.Array:
        places = np.arange(start, 2 * count, 2, dtype=np.int32)
        return parts.values.take(
            pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(places)])
        )

    return every_second(0), every_second(1)


def _with_nulls(values: pa.Array, marker: bytes) -> pa.Array:
    """Nulls where the marker stands."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from ottla.cli.records.plain_columns import same_bytes

    is_marker = pc.equal(values, same_bytes(marker, 1)[0])
    return pc.if_else(is_marker, pa.nulls(1, values.type)[0], values)


def _columns_of(records: list[OutgoingRecord]) -> dict[str, pa.Array]:
    import pyarrow as pa

    from ottla.record.columns import HEADERS_TYPE

    keys, values, headers, partitions, timestamps = zip(*records, strict=True)
    columns = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
    if any(headers):
        columns["headers"] = pa.array(headers, HEADERS_TYPE)
    if any(each is not None for each in partitions):
        columns["partition"] = pa.array(partitions, pa.int32())
    if any(each is not None for each in timestamps):
        columns["timestamp"] = pa.array(timestamps, pa.int64())
    return columns
