"""The offsets of a streaming query: as Spark keeps them in checkpoints, and what is between two. No I/O.

In checkpoints and in the progress of a query they are what Spark's own source writes,
`{"orders": {"0": 23, "1": 5}}`: the next offset to be read of each partition. So a checkpoint of
either source is continued by the other.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ottla.client.positions import TopicPartition
from pyspark_ottla.errors import SourceError
from pyspark_ottla.limits import Offsets
from pyspark_ottla.options import SourceOptions
from pyspark_ottla.ranges import Range, lost


class CheckpointError(SourceError, ValueError):
    """What a checkpoint holds is no offset of this source."""


def offsets_in(found: Mapping[str, Any]) -> Offsets:
    """The offsets that Spark hands over."""
    offsets = {}
    try:
        for topic, partitions in found.items():
            for partition, offset in partitions.items():
                offsets[TopicPartition(topic, int(partition))] = int(offset)
    except (AttributeError, TypeError, ValueError):
        raise CheckpointError(
            f"the checkpoint has {json.dumps(found)}, which is not of the form "
            '{"topic": {"0": 23}}: it is that of another kind of source'
        ) from None
    return offsets


def as_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """The offsets for Spark. In order: it compares them as text."""
    found: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offsets):
        found.setdefault(topic, {})[str(partition)] = offsets[TopicPartition(topic, partition)]
    return found


def check_gone(
    start: Collection[TopicPartition], end: Iterable[TopicPartition], options: SourceOptions
) -> None:
    """Partitions that were read, and are not there any more, are data loss."""
    gone = sorted(set(start) - set(end))
    if gone:
        what = f"{gone[0]} is gone"
        if len(gone) > 1:
            others = "another partition" if len(gone) == 2 else f"{len(gone) - 1} other partitions"
            what = f"{gone[0]} and {others} are gone"
        lost(f"{what}: the topic was deleted, or is no longer asked for", options)


def batch_ranges(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    firsts: Mapping[TopicPartition, int],
    renewed: Collection[TopicPartition],
    options: SourceOptions,
) -> list[Range]:
    """What a micro-batch reads; DataLost where part of it is not there.

    `firsts` are the first offsets of partitions that are new or renewed, as far as they are there;
    `renewed` are those whose topic was deleted and made anew since the last batch, or seems to.
    """
    check_gone(start.keys(), end.keys(), options)
    ranges = []
    for partition in sorted(end):
        if partition in renewed:
            lost(
                f"{partition} was deleted and made anew, or lost records: it was read up to offset "
                f"{start.get(partition, 0)}, and the batch ends at {end[partition]}",
                options,
            )
            begin = firsts.get(partition)
        elif partition in start:
            begin = start[partition]
        else:
            begin = firsts.get(partition)
            if begin:
                lost(f"{partition} is new, and begins at offset {begin} in place of 0", options)
        if begin is None:
            lost(f"{partition} is gone: the topic was deleted", options)
        elif begin < end[partition]:
            ranges.append(Range(partition, begin, end[partition]))
    return ranges
