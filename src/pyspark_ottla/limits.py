"""How much a micro-batch takes: maxOffsetsPerTrigger, minOffsetsPerTrigger, maxTriggerDelay. No I/O.

As in Spark's own source: the records that a batch may have at most are shared out among partitions in
proportion to what they have waiting, and each partition that has something gets something.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ottla.client.positions import TopicPartition

Offsets = dict[TopicPartition, int]


def waiting(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> Offsets:
    """How many offsets each partition has between the two; those without any are left out."""
    sizes = {each: offset - start[each] for each, offset in end.items() if each in start}
    return {each: size for each, size in sizes.items() if size > 0}


def at_most(
    records: int, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> Offsets:
    """The end of a batch of so many records. `start` has every partition that is to be read."""
    sizes = waiting(start, end)
    total = sum(sizes.values())
    limited = dict(end)
    for partition, size in sizes.items():
        share = records * (size / total)  # in this order: the last digit is that of Spark's own
        # Rounded down, but a small partition is not starved.
        granted = math.ceil(share) if share < 1 else math.floor(share)
        limited[partition] = min(end[partition], start[partition] + granted)
    return limited


class TriggerDelay:
    """Holds batches back until enough has come, or until the last one is long enough ago.

    The first batch of a query's run is never held back.
    """

    def __init__(self, least: int, longest: float) -> None:
        self._least = least
        self._longest = longest  # seconds
        self._last = -math.inf

    def holds_back(self, records: int, now: float) -> bool:
        """Whether a batch of so many records is to wait; `now` in seconds of any clock."""
        if records < self._least and now - self._last < self._longest:
            return True
        self._last = now
        return False
