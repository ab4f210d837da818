"""Reading from brokers: the plan of a query, and what its tasks do.

A Python process of Spark's serves many tasks, one after the other. Connections are kept between them
(`_clusters`), by what the client's options are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import pyarrow as pa

from ottla.client.admin_offsets import OffsetsAdmin
from ottla.client.admin_topics import TopicDescription, TopicsAdmin
from ottla.client.cluster import Cluster
from ottla.client.consumer.fetching import Fetcher
from ottla.client.consumer.partitions import ReadPartition
from ottla.client.errors import OttlaError, TimedOut, TopicNotFound
from ottla.client.loop import background_loop
from ottla.client.offset_lookup import Isolation
from ottla.client.positions import EARLIEST as FIRST
from ottla.client.positions import LATEST as LAST
from ottla.client.positions import AnyPosition, Position, TopicPartition
from ottla.client.spreading import Outcomes
from pyspark_ottla.errors import OptionError
from pyspark_ottla.option_names import ClientKey, client_key
from pyspark_ottla.options import LATEST, Bound, SourceOptions
from pyspark_ottla.ranges import Held, Range, divided, for_each, lost, ranges_between
from pyspark_ottla.rows import MAX_BYTES, MAX_ROWS, SparkRows

logger = logging.getLogger(__name__)

_LANE: Final = "spark"

_clusters: dict[ClientKey, Cluster] = {}


class _NothingLeft(OttlaError):
    """The rest of a range is gone, and that is no error (failOnDataLoss is false)."""


class ClusterAdmin(TopicsAdmin, OffsetsAdmin):
    """Topics and offsets, over the connections that tasks use, too."""

    async def topics_there(self, names: Iterable[str]) -> Outcomes[str, TopicDescription]:
        """The topics of these names, and for those that are not there why."""
        return await self._describe(sorted(names), None)


async def cluster_of(options: SourceOptions) -> Cluster:
    key = client_key(options.client)
    if key not in _clusters:
        _clusters[key] = Cluster(options.settings)
    return _clusters[key]


# Planning


def plan(options: SourceOptions) -> list[Range]:
    """The pieces of a query; the ends of partitions are what they are now."""
    ranges = background_loop().run(_ranges(options))
    return divided(ranges, options.min_partitions, options.max_records_per_partition)


async def _ranges(options: SourceOptions) -> list[Range]:
    admin = ClusterAdmin(await cluster_of(options))
    partitions = await selected(admin, options)
    isolation = options.settings.isolation
    starts = await starting_offsets(admin, options, partitions)
    ends = await offsets_at(admin, options.end, partitions, isolation)
    first = await listed(admin, dict.fromkeys(partitions, FIRST), isolation)
    last = await listed(admin, dict.fromkeys(partitions, LAST), isolation)
    held = {each: Held(first[each] or 0, last[each] or 0) for each in partitions}
    return ranges_between(starts, _or_latest(ends), held, options)


async def starting_offsets(
    admin: ClusterAdmin, options: SourceOptions, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Where each partition is to be read from: an offset, EARLIEST or LATEST."""
    starts = await offsets_at(admin, options.start, partitions, options.settings.isolation)
    beyond = [each for each in sorted(starts) if starts[each] is None]
    if beyond and options.start_strategy == "error":
        raise OptionError(
            f"{options.start.option}: {beyond[0]} has no record of that time or later; "
            "startingOffsetsByTimestampStrategy=latest would begin at its end"
        )
    return _or_latest(starts)


def _or_latest(offsets: Mapping[TopicPartition, int | None]) -> dict[TopicPartition, int]:
    return {each: LATEST if offset is None else offset for each, offset in offsets.items()}


async def selected(admin: ClusterAdmin, options: SourceOptions) -> set[TopicPartition]:
    """The partitions that assign, subscribe or subscribePattern mean now."""
    if options.selection == "subscribePattern":
        topics = await admin.list_topics(internal=True)
    else:
        names = options.subscribed or {each.topic for each in options.assigned}
        topics = list((await admin.describe_topics(sorted(names))).values())
    found = {
        TopicPartition(topic.name, each.partition)
        for topic in topics
        for each in topic.partitions
        if options.selects(topic.name, each.partition)
    }
    missing = sorted(options.assigned - found)
    if missing:
        topic, partition = missing[0]
        raise OptionError(f"assign: topic '{topic}' has no partition {partition}")
    return found


