"""What a fetch cannot send at once: what is not in memory, or has to be changed before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.server.failures import error_code
from ottla.server.handlers.records.fetch.reader import EMPTY
from ottla.server.turns import Turns
from ottla.storage.errors import NotInMemory, StorageError

if TYPE_CHECKING:
    from ottla.server.handlers.records.fetch.found import Found
    from ottla.server.handlers.records.fetch.reader import Reader

# An index and a few KiB of a segment are what a search reads. Should memory be so short that what
# was brought is gone at once, it is to end all the same.
SEARCH_STEPS = 4


async def complete(reader: Reader, found: list[Found], convert: bool, many: bool) -> None:
    """Have what is not in memory brought there; convert for old clients in a worker process."""
    turns = Turns()
    reads, workers = reader.broker.reads, reader.broker.workers
    for at, each in enumerate(found):
        await turns.pause()
        if each.missing is not None:
            try:
                each = found[at] = await _find(reader, each, each.missing)
            except OSError as error:
                fail(each, error)
        if each.is_masked and each.piece is not None:
            try:
                each = found[at] = await _unmask(reader, each)
            except (StorageError, OSError, ValueError) as error:
                fail(each, error)
        if each.piece is None or (each.answer.records is not EMPTY and not convert):
            continue
        try:
            if convert:
                raw = each.answer.records
                if not isinstance(raw, bytes) or not raw:
                    raw = await reads.read(each.piece)
                magic = 0 if reader.version < 2 else 1
                each.answer.records = await workers.downgrade(raw, magic, each.watched.fetch_offset)
            else:
                # Of many, it has not been tried yet whether they are in memory.
                records = reads.take(each.piece) if many else None
                if records is None:
                    records = await reads.take_cold(each.piece)
                each.answer.records = records
        except (StorageError, OSError, ValueError) as error:
            fail(each, error)


async def _find(reader: Reader, found: Found, missing: NotInMemory | None) -> Found:
    """Look again, with what the search needs brought into memory before each step of it."""
    for attempt in range(SEARCH_STEPS):
        assert missing is not None
        await reader.broker.reads.load(missing, found.limit)
        last = attempt == SEARCH_STEPS - 1
        again = reader.look_at(
            found.watched, found.limit, found.at_least_one, wait=last, start=found.start
        )
        missing = again.missing
        if missing is None:
            break
    return again


async def _unmask(reader: Reader, found: Found) -> Found:
    """Bring what was found without the records that were deleted. Where none is left, look on
    after it."""
    while found.is_masked and found.piece is not None:
        piece, partition = found.piece, found.partition
        assert partition is not None
        raw = await reader.broker.reads.read(piece)
        log = partition.log
        first = int.from_bytes(raw[:8], "big", signed=True)
        hidden = (
            []
            if log.deletions is None
            else log.deletions.invisible.between(first, log.end_bound(piece))
        )
        seen = await reader.broker.workers.visible(raw, hidden)
        if seen.batches:
            found.answer.records = seen.batches
            break
        found = reader.look_at(
            found.watched, found.limit, found.at_least_one, start=seen.end_offset
        )
        if found.missing is not None:
            found = await _find(reader, found, found.missing)
    return found


def fail(found: Found, error: Exception) -> None:
    """What was found cannot be had."""
    found.answer.error_code = error_code(error)
    found.piece = None
