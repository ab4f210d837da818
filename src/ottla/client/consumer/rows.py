"""The rows that users get: what record batches hold, with topic and partition.

topic            dictionary<int32, string>
partition        int32
offset           int64
timestamp        timestamp[ms, UTC]; null where a record has none
timestamp_type   int8: 0 the producer's time, 1 the broker's, -1 none
key, value       binary
headers          list<struct<key: string, value: binary>>
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ottla.client.consumer.records import ConsumedRecord, records_of
from ottla.client.positions import TopicPartition
from ottla.record.columns import COLUMNS, Decoded, IncrementalRecords, Layout, decode

TOPIC_TYPE: Final = pa.dictionary(pa.int32(), pa.string())
ALL_COLUMNS: Final = ("topic", "partition", *COLUMNS)
_ADDED: Final = {"topic": TOPIC_TYPE, "partition": pa.int32()}


class RowsLayout:
    """Which of the columns are made, in the order in which they were asked for."""

    def __init__(self, columns: Iterable[str] | None = None) -> None:
        names = ALL_COLUMNS if columns is None else tuple(columns)
        unknown = [name for name in names if name not in ALL_COLUMNS]
        if unknown or len(set(names)) != len(names) or not names:
            raise ValueError(
                f"columns are some of {', '.join(ALL_COLUMNS)}, each once: not {', '.join(names)}"
            )
        decoded = tuple(name for name in names if name not in _ADDED)
        # Something has to be decoded, or nobody would know how many rows there are.
        self.decoded = Layout(columns=decoded or ("offset",))
        self._names = names
        self.schema = pa.schema(
            [
                pa.field(name, _ADDED[name]) if name in _ADDED else self.decoded.schema.field(name)
                for name in names
            ]
        )

    def decode(
        self, records: memoryview, partition: TopicPartition, **bounds: Any
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Rows of what was fetched, and the offsets after them; `bounds` are those of `decode`."""

        def completed(decoded: Decoded) -> tuple[pa.RecordBatch, int]:
            return self.complete(decoded.rows, partition), decoded.next_offset

        # No generator: it would hold on to the rows that it has given out last.
        return map(completed, decode(records, layout=self.decoded, **bounds))

    def incremental(
        self, records: memoryview, partition: TopicPartition, **bounds: Any
    ) -> IncrementalRows:
        """As `decode`, for records that have not come as a whole yet."""
        incremental = IncrementalRecords(records, layout=self.decoded, **bounds)
        return IncrementalRows(self, incremental, partition)

    def records(self, rows: pa.RecordBatch) -> Iterator[ConsumedRecord]:
        """The rows one by one."""
        if len(self._names) < len(ALL_COLUMNS):
            raise ValueError("records have all columns: make the consumer without `columns`")
        return records_of(rows)

    def complete(self, rows: pa.RecordBatch, partition: TopicPartition) -> pa.RecordBatch:
        """Decoded rows of one partition as rows of this layout."""
        count = rows.num_rows
        columns = []
        for name in self._names:
            if name == "topic":
                columns.append(
                    pa.DictionaryArray.from_arrays(
                        _constant(0, count), _text(partition.topic), safe=False
                    )
                )
            elif name == "partition":
                columns.append(_constant(partition.partition, count))
            else:
                columns.append(rows.column(name))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


class IncrementalRows:
    """Rows of records that are still coming in; iterate once they are all there."""

    def __init__(
        self, layout: RowsLayout, records: IncrementalRecords, partition: TopicPartition
    ) -> None:
        self._layout = layout
        self._records = records
        self._partition = partition

    def advance(self, size: int) -> None:
        """The first `size` bytes are there."""
        self._records.advance(size)

    def receive(self, descriptor: int, size: int, most: int) -> int:
        """Receive up to `most` more bytes after the first `size` ones; how many came."""
        return self._records.receive(descriptor, size, most)

    @property
    def left(self) -> int:
        """Bytes that have not been decoded yet."""
        return self._records.left

    @property
    def last_read(self) -> int:
        """Where the last batch starts of those that have been decoded; 0 if none has."""
        return self._records.last_read

    def __iter__(self) -> Iterator[tuple[pa.RecordBatch, int]]:
        def completed(decoded: Decoded) -> tuple[pa.RecordBatch, int]:
            return self._layout.complete(decoded.rows, self._partition), decoded.next_offset

        return map(completed, self._records)


@lru_cache(256)
def _text(text: str) -> pa.Array:
    return pa.array([text], pa.string())


def _constant(number: int, count: int) -> pa.Array:
    return pa.array(np.full(count, number, np.int32))
