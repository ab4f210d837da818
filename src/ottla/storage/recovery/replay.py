"""Producer state from a snapshot and the log itself.

A snapshot in Kafka's format has one batch of each producer, but a client that got no answers may send
its last five again. The four before that one are read from the log, where they must be if they were
stored a moment before the snapshot was taken; what lies after the snapshot is replayed.
"""

from __future__ import annotations

import logging

from ottla.logfiles.walk import HEADER_CHUNK
from ottla.record.batch import (
    ATTRIBUTES,
    BASE_OFFSET,
    CONTROL_BIT,
    LAST_OFFSET_DELTA,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    HeaderFields,
)
from ottla.record.errors import InvalidBatch
from ottla.storage.errors import CorruptFile, CorruptIndex
from ottla.storage.index.transaction_index import AbortedTransaction
from ottla.storage.log.append import read_marker
from ottla.storage.log.producer_state import CompletedTransaction, ProducerStates
from ottla.storage.segments.segment import REBUILD_CHUNK, Segment
from ottla.storage.segments.segments import Segments

logger = logging.getLogger(__name__)

# How far back producers' batches are looked for: an index entry stands for one large batch or for
# 4 KiB of small ones, so this is some hundred KiB of headers at most, whatever is stored.
RECALLED_ENTRIES = 128


def reload(segments: Segments, producers: ProducerStates, start: int, end: int, now_ms: int) -> int:
    """Brings the producers to the state of a log with the range [start, end), by a snapshot and by
    what the log says; the bytes that were walked over for what lies after the snapshot."""
    replay_from = producers.truncate_and_reload(start, end, now_ms)
    if producers.thinned:
        recall(segments, producers, start, replay_from)
    return replay(segments, producers, max(replay_from, start), end, now_ms)


def recall(segments: Segments, producers: ProducerStates, start: int, end: int) -> None:
    """Looks for the batch of each producer that a snapshot at `end` had, and those before it."""
    wanted = {state.producer_id for state in producers.producers.values() if state.batches}
    # Mostly they are among the very last.
    for entries in (RECALLED_ENTRIES // 8, RECALLED_ENTRIES):
        while wanted and entries > 0 and end > start:
            segment = segments[segments.slot_of(end - 1)]
            try:
                end, entries = _recall_from(segment, producers, wanted, end, entries)
            except CorruptFile as error:
                # Who reads there will be told; until then less is known of the producers.
                logger.warning("producers' earlier batches were not found: %s", error)
                end = start
    producers.thinned = False


def _recall_from(
    segment: Segment, producers: ProducerStates, wanted: set[int], end: int, entries: int
) -> tuple[int, int]:
    """Recall batches of producers from the last index entries below `end` in one segment. Returns up to
    where there may be more, and how many entries may still be looked at. Producers of which all is known
    are `wanted` no longer."""
    if not segment.size:
        return segment.base_offset, entries
    offset, left = segment.offset_index.entry_back_from(end - 1, entries)
    position = segment.batch_before(offset)
    is_dense = segment.size - position <= RECALLED_ENTRIES * HEADER_CHUNK
    begin = segment.base_offset
    found: dict[int, list[HeaderFields]] = {}
    for at, _, fields in segment.walk(position, REBUILD_CHUNK if is_dense else HEADER_CHUNK):
        if fields[BASE_OFFSET] >= end:
            break
        if at == position and position:
            begin = fields[BASE_OFFSET]
        if fields[PRODUCER_ID] in wanted and not fields[ATTRIBUTES] & CONTROL_BIT:
            found.setdefault(fields[PRODUCER_ID], []).append(fields)
    for producer_id, batches in found.items():
        if producers.recall(producer_id, batches):
            wanted.discard(producer_id)
    return begin, left


def replay(segments: Segments, producers: ProducerStates, start: int, end: int, now_ms: int) -> int:
    """Takes the batches in [start, end) into account, whose producers count as heard of now; the bytes
    that were walked over. Only headers are read, and the few batches that end transactions."""
    walked = 0
    if start >= end:
        producers.map_end_offset = end
        return walked
    for segment in segments.from_offset(start):
        if segment.base_offset >= end:
            break
        if not segment.size:
            continue
        position = segment.batch_before(start) if start > segment.base_offset else 0
        walked += segment.size - position
        for at, size, fields in segment.walk(position, REBUILD_CHUNK):
            last_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
            if fields[PRODUCER_ID] >= 0 and start <= last_offset < end:
                batch = segment.file().read(size, at) if fields[ATTRIBUTES] & CONTROL_BIT else b""
                replay_batch(producers, fields, batch, now_ms)
            if last_offset + 1 >= end:
                break  # what lies after it may be torn
    producers.map_end_offset = end
    return walked


def replay_batch(
    producers: ProducerStates, fields: HeaderFields, batch: bytes | memoryview, now_ms: int
) -> CompletedTransaction | None:
    """Takes one batch with a producer id into account; `batch` is looked at if it is a control
    batch. The transaction that it ended."""
    last_offset = fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA]
    if not fields[ATTRIBUTES] & CONTROL_BIT:
        producers.update(fields, fields[BASE_OFFSET], last_offset, fields[MAX_TIMESTAMP], now_ms)
        return None
    try:
        marker = read_marker(batch)
    except InvalidBatch:
        marker = None  # it was refused or ignored when it was appended, too
    if marker is None:
        return None
    return producers.end_transaction(
        fields[PRODUCER_ID],
        fields[PRODUCER_EPOCH],
        marker,
        last_offset,
        fields[MAX_TIMESTAMP],
        now_ms,
    )


def mend_transaction_indexes(
    segments: Segments, producers: ProducerStates, start: int, from_offset: int
) -> None:
    """Makes the transaction indexes anew that are corrupt, of the segments that may hold records at
    or after `from_offset`, in a log that starts at `start`."""
    for segment in segments.from_offset(from_offset):
        try:
            segment.transaction_index.sanity_check()
        except CorruptIndex as error:
            logger.warning("%s; made anew from the log", error)
            rebuild_transaction_index(segments, segment, producers, start)


def rebuild_transaction_index(
    segments: Segments, segment: Segment, producers: ProducerStates, start: int
) -> None:
    """The aborted transactions that end in a segment, by the snapshot at its beginning and the
    batches in it. (Without that snapshot: by an earlier one, and all batches from there on.) Changes
    neither the producers nor their snapshots."""
    then = producers.as_of(segment.base_offset)
    begin = max(start, then.map_end_offset)
    aborted: list[AbortedTransaction] = []
    for each in segments.from_offset(begin):
        if each.base_offset > segment.base_offset:
            break
        if not each.size:
            continue
        for at, size, fields in each.walk(each.batch_before(begin), REBUILD_CHUNK):
            if fields[PRODUCER_ID] < 0 or fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] < begin:
                continue
            batch = each.file().read(size, at) if fields[ATTRIBUTES] & CONTROL_BIT else b""
            ended = replay_batch(then, fields, batch, 0)
            if ended is not None and ended.aborted and each is segment:
                aborted.append(
                    AbortedTransaction(
                        ended.producer_id,
                        ended.first_offset,
                        ended.last_offset,
                        ended.last_stable_offset,
                    )
                )
    segment.transaction_index.replace(aborted)
