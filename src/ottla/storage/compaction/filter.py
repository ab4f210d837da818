"""What compaction leaves of a batch. The rules are Kafka's:

- a record with a key stays if the map knows no later one of its key; one without a key goes;
- a record without a value, a tombstone, stays until the delete horizon of its batch has passed. The
  first pass that keeps one sets the horizon, `delete.retention.ms` from then: attribute bit 6, and the
  horizon in the place of the base timestamp. (In the old formats, by the age of the segment.)
- a record that was deleted by itself goes, once its mark is committed. It has taken the place of the
  older ones of its key all the same: another replica may have dropped these before the mark came. Marks
  stay;
- records of aborted transactions go; a marker goes when nothing is left of its transaction, and the
  horizon that was set when that was first seen has passed;
- what lies at or after the end of the map stays, as far as records are concerned;
- a batch keeps its base and last offset, epoch, producer and sequence. One that has no record left
  goes, unless it is the last one of a producer, whose sequence or epoch would be forgotten with it:
  then its header stays.

Beyond Kafka, which keeps an emptied header at the end of a whole pass, one stays at the end of every
new segment: so a segment ends where the ones it was made from ended, and after a crash it is known
exactly which ones it replaces. It has offsets and epoch only, so that no transaction seems to go on.

A batch that keeps all its records is given back as it came. Otherwise the bytes of the records that
stay are put together anew, and compressed with the batch's codec.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ottla.record.batch import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    LOG_APPEND_TIME,
    MAGIC_BYTE,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORD_COUNT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    HeaderFields,
    assemble,
    build_batch,
    contents,
    parse_records,
)
from ottla.record.compression.codecs import Codec, compress
from ottla.record.legacy import messages
from ottla.record.offset_set import OffsetSet
from ottla.record.spans import RecordSpan, record_spans
from ottla.storage.compaction.offset_map import OffsetMap
from ottla.storage.compaction.plan import SourceSegment
from ottla.storage.compaction.transactions import WalkedTransactions
from ottla.storage.index.transaction_index import AbortedTransaction

# The most that one batch may unfold to: what the broker accepts, too.
DECOMPRESSED_LIMIT = 256 << 20


class LastOfProducer(NamedTuple):
    """What must be left of a producer for the log to know it again."""

    offset: int  # the last one of its last data batch, -1 if that is not remembered
    epoch: int


class BatchFilter:
    """Goes over the batches of a log in order, from the start of the log on."""

    __slots__ = (
        "_delete_retention_ms",
        "_erasable",
        "_map",
        "_map_end",
        "_now_ms",
        "_producers",
        "keeps_old_tombstones",
        "records_dropped",
        "transactions",
    )

    def __init__(
        self,
        offset_map: OffsetMap,
        map_end: int,
        transactions: WalkedTransactions,
        producers: Mapping[int, LastOfProducer],
        now_ms: int,
        delete_retention_ms: int,
        erasable: OffsetSet | None = None,
    ) -> None:
        """`map_end`: the map is complete below this offset. `erasable`: the records that were deleted
        one by one."""
        self._erasable = OffsetSet() if erasable is None else erasable
        self._map = offset_map
        self._map_end = map_end
        self.transactions = transactions
        self._producers = producers
        self._now_ms = now_ms
        self._delete_retention_ms = delete_retention_ms
        # Tombstones of the old formats, which have no horizon: set for each segment.
        self.keeps_old_tombstones = True
        self.records_dropped = 0

    def aborted_in(self, _: list[SourceSegment]) -> list[AbortedTransaction]:
        """The aborted transactions, met since the last call, that have batches left."""
        return self.transactions.take_kept()

    def leave(
        self, batch: memoryview, fields: HeaderFields, is_last: bool
    ) -> memoryview | bytes | None:
        """What is left of a batch, None if nothing is. Of the last one of a segment something is."""
        if fields[MAGIC_BYTE] < 2:
            return self._leave_old(batch, fields, is_last)
        attributes = fields[ATTRIBUTES]
        horizon = fields[BASE_TIMESTAMP] if attributes & DELETE_HORIZON_BIT else None
        if attributes & CONTROL_BIT:
            is_over = self.transactions.control(fields, batch)
            if not fields[RECORD_COUNT] or (
                is_over and horizon is not None and horizon <= self._now_ms
            ):
                return self._leave_none(fields, is_last)
            if is_over and horizon is None:
                return self._with_horizon(batch, fields, None)
            return batch
        if self.transactions.data(fields):
            self.records_dropped += fields[RECORD_COUNT]
            return self._leave_none(fields, is_last)
        return self._leave_records(batch, fields, horizon, is_last)

    def _leave_none(self, fields: HeaderFields, is_last: bool) -> bytes | None:
        """What stays of a batch of which no record does."""
        if self._is_last_of_producer(fields):
            return emptied(fields)
        return placeholder(fields) if is_last else None

    def _is_last_of_producer(self, fields: HeaderFields) -> bool:
        last = self._producers.get(fields[PRODUCER_ID])
        if last is None:
            return False
        if last.offset >= 0:
            return fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] == last.offset
        # All that is known of it is its epoch, from a marker.
        return bool(fields[ATTRIBUTES] & CONTROL_BIT) and fields[PRODUCER_EPOCH] == last.epoch

    def _leave_records(
        self, batch: memoryview, fields: HeaderFields, horizon: int | None, is_last: bool
    ) -> memoryview | bytes | None:
        header = BatchHeader._make(fields)
        data = contents(batch, header, DECOMPRESSED_LIMIT)
        keeps_tombstones = horizon is None or self._now_ms < horizon
        has_tombstones = False
        base_offset = fields[BASE_OFFSET]
        map_end = self._map_end
        last_offset = self._map.last_offset
        erasable = self._erasable
        is_touched = (
            erasable.first_in(base_offset, base_offset + fields[LAST_OFFSET_DELTA] + 1) is not None
        )
        kept: list[RecordSpan] = []
        for span in record_spans(data, fields[RECORD_COUNT]):
            _, _, delta, _, key, has_value = span
            offset = base_offset + delta
            if offset < map_end:
                if is_touched and offset in erasable:
                    continue
                if key is None or offset < last_offset(key):
                    continue
                if not has_value and not keeps_tombstones:
                    continue
            if not has_value:
                has_tombstones = True
            kept.append(span)
        self.records_dropped += fields[RECORD_COUNT] - len(kept)
        if not kept:
            return self._leave_none(fields, is_last)
        if has_tombstones and horizon is None:
            return self._with_horizon(batch, fields, {span[2] for span in kept})
        if len(kept) == fields[RECORD_COUNT]:
            return batch
        payload = b"".join([data[span[0] : span[1]] for span in kept])
        max_timestamp = fields[MAX_TIMESTAMP]
        if header.timestamp_type != LOG_APPEND_TIME:
            max_timestamp = fields[BASE_TIMESTAMP] + max(span[3] for span in kept)
        codec = fields[ATTRIBUTES] & CODEC_MASK
        if codec != Codec.NONE:
            payload = compress(codec, payload)
        return assemble(
            header._replace(max_timestamp=max_timestamp, record_count=len(kept)), payload
        )

    def _with_horizon(
        self, batch: memoryview, fields: HeaderFields, kept: set[int] | None
    ) -> bytes:
        """The batch with a delete horizon, and those of its records whose offset deltas are kept
        (None: all)."""
        header = BatchHeader._make(fields)
        data = contents(batch, header, DECOMPRESSED_LIMIT)
        base_offset = fields[BASE_OFFSET]
        return build_batch(
            [
                record
                for record in parse_records(data, header)
                if kept is None or record.offset - base_offset in kept
            ],
            base_offset=base_offset,
            codec=header.codec,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            leader_epoch=header.partition_leader_epoch,
            transactional=header.is_transactional,
            control=header.is_control,
            timestamp_type=header.timestamp_type,
            last_offset=header.last_offset,
            max_timestamp=header.max_timestamp if header.timestamp_type else None,
            delete_horizon=self._now_ms + self._delete_retention_ms,
        )

    def _leave_old(
        self, entry: memoryview, fields: HeaderFields, is_last: bool
    ) -> memoryview | bytes | None:
        """What is left of a message set. One that loses some of its messages becomes a batch of today's
        format."""
        self.transactions.data(fields)
        last_offset = fields[BASE_OFFSET]
        every = list(messages(entry, DECOMPRESSED_LIMIT))
        kept = [
            record
            for record in every
            if (
                record.offset >= self._map_end
                or (
                    record.offset not in self._erasable
                    and record.key is not None
                    and record.offset >= self._map.last_offset(record.key)
                    and (record.value is not None or self.keeps_old_tombstones)
                )
            )
        ]
        self.records_dropped += len(every) - len(kept)
        if len(kept) == len(every):
            return entry
        if not kept:
            return placeholder(fields) if is_last else None
        return build_batch(
            kept,
            base_offset=kept[0].offset,
            codec=fields[ATTRIBUTES] & CODEC_MASK,
            timestamp_type=(fields[ATTRIBUTES] & TIMESTAMP_TYPE_BIT) >> 3,
            last_offset=last_offset,
        )


def emptied(fields: HeaderFields, max_timestamp: int | None = None) -> bytes:
    """The header alone: offsets, epochs, producer and sequence; with its largest timestamp, unless
    another is given."""
    attributes = fields[ATTRIBUTES]
    return build_batch(
        (),
        base_offset=fields[BASE_OFFSET],
        producer_id=fields[PRODUCER_ID],
        producer_epoch=fields[PRODUCER_EPOCH],
        base_sequence=fields[BASE_SEQUENCE],
        leader_epoch=fields[LEADER_EPOCH],
        transactional=bool(attributes & TRANSACTIONAL_BIT),
        control=bool(attributes & CONTROL_BIT),
        timestamp_type=(attributes & TIMESTAMP_TYPE_BIT) >> 3,
        last_offset=fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA],
        max_timestamp=fields[MAX_TIMESTAMP] if max_timestamp is None else max_timestamp,
    )


def placeholder(fields: HeaderFields) -> bytes:
    """A batch of nobody, that holds the offsets of one which went."""
    return build_batch(
        (),
        base_offset=fields[BASE_OFFSET],
        leader_epoch=fields[LEADER_EPOCH],
        last_offset=fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA],
    )
