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
from ottla.server.turns import Turns
from ottla.storage.errors import NotInMemory
from ottla.storage.segments.file import SegmentFile, Slice
from ottla.storage.segments.segments import TimedBatch, TimedOffset, unreadable

if TYPE_CHECKING:
    from ottla.record.batch import HeaderFields
    from ottla.record.offset_set import OffsetRange
    from ottla.server.broker import Broker
    from ottla.storage.log.log import Log

# Searches a batch's bytes, with a `limit` to what it may unfold to.
Search = Callable[..., tuple[int, int] | None]

# What the loop unpacks by itself: some hundred microseconds of work at most.
INLINE_RECORDS = 200
INLINE_BYTES = 64 << 10
# Should memory be so short that what was brought is gone at once, the search is to end all the same.
SEARCH_STEPS = 10_000


class NotAtOnce(Exception):
    """The answer takes the disk, a worker process, or a longer search."""


def offset_for_time_at_once(broker: Broker, log: Log, timestamp: int) -> TimedOffset | None:
    """As `offset_for_time`, where the first batch that is found has the record, is in memory and small:
    that is nearly always so, and needs no task of its own. NotAtOnce elsewhere."""
    start = log.log_start_offset
    try:
        found = log.batch_for_time(timestamp, start, wait=False)
    except NotInMemory:
        raise NotAtOnce from None
    if found is None:
        return None
    batch = broker.reads.read_at_once(found.piece)
    if batch is None:
        raise NotAtOnce
    try:
        timed = _search_here(found, batch, _for_time(log, found, timestamp, start), start)
    except TooLarge:
        raise NotAtOnce from None
    if timed is None:
        raise NotAtOnce
    return timed


async def offset_for_time(broker: Broker, log: Log, timestamp: int) -> TimedOffset | None:
    """The first record that is not older than the timestamp; None if all are."""
    start = log.log_start_offset
    turns = Turns()
    while (found := await _batch(broker, log, timestamp, start)) is not None:
        timed = await _look_into(broker, found, _for_time(log, found, timestamp, start), start)
        if timed is not None:
            return timed
        start = found.end_offset
        if log.deletions is not None:
            start = log.deletions.invisible.first_out(start)
        # There may be very many batches whose newest records were deleted, all of them in memory.
        await turns.pause()
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
    turns = Turns()
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
            await turns.pause()
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


def _for_time(log: Log, found: TimedBatch, timestamp: int, start: int) -> Search:
    return partial(
        first_not_older,
        timestamp=timestamp,
        start_offset=start,
        hidden=_hidden(log, found.fields),
    )


async def _look_into(
    broker: Broker, found: TimedBatch, search: Search, start: int
) -> TimedOffset | None:
    """Search the records of a batch."""
    batch = await broker.reads.read(found.piece)
    try:
        return _search_here(found, batch, search, start)
    except TooLarge:
        pass
    try:
        record = await broker.workers.run(partial(search, batch, limit=workers.DECOMPRESSED_LIMIT))
    except InvalidBatch:
        return unreadable(found.fields, start)
    return None if record is None else TimedOffset(*record, found.fields[LEADER_EPOCH])


def _search_here(found: TimedBatch, batch: bytes, search: Search, start: int) -> TimedOffset | None:
    """Search the records of a batch on the loop; TooLarge if that would keep it busy."""
    fields = found.fields
    if found.piece.length > INLINE_BYTES or fields[RECORD_COUNT] > INLINE_RECORDS:
        raise TooLarge("not here")
    try:
        record = search(batch, limit=INLINE_BYTES)
    except TooLarge:
        raise
    except InvalidBatch:
        return unreadable(fields, start)
    return None if record is None else TimedOffset(*record, fields[LEADER_EPOCH])
