"""Some records of a topic, by which the columns of its table are found.

A small topic is looked at whole. Of a larger one, records are taken in stretches from its beginning to
its end, in every partition as many as its share: what was written last week counts as much as what
came last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla.client.admin.client import Admin
from ottla.client.consumer import Consumer
from ottla.client.errors import OffsetOutOfRange
from ottla.client.positions import EARLIEST, LATEST, TopicPartition

RECORDS: Final = 5000  # that are looked at, all partitions together
STRETCHES: Final = 8
_BYTES: Final = 32 * 1024 * 1024  # of values at most

Bounds = tuple[int, int]


@dataclass
class Sample:
    """The keys and values that there are."""

    keys: list[bytes] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)


def sampled(admin: Admin, consumer: Consumer, topic: str) -> Sample:
    """Records from all over a topic. Raises TopicNotFound."""
    described = admin.describe_topics(topic)[topic]
    partitions = [TopicPartition(topic, each.partition) for each in described.partitions]
    firsts = admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
    ends = admin.list_offsets(dict.fromkeys(partitions, LATEST))
    bounds = {
        each.partition: (firsts[each].offset or 0, ends[each].offset or 0) for each in partitions
    }
    sample = Sample()
    room = _BYTES
    for stretch in stretches(bounds):
        starts = {partition: first for partition, (first, _) in stretch.items()}
        limits = {partition: end for partition, (_, end) in stretch.items()}
        try:
            with consumer.scan(topic, starts, limits, columns=["key", "value"]) as batches:
                for batch in batches:
                    sample.keys += batch.column("key").drop_null().to_pylist()
                    values = batch.column("value").drop_null().to_pylist()
                    sample.values += values
                    room -= sum(map(len, values))
                    if room < 0:
                        break
        except OffsetOutOfRange:
            continue  # retention was there first
        if room < 0:
            break
    return sample


def stretches(bounds: Mapping[int, Bounds]) -> Iterator[dict[int, Bounds]]:
    """What to read of partitions that hold the offsets from the first to, not including, the end."""
    held = {each: (first, end) for each, (first, end) in bounds.items() if end > first}
    total = sum(end - first for first, end in held.values())
    if not total:
        return
    if total <= RECORDS:
        yield held
        return
    for number in range(STRETCHES):
        stretch = {}
        for partition, (first, end) in held.items():
            size = end - first
            length = min(size, max(1, RECORDS * size // total // STRETCHES))
            begin = first + (size - length) * number // (STRETCHES - 1)
            stretch[partition] = (begin, begin + length)
        yield stretch
