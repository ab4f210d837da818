"""Is a log what it should be? Reads every byte of it and compares data, indexes and memory.

For tools and tests; a broker never needs it. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ottla.logfiles.walk import walk_checked
from ottla.record.batch import BASE_OFFSET, LAST_OFFSET_DELTA, MAX_TIMESTAMP
from ottla.record.errors import InvalidBatch
from ottla.storage.errors import CorruptIndex
from ottla.storage.log.readable import ReadableLog
from ottla.storage.segments.segment import Segment


class Problem(NamedTuple):
    """One thing that is wrong, and in which file."""

    path: str
    text: str


class _Batch(NamedTuple):
    position: int
    last_offset: int
    # The largest timestamp up to and with this batch, and the last offset of the batch that has it.
    max_timestamp: int
    offset_of_max_timestamp: int


def verify_log(log: ReadableLog) -> Iterator[Problem]:
    """All problems of a log that is online."""
    next_offset = log.segments[0].base_offset
    for slot, segment in enumerate(log.segments):
        if segment.base_offset < next_offset:
            yield Problem(segment.path, f"begins before {next_offset}, where the last one ends")
        end = log.segments.end_of(slot, log.log_end_offset)
        batches: list[_Batch] = []
        yield from verify_segment(segment, batches, end)
        if batches:
            next_offset = batches[-1].last_offset + 1
    if log.active.size and next_offset != log.log_end_offset:
        yield Problem(log.folder, f"ends at {next_offset}, not at {log.log_end_offset}")
    if not log.log_start_offset <= log.high_watermark <= log.log_end_offset:
        yield Problem(
            log.folder,
            f"start {log.log_start_offset}, high watermark {log.high_watermark}, "
            f"end {log.log_end_offset} are out of order",
        )


def verify_segment(segment: Segment, batches: list[_Batch], end: int) -> Iterator[Problem]:
    """Problems of one segment, whose records lie below `end`; appends what it found to `batches`."""
    timestamp, offset_of_timestamp = -1, segment.base_offset
    next_offset = segment.base_offset
    if segment.size:
        try:
            for position, _, fields, _ in walk_checked(segment.file(), 0, segment.size):
                base_offset = fields[BASE_OFFSET]
                last_offset = base_offset + fields[LAST_OFFSET_DELTA]
                if base_offset < next_offset or last_offset >= end:
                    yield Problem(
                        segment.path,
                        f"batch {base_offset}..{last_offset} at {position}, "
                        f"outside of {next_offset}..{end}",
                    )
                if fields[MAX_TIMESTAMP] > timestamp:
                    timestamp, offset_of_timestamp = fields[MAX_TIMESTAMP], last_offset
                batches.append(_Batch(position, last_offset, timestamp, offset_of_timestamp))
                next_offset = last_offset + 1
        except InvalidBatch as error:
            yield Problem(segment.path, f"after offset {next_offset - 1}: {error.reason}")
    try:
        for index in segment.indexes:
            index.verify()
        yield from _verify_entries(segment, batches)
    except CorruptIndex as error:
        yield Problem(error.path, error.reason)
    if batches and segment.max_timestamp != batches[-1].max_timestamp:
        yield Problem(
            segment.path,
            f"largest timestamp is {batches[-1].max_timestamp}, not {segment.max_timestamp}",
        )


def _verify_entries(segment: Segment, batches: list[_Batch]) -> Iterator[Problem]:
    last_offset_at = {batch.position: batch.last_offset for batch in batches}
    for offset, position in segment.offset_index.entries():
        if last_offset_at.get(position) != offset:
            yield Problem(
                segment.offset_index.path, f"no batch at {position} that ends with offset {offset}"
            )
    times = {(batch.max_timestamp, batch.offset_of_max_timestamp) for batch in batches}
    for timestamp, offset in segment.time_index.entries():
        if (timestamp, offset) not in times:
            yield Problem(
                segment.time_index.path,
                f"({timestamp}, {offset}) is no largest timestamp up to any batch",
            )
    positions = {batch.last_offset: batch.position for batch in batches}
    for offset, position in zip(segment.tail_last_offsets, segment.tail_positions, strict=True):
        if positions.get(offset) != position:
            yield Problem(segment.path, f"the tail in memory has {offset} at {position}")
