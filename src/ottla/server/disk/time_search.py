"""The search for a record by its time, with the disk and the unpacking kept off the loop.

Where to look is found on the loop, in indexes and headers that are in memory; what is not is brought
there by a thread, and the search begins again. The one batch (rarely more) that has to be unpacked is
read by a thread; a small one is unpacked here, any other in a worker process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ottla.logfiles.walk import CHECK_CHUNK, HEADER_CHUNK, walk
from ottla.record.batch import (
    BASE_OFFSET,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    MAGIC,
    MAGIC_BYTE,
    MAX_TIMESTAMP,
    RECORD_COUNT,
)
from ottla.record.errors import InvalidBatch, TooLarge
from ottla.record.times import first_not_older, newest
from ottla.server.disk import workers
from ottla.storage.errors import NotInMemory
from ottla.storage.segment_file import SegmentFile, Slice
from ottla.storage.segments import TimedBatch, TimedOffset, unreadable

if TYPE_CHECKING:
    from ottla.record.batch import HeaderFields
    from ottla.record.offset_set import OffsetRange
    from ottla.server.broker import Broker
    from ottla.storage.log import Log

# What the loop unpacks by itself: some hundred microseconds of work at most.
INLINE_RECORDS = 200
INLINE_BYTES = 64 << 10
# Should memory be so short that what was brought is gone at once, the search is to end all the same.
SEARCH_STEPS = 10_000


async def offset_for_time(broker: Broker, log: Log, timestamp: int) -> TimedOffset | None:
    """The first record that is not older than the timestamp; None if all are."""
    start = log.log_start_offset
    while (found := await _batch(broker, log, timestamp, start)) is not None:
        timed = await _record(broker, log, found, timestamp, start)
        if timed is not None:
            return timed
        start = found.end_offset
    return None


async def offset_of_max_timestamp(broker: Broker, log: Log) -> TimedOffset | None:
    """The first record with the largest timestamp; None if no record has one."""
    await load(broker, log)
    newest = log.max_timestamp()
    if newest < 0:
        return None
    found = await offset_for_time(broker, log, newest)
    if found is None and log.deletions is not None:
        return await _newest_visible(broker, log)
    return found


async def _newest_visible(broker: Broker, log: Log) -> TimedOffset | None:
    """The same where the record with the largest timestamp was deleted, and not yet erased: batch by
    batch, those that claim the largest timestamps first."""
    best: TimedOffset | None = None
    start = log.log_start_offset
    segments = [each for each in log.segments.from_offset(start) if each.size]
    for segment in sorted(segments, key=lambda each: -each.max_timestamp):
        if best is not None and segment.max_timestamp < best.timestamp:
            break
        file = segment.file()
        batches = await broker.loop.run_in_executor(
            broker.threads, partial(_by_time, file, segment.size)
        )
        for timestamp, at, size, fields in batches:
            if best is not None and timestamp < best.timestamp:
                break
            if fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] < start:
                continue
            timed = await _look_into(
                broker,
                TimedBatch(Slice(file, at, size, size, segment), fields),
                partial(newest, start_offset=start, hidden=_hidden(log, fields)),
                start,
            )
            if timed is not None and (
                best is None or (timed.timestamp, -timed.offset) > (best.timestamp, -best.offset)
            ):
                best = timed
    return best


def _by_time(file: SegmentFile, size: int) -> list[tuple[int, int, int, HeaderFields]]:
    """Timestamp, position, size and header of a segment's batches, the newest first."""
    found = [
        (fields[MAX_TIMESTAMP], at, length, fields)
        for at, length, fields in walk(file, 0, size, CHECK_CHUNK)
    ]
    return sorted(found, key=lambda each: (-each[0], each[1]))


def _hidden(log: Log, fields: HeaderFields) -> list[OffsetRange]:
    """What is deleted of a batch. Of a set of the old formats, where its offsets begin is not known."""
    if log.deletions is None:
        return []
    first = fields[BASE_OFFSET] if fields[MAGIC_BYTE] == MAGIC else log.log_start_offset
    return log.deletions.invisible.between(
        first, fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1
    )


async def load(broker: Broker, log: Log) -> None:
    """Loads what is needed to know the largest timestamp of each segment."""
    for _ in range(SEARCH_STEPS):
        try:
            log.max_timestamp(wait=False)
            return
        except NotInMemory as missing:
            await broker.reads.load(missing, HEADER_CHUNK)


async def _batch(broker: Broker, log: Log, timestamp: int, start: int) -> TimedBatch | None:
    for _ in range(SEARCH_STEPS):
        try:
            return log.batch_for_time(timestamp, start, wait=False)
        except NotInMemory as missing:
            await broker.reads.load(missing, HEADER_CHUNK)
    return log.batch_for_time(timestamp, start)


async def _record(
    broker: Broker, log: Log, found: TimedBatch, timestamp: int, start: int
) -> TimedOffset | None:
    search = partial(
        first_not_older,
        timestamp=timestamp,
        start_offset=start,
        hidden=_hidden(log, found.fields),
    )
    return await _look_into(broker, found, search, start)


async def _look_into(
    broker: Broker,
    found: TimedBatch,
    search: Callable[..., tuple[int, int] | None],
    start: int,
) -> TimedOffset | None:
    """Search the records of a batch."""
    fields = found.fields
    batch = await broker.reads.read(found.piece)
    try:
        try:
            if found.piece.length > INLINE_BYTES or fields[RECORD_COUNT] > INLINE_RECORDS:
                raise TooLarge("not here")
            record = search(batch, limit=INLINE_BYTES)
        except TooLarge:
            record = await broker.workers.run(
                partial(search, batch, limit=workers.DECOMPRESSED_LIMIT)
            )
    except InvalidBatch:
        return unreadable(fields, start)
    return None if record is None else TimedOffset(*record, fields[LEADER_EPOCH])
