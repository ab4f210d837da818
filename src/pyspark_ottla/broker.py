"""What brokers have to read: the plan of a query. Its tasks do what `broker_reads` says.

A Python process of Spark's serves many tasks, one after the other. Connections are kept between them
(`_clusters`), by what the client's options are.

Whoever plans a streaming query starts with it, in a new process, so nothing is imported here that only
tasks need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.client.admin.offsets import OffsetsAdmin
from ottla.client.admin.topics import TopicDescription, TopicsAdmin
from ottla.client.cluster import Cluster
from ottla.client.loop import background_loop
from ottla.client.offset_lookup import Isolation
from ottla.client.positions import EARLIEST as FIRST
from ottla.client.positions import LATEST as LAST
from ottla.client.positions import AnyPosition, Position, TopicPartition
from ottla.client.spreading import Outcomes
from pyspark_ottla.errors import OptionError
from pyspark_ottla.option_names import ClientKey, client_key
from pyspark_ottla.options import LATEST, Bound, SourceOptions
from pyspark_ottla.ranges import HeldOffsets, Range, divided, for_each, ranges_between

_clusters: dict[ClientKey, Cluster] = {}


class SourceAdmin(TopicsAdmin, OffsetsAdmin):
    """Topics and offsets, over the connections that tasks use, too."""

    async def topics_there(self, names: Iterable[str]) -> Outcomes[str, TopicDescription]:
        """The topics of these names, and for those that are not there why."""
        return await self._describe(sorted(names), None)


async def cluster_of(options: SourceOptions) -> Cluster:
    key = client_key(options.client)
    if key not in _clusters:
        _clusters[key] = Cluster(options.settings)
    return _clusters[key]


def plan(options: SourceOptions) -> list[Range]:
    """The pieces of a query; the ends of partitions are what they are now."""
    ranges = background_loop().run(_ranges(options))
    return divided(ranges, options.min_partitions, options.max_records_per_partition)


async def _ranges(options: SourceOptions) -> list[Range]:
    admin = SourceAdmin(await cluster_of(options))
    partitions = await selected(admin, options)
    isolation = options.settings.isolation
    starts = await starting_offsets(admin, options, partitions)
    ends = await offsets_at(admin, options.end, partitions, isolation)
    first = await listed(admin, dict.fromkeys(partitions, FIRST), isolation)
    last = await listed(admin, dict.fromkeys(partitions, LAST), isolation)
    held = {each: HeldOffsets(first[each] or 0, last[each] or 0) for each in partitions}
    ranges = ranges_between(starts, _or_latest(ends), held, options)
    return [each._replace(topic_id=partitions[each.partition]) for each in ranges]


async def starting_offsets(
    admin: SourceAdmin, options: SourceOptions, partitions: Iterable[TopicPartition]
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


async def selected(admin: SourceAdmin, options: SourceOptions) -> dict[TopicPartition, str | None]:
    """The partitions that assign, subscribe or subscribePattern mean now, with their topics' ids."""
    if options.selection == "subscribePattern":
        topics = await admin.list_topics(internal=True)
    else:
        names = options.subscribed or {each.topic for each in options.assigned}
        topics = list((await admin.describe_topics(sorted(names))).values())
    found = {
        TopicPartition(topic.name, each.partition): topic.topic_id
        for topic in topics
        for each in topic.partitions
        if options.selects(topic.name, each.partition)
    }
    missing = sorted(options.assigned - found.keys())
    if missing:
        topic, partition = missing[0]
        raise OptionError(f"assign: topic '{topic}' has no partition {partition}")
    return found


async def offsets_at(
    admin: SourceAdmin,
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
    admin: SourceAdmin, positions: Mapping[TopicPartition, AnyPosition], isolation: Isolation
) -> dict[TopicPartition, int | None]:
    found = await admin.list_offsets(positions, isolation=isolation)
    return {each: there.offset for each, there in found.items()}
