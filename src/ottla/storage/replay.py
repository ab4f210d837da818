"""Producer state from the log itself: what lies behind the snapshot that was loaded."""

from __future__ import annotations

from ottla.record.batch import CONTROL_BIT, HeaderFields
from ottla.record.errors import InvalidBatch
from ottla.storage.append import read_marker
from ottla.storage.producer_state import CompletedTransaction, ProducerStates
from ottla.storage.segment import REBUILD_CHUNK
from ottla.storage.segments import Segments


def replay(segments: Segments, producers: ProducerStates, start: int, end: int) -> int:
    """Takes the batches in [start, end) into account; the bytes that were walked over. Only headers
    are read, and the few batches that end transactions."""
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
            last_offset = fields[0] + fields[6]
            if fields[9] >= 0 and start <= last_offset < end:
                batch = segment.file().read(size, at) if fields[5] & CONTROL_BIT else b""
                replay_batch(producers, fields, batch)
            if last_offset + 1 >= end:
                break  # what lies behind it may be torn
    producers.map_end_offset = end
    return walked


def replay_batch(
    producers: ProducerStates, fields: HeaderFields, batch: bytes | memoryview
) -> CompletedTransaction | None:
    """Takes one batch with a producer id into account; `batch` is looked at if it is a control
    batch. The transaction that it ended."""
    last_offset = fields[0] + fields[6]
    if not fields[5] & CONTROL_BIT:
        producers.update(fields, fields[0], last_offset, fields[8], -1)
        return None
    try:
        marker = read_marker(batch)
    except InvalidBatch:
        marker = None  # it was refused or ignored when it was appended, too
    if marker is None:
        return None
    return producers.end_transaction(fields[9], fields[10], marker, last_offset, fields[8], -1)
