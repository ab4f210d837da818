"""The search for a time inside of one batch, which has to unpack it: not for the event loop, unless the
batch is small. Plain values in and out, so that a worker process can do it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ottla.record.batch import MAGIC, MAGIC_AT, Buffer, Record, records
from ottla.record.compression.codecs import DEFAULT_LIMIT
from ottla.record.deletion import hides
from ottla.record.offset_set import OffsetRange


def first_not_older(
    batch: Buffer,
    timestamp: int,
    start_offset: int,
    limit: int = DEFAULT_LIMIT,
    hidden: Sequence[OffsetRange] = (),
) -> tuple[int, int] | None:
    """Timestamp and offset of the first record of a batch (or of an entry of an old message set) that
    is not older, at or after `start_offset`; None if there is none. `hidden` offsets, in order, count
    as none. InvalidBatch."""
    for record in _records(batch, limit):
        if (
            record.timestamp >= timestamp
            and record.offset >= start_offset
            and not (hidden and hides(hidden, record.offset, record.offset))
        ):
            return record.timestamp, record.offset
    return None


def newest(
    batch: Buffer, start_offset: int, limit: int, hidden: Sequence[OffsetRange]
) -> tuple[int, int] | None:
    """Timestamp and offset of the first of the records with the largest timestamp, likewise."""
    best: tuple[int, int] | None = None
    for record in _records(batch, limit):
        if record.offset < start_offset or hides(hidden, record.offset, record.offset):
            continue
        if best is None or record.timestamp > best[0]:
            best = record.timestamp, record.offset
    return best


def _records(batch: Buffer, limit: int) -> Iterator[Record]:
    if batch[MAGIC_AT] == MAGIC:
        return records(batch, limit)
    from ottla.record.legacy import messages  # rarely needed

    return messages(batch, limit)
