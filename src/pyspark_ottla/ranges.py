"""Which offsets are read, and how they are divided among Spark's partitions. No I/O.

The ends are fixed when the query is planned, so all its tasks read one snapshot. Under
read_committed a partition ends at its last stable offset: what open transactions have written so far
belongs to a later query.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.client.positions import TopicPartition
from pyspark_ottla.errors import DataLost, OptionError
from pyspark_ottla.options import EARLIEST, LATEST, AnyOffsets, Bound, SourceOptions

logger = logging.getLogger(__name__)


class Range(NamedTuple):
    """The offsets of a partition from `start` up to, not including, `end`."""

    partition: TopicPartition
    start: int
    end: int
    topic_id: str | None = None  # of the topic that is meant; None: that is not known

    @property
    def size(self) -> int:
        return self.end - self.start


class HeldOffsets(NamedTuple):
    """What a partition holds: its first offset, and the one after the last that may be read."""

    first: int
    end: int


def for_each(
    given: AnyOffsets, bound: Bound, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """What an option says of each partition; those that it names must be those that are read."""
    partitions = sorted(partitions)
    if isinstance(given, int):
        return dict.fromkeys(partitions, given)
    missing = [each for each in partitions if each not in given]
    if missing:
        raise OptionError(
            f"{bound.option} must name every partition that is read, and {missing[0]} is missing; "
            "in offsets, -2 stands for earliest and -1 for latest"
        )
    unknown = sorted(set(given) - set(partitions))
    if unknown:
        raise OptionError(f"{bound.option} names {unknown[0]}, which is not among what is read")
    return given


def ranges_between(
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    held: Mapping[TopicPartition, HeldOffsets],
    options: SourceOptions,
) -> list[Range]:
    """What is to be read of each partition; DataLost where part of it is not there.

    `starts` and `ends` are offsets, EARLIEST or LATEST.
    """
    ranges = []
    for partition in sorted(held):
        first, last = held[partition]
        start = _resolved(starts[partition], first, last)
        end = _resolved(ends[partition], first, last)
        if start < first and start < end:
            problem = (
                f"{partition} begins at offset {first}, and {options.start.option} says {start}"
            )
            lost(f"{problem}: retention may have taken what is missing", options)
            start = min(first, end)
        limit = "its last stable offset" if options.committed_only else "its end"
        if start > last:
            where = f"after {limit} {last}"
            lost(f"{options.start.option} says {start} for {partition}, {where}", options)
        if end > last:
            lost(f"{options.end.option} says {end} for {partition}, after {limit} {last}", options)
            end = last
        ranges.append(Range(partition, min(start, end), end))
    return ranges


def _resolved(offset: int, first: int, last: int) -> int:
    if offset == EARLIEST:
        return first
    return last if offset == LATEST else offset


def lost(problem: str, options: SourceOptions) -> None:
    """Something is not there: an error or a warning, as failOnDataLoss says."""
    if options.fail_on_data_loss:
        raise DataLost(f"{problem}; with failOnDataLoss=false the rest is read all the same")
    logger.warning("%s; failOnDataLoss is false, so the rest is read", problem)


def divided(
    ranges: Iterable[Range], min_partitions: int | None, max_records: int | None
) -> list[Range]:
    """The ranges that are not empty, in pieces: at least so many, none larger than so many records.

    Offsets stand for records: in compacted topics a piece may have fewer.
    """
    ranges = [each for each in ranges if each.size > 0]
    pieces = {each: 1 if max_records is None else -(-each.size // max_records) for each in ranges}
    missing = (min_partitions or 0) - sum(pieces.values())
    # The range whose pieces are largest is cut into one piece more, again and again.
    heap = [(-each.size / count, each) for each, count in pieces.items() if each.size > count]
    heapq.heapify(heap)
    while missing > 0 and heap:
        _, largest = heap[0]
        pieces[largest] += 1
        missing -= 1
        if largest.size > pieces[largest]:
            heapq.heapreplace(heap, (-largest.size / pieces[largest], largest))
        else:
            heapq.heappop(heap)
    return [piece for each in ranges for piece in _cut(each, pieces[each])]


def _cut(whole: Range, count: int) -> Iterable[Range]:
    for number in range(count):
        start = whole.start + whole.size * number // count
        end = whole.start + whole.size * (number + 1) // count
        yield whole._replace(start=start, end=end)
