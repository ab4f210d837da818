"""The lag of a streaming query: how many records it has still to read.

    query = frame.writeStream….start()
    sum(lag(query).values())                  # as of its last batch
    with Admin("localhost:9092") as admin:
        lag(query, admin)                     # as of now: {TopicPartition("orders", 0): 17, …}

Spark's progress has metrics for this, which stay empty for sources written in Python. But it has the
offsets. It works for queries that read with Spark's own Kafka source, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ottla.client.admin.client import Admin
from ottla.client.offset_lookup import Isolation
from ottla.client.positions import LATEST, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def lag(
    query: StreamingQuery, admin: Admin | None = None, *, isolation: Isolation = "read_committed"
) -> dict[TopicPartition, int]:
    """How many offsets each partition has that the query has not processed yet.

    With an admin client the brokers are asked where partitions end now (`isolation` as the query
    has it: under read_committed that is the last stable offset), else it is what the query knew when
    it planned its last batch. Partitions that the brokers do not know are left out. Empty before the
    first batch is done.
    """
    reached, known = _offsets(query.lastProgress)
    if admin is not None:
        asked = _existing(admin, reached)
        found = admin.list_offsets(dict.fromkeys(asked, LATEST), isolation=isolation)
        known = {each: end.offset or 0 for each, end in found.items()}
    return _behind(reached, known)


def lag_in(progress: Mapping[str, Any] | None) -> dict[TopicPartition, int]:
    """The lag of each partition by the progress of a batch alone."""
    return _behind(*_offsets(progress))


def _behind(
    reached: Mapping[TopicPartition, int], known: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    return {each: max(0, known[each] - reached[each]) for each in sorted(reached) if each in known}


def _existing(admin: Admin, partitions: dict[TopicPartition, int]) -> list[TopicPartition]:
    there = {
        TopicPartition(topic.name, each.partition)
        for topic in admin.list_topics(internal=True)
        for each in topic.partitions
    }
    return [each for each in partitions if each in there]


def _offsets(
    progress: Mapping[str, Any] | None,
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Where a query stands, and where partitions ended, by its progress."""
    sources: list[Any] = [] if progress is None else progress["sources"]
    reached: dict[TopicPartition, int] = {}
    known: dict[TopicPartition, int] = {}
    for source in sources:
        reached |= _partition_offsets(source["endOffset"])
        known |= _partition_offsets(source["latestOffset"])
    return reached, known


def _partition_offsets(offset: Any) -> dict[TopicPartition, int]:
    """The offsets of a source; none, if its offsets are of another kind."""
    found = json.loads(offset) if isinstance(offset, str) else offset
    if not isinstance(found, dict):
        return {}
    return {
        TopicPartition(topic, int(partition)): number
        for topic, partitions in found.items()
        if isinstance(partitions, dict)
        for partition, number in partitions.items()
        if partition.isdigit() and isinstance(number, int)
    }