async def offsets_at(
    admin: ClusterAdmin,
    bound: Bound,
    partitions: Iterable[TopicPartition],
    isolation: Isolation,
) -> Mapping[TopicPartition, int | None]:
    """The offsets that an option means; None where no record is so late."""
    if bound.times is None:
        return for_each(LATEST if bound.offsets is None else bound.offsets, bound, partitions)
    times = for_each(bound.times, bound, partitions)
    asked = {each: Position.time(time) for each, time in times.items()}
    return await listed(admin, asked, isolation)


async def listed(
    admin: ClusterAdmin, positions: Mapping[TopicPartition, AnyPosition], isolation: Isolation
) -> dict[TopicPartition, int | None]:
    found = await admin.list_offsets(positions, isolation=isolation)
    return {each: there.offset for each, there in found.items()}


# Reading


def read(piece: Range, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The rows of a piece, while the next ones are fetched. It ends where the piece does, by
    position: the last offsets may be those of transactions' marks, which are no rows."""
    loop = background_loop()
    try:
        reading = loop.run(_Reading.begin(piece, options))
    except TopicNotFound:
        lost(f"{piece.partition} is gone: its topic was deleted", options)
        return
    try:
        while (rows := loop.run(reading.next_rows())) is not None:
            yield rows
    finally:
        loop.run(reading.close())


class _Reading:
    """One piece under reading, inside of the client's event loop."""

    def __init__(self, cluster: Cluster, piece: Range, options: SourceOptions) -> None:
        self._cluster = cluster
        self._piece = piece
        self._options = options
        self._fetcher = Fetcher(
            cluster,
            options.settings,
            SparkRows(options.include_headers, options.values),
            reset=self._go_on,
            lane=_LANE,
            max_rows=MAX_ROWS,
            max_bytes=MAX_BYTES,
        )

    @classmethod
    async def begin(cls, piece: Range, options: SourceOptions) -> _Reading:
        cluster = await cluster_of(options)
        # What an earlier task learnt may be outdated: the topic may have been made anew since.
        cluster.metadata.forget(piece.partition.topic)
        await cluster.topic(piece.partition.topic)
        reading = cls(cluster, piece, options)
        state = ReadPartition(piece.partition, piece.start, piece.start, end_offset=piece.end)
        reading._fetcher.add([state])
        return reading

    async def next_rows(self) -> pa.RecordBatch | None:
        queue = self._fetcher.queue
        while True:
            result = queue.take()
            if result is None:
                if self._fetcher.exhausted:
                    return None
                await self._news()
            elif isinstance(result.error, _NothingLeft):
                return None
            elif result.error is not None:
                raise result.error
            elif isinstance(result.rows, pa.RecordBatch) and result.rows.num_rows:
                return result.rows

    async def _news(self) -> None:
        patience = self._options.poll_timeout
        try:
            async with asyncio.timeout(patience):
                await self._fetcher.queue.news()
        except TimeoutError:
            raise TimedOut(
                f"nothing came of {self._piece.partition} for {patience:g} s, with offset "
                f"{self._piece.end} still to be reached (kafkaConsumer.pollTimeoutMs)"
            ) from None

    async def _go_on(self, state: ReadPartition) -> int:
        """The offset to be read is not in the log: the next that is, if that is no error."""
        admin = ClusterAdmin(self._cluster)
        at = dict.fromkeys([state.partition], FIRST)
        first = (await admin.list_offsets(at))[state.partition].offset or 0
        lost(
            f"offset {state.fetch_offset} of {state.partition} is gone (it begins at {first})",
            self._options,
        )
        if not state.fetch_offset < first < self._piece.end:
            raise _NothingLeft
        return first

    async def close(self) -> None:
        await self._fetcher.close()
