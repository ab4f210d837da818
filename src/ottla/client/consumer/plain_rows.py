"""Rows without Arrow: lists of records, for those who want few of them and want them soon.

Decoded one by one in Python, so that neither pyarrow nor numpy has to be imported. The same records in
the same order as `RowsLayout` gives, in the place of its record batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import NoReturn

from ottla.client.consumer.records import ConsumedRecord
from ottla.client.positions import TopicPartition
from ottla.record.batch import MAGIC, Record, contents, one_header, parse_records, readable_key
from ottla.record.columns.walking import FoundBatch, Walk, located
from ottla.record.compression.codecs import DEFAULT_LIMIT
from ottla.record.errors import InvalidBatch
from ottla.record.legacy import NO_TIMESTAMP, messages, timestamp_type

_RECORD_OVERHEAD = 200  # bytes of Python's objects around a record's own, about
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RecordList(list[Record]):
    """Records of one partition, with what of a record batch of Arrow's the consumer looks at."""

    def __init__(
        self, partition: TopicPartition, timestamp_type: int = 0, records: Iterable[Record] = ()
    ) -> None:
        super().__init__(records)
        self.partition = partition
        self.timestamp_type = timestamp_type  # 0 the producer's time, 1 the broker's, -1 none
        self.nbytes = 0

    @property
    def num_rows(self) -> int:
        return len(self)

    def slice(self, start: int) -> RecordList:
        """The records from this one on."""
        return RecordList(self.partition, self.timestamp_type, self[start:])


class PlainLayout:
    """Makes `RecordList`s of what was fetched."""

    def decode(
        self,
        records: memoryview,
        partition: TopicPartition,
        *,
        start_offset: int,
        end_offset: int | None,
        aborted: Iterable[tuple[int, int]],
        check_crc: bool,
        max_rows: int,
        max_bytes: int,
    ) -> Iterator[tuple[RecordList, int]]:
        """Lists of records, and the offsets after them. Raises InvalidBatch in a bad one's place.

        A list ends with the batch that reaches a bound: a batch is in memory as a whole anyway.
        """
        rows = RecordList(partition)
        next_offset = start_offset
        for found in Walk(records, aborted=aborted, check_crc=check_crc):
            if found.visible:
                try:
                    timestamp_type, more = _read(records[found.start : found.end], found)
                except InvalidBatch as error:
                    yield rows, next_offset
                    raise type(error)(located(found.base_offset, error.reason)) from None
                if more and timestamp_type != rows.timestamp_type:
                    if rows:
                        yield rows, next_offset
                    rows = RecordList(partition, timestamp_type)
                if more and more[0].offset < start_offset:
                    more = [each for each in more if each.offset >= start_offset]
                if more and end_offset is not None and more[-1].offset >= end_offset:
                    more = [each for each in more if each.offset < end_offset]
                rows += more
                rows.nbytes += found.end - found.start + _RECORD_OVERHEAD * len(more)
            next_offset = max(next_offset, found.last_offset + 1)
            if len(rows) >= max_rows or rows.nbytes >= max_bytes:
                yield rows, next_offset
                rows = RecordList(partition, rows.timestamp_type)
        yield rows, next_offset

    def incremental(self, *_: object, **__: object) -> None:
        """None: records that are still coming in are not decoded ahead."""

    @property
    def schema(self) -> NoReturn:
        raise ValueError("rows without Arrow have no schema: make the consumer with arrow=True")

    def records(self, rows: RecordList) -> Iterator[ConsumedRecord]:
        topic, partition = rows.partition
        for each in rows:
            moment = (
                None
                if each.timestamp == NO_TIMESTAMP
                else _EPOCH + timedelta(milliseconds=each.timestamp)
            )
            yield ConsumedRecord(
                topic,
                partition,
                each.offset,
                moment,
                rows.timestamp_type,
                each.key,
                each.value,
                tuple((readable_key(key), value) for key, value in each.headers),
            )


def _read(batch: memoryview, found: FoundBatch) -> tuple[int, list[Record]]:
    """The timestamp type and the records of a batch, or of a message and what it wraps."""
    if found.magic != MAGIC:
        return timestamp_type(batch), list(messages(batch, DEFAULT_LIMIT))
    header = one_header(batch)
    records = parse_records(contents(batch, header, DEFAULT_LIMIT), header)
    return header.timestamp_type, list(records)
