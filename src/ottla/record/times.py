"""The search for a time inside of one batch, which has to unpack it: not for the event loop, unless the
batch is small. Plain values in and out, so that a worker process can do it."""

from __future__ import annotations

from ottla.record.batch import MAGIC, MAGIC_AT, Buffer, records
from ottla.record.codecs import DEFAULT_LIMIT


def first_not_older(
    batch: Buffer, timestamp: int, start_offset: int, limit: int = DEFAULT_LIMIT
) -> tuple[int, int] | None:
    """Timestamp and offset of the first record of a batch (or of an entry of an old message set) that
    is not older, at or after `start_offset`; None if there is none. InvalidBatch."""
    if batch[MAGIC_AT] == MAGIC:
        found = records(batch, limit)
    else:
        from ottla.record.legacy import messages  # rarely needed

        found = messages(batch, limit)
    for record in found:
        if record.timestamp >= timestamp and record.offset >= start_offset:
            return record.timestamp, record.offset
    return None
