"""The search for a record by its time, with the disk and the unpacking kept off the loop.

Where to look is found on the loop, in indexes and headers that are in memory; what is not is brought
there by a thread, and the search begins again. The one batch (rarely more) that has to be unpacked is
read by a thread; a small one is unpacked here, any other in a worker process.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ottla.logfiles.walk import HEADER_CHUNK
from ottla.record.batch import (
    LEADER_EPOCH,
    RECORD_COUNT,
)
from ottla.record.errors import InvalidBatch, TooLarge
from ottla.record.times import first_not_older
from ottla.server.disk import workers
from ottla.storage.errors import NotInMemory
from ottla.storage.segments import TimedBatch, TimedOffset, unreadable

if TYPE_CHECKING:
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
        timed = await _record(broker, found, timestamp, start)
        if timed is not None:
            return timed
        start = found.end_offset
    return None


async def offset_of_max_timestamp(broker: Broker, log: Log) -> TimedOffset | None:
    """The first record with the largest timestamp; None if no record has one."""
    await load(broker, log)
    newest = log.max_timestamp()
    return None if newest < 0 else await offset_for_time(broker, log, newest)


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
    broker: Broker, found: TimedBatch, timestamp: int, start: int
) -> TimedOffset | None:
    fields = found.fields
    batch = await broker.reads.read(found.piece)
    search = partial(first_not_older, batch, timestamp, start)
    try:
        try:
            if found.piece.length > INLINE_BYTES or fields[RECORD_COUNT] > INLINE_RECORDS:
                raise TooLarge("not here")
            record = search(INLINE_BYTES)
        except TooLarge:
            record = await broker.workers.run(partial(search, workers.DECOMPRESSED_LIMIT))
    except InvalidBatch:
        return unreadable(fields, start)
    return None if record is None else TimedOffset(*record, fields[LEADER_EPOCH])
