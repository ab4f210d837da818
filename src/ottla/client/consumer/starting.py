"""Where a consumer begins in its partitions, and whether they exist."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

from ottla.client.admin.offsets import CommittedOffset
from ottla.client.cluster import Cluster
from ottla.client.configuration.clients import ConsumerSettings
from ottla.client.consumer.group.commits import Commits, epoch_of
from ottla.client.consumer.partitions import ReadPartition
from ottla.client.errors import Failures, NoStartingOffset, TimedOut, broker_error
from ottla.client.offset_lookup import find_offsets
from ottla.client.positions import EARLIEST, LATEST, AnyPosition, Position, TopicPartition
from ottla.protocol.errors import ErrorCode


async def starting_offsets(
    cluster: Cluster, settings: ConsumerSettings, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """The offsets that auto.offset.reset means now; NoStartingOffset if it means none."""
    partitions = list(partitions)
    if not partitions:
        return {}
    reset = settings.offset_reset
    position: AnyPosition
    if reset == "error":
        raise NoStartingOffset(
            f"{partitions[0]} has no committed offset, or one that is out of range, and "
            "auto.offset.reset says not to choose another: seek, or commit one"
        )
    if isinstance(reset, float):
        position = Position.time(int((time.time() - reset) * 1000))
    else:
        position = EARLIEST if reset == "earliest" else LATEST
    return await resolve(cluster, settings, dict.fromkeys(partitions, position))


async def resolve(
    cluster: Cluster, settings: ConsumerSettings, positions: dict[TopicPartition, AnyPosition]
) -> dict[TopicPartition, int]:
    """The offsets of positions; of a time after the last record, the end."""
    found = (await find_offsets(cluster, positions, isolation=settings.isolation)).all()
    offsets = {each: there.offset for each, there in found.items() if there.offset is not None}
    late = [each for each in positions if each not in offsets]
    if late:
        ends = await find_offsets(
            cluster, dict.fromkeys(late, LATEST), isolation=settings.isolation
        )
        offsets.update((each, there.offset or 0) for each, there in ends.all().items())
    return offsets


async def begin_at_commits(
    cluster: Cluster,
    settings: ConsumerSettings,
    commits: Commits | None,
    partitions: set[TopicPartition],
) -> list[ReadPartition]:
    """Begin at what the group has committed, else (or without a group) by auto.offset.reset."""
    committed: dict[TopicPartition, CommittedOffset] = {}
    if commits is not None:
        committed = await commits.committed(partitions, stable=settings.reads_committed)
    missing = [each for each in partitions if each not in committed]
    offsets = await starting_offsets(cluster, settings, missing)
    await _refresh_old_leaders(cluster, committed)
    return [
        *(
            ReadPartition.starting_at(each, there.offset, epoch_of(there))
            for each, there in committed.items()
        ),
        *(ReadPartition.starting_at(each, offset) for each, offset in offsets.items()),
    ]


def not_heard_of(error: TimedOut | Failures, asked: set[TopicPartition]) -> set[TopicPartition]:
    """The partitions of which nothing was heard in time; none if something else is wrong as well."""
    if isinstance(error, TimedOut):
        return asked
    if not all(isinstance(each, TimedOut) for each in error.exceptions):
        return set()
    return asked & error.errors.keys()


async def _refresh_old_leaders(
    cluster: Cluster, committed: Mapping[TopicPartition, CommittedOffset]
) -> None:
    """Refresh the metadata of topics with commits of later leader epochs: the leader that is known of
    them must not be asked."""
    outdated = set()
    for each, there in committed.items():
        info = cluster.metadata.partition(*each)
        if info is not None and 0 <= info.leader_epoch < epoch_of(there):
            outdated.add(each.topic)
    if outdated:
        cluster.request_refresh(*outdated)
        await cluster.topics(outdated)


async def offsets_of_new(
    cluster: Cluster,
    settings: ConsumerSettings,
    new: Collection[TopicPartition],
    reading: Iterable[TopicPartition],
) -> dict[TopicPartition, int]:
    """Where to begin in partitions that are not read yet.

    Topics that are new begin by auto.offset.reset. Partitions that were added to a topic begin at their
    first record: all that is in them was written after the consumer had begun.
    """
    known = {each.topic for each in reading}
    first = [each for each in new if each.topic not in known]
    offsets = await starting_offsets(cluster, settings, first)
    grown: dict[TopicPartition, AnyPosition] = {
        each: EARLIEST for each in new if each.topic in known
    }
    offsets.update(await resolve(cluster, settings, grown))
    return offsets


async def reset_offset(cluster: Cluster, settings: ConsumerSettings, state: ReadPartition) -> int:
    """Where to go on if the offset is not in the log; OffsetOutOfRange if auto.offset.reset is error."""
    if settings.offset_reset == "error":
        raise broker_error(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {state.fetch_offset} is not in the log: seek to go on",
            str(state.partition),
        )
    found = await starting_offsets(cluster, settings, [state.partition])
    return found[state.partition]


async def check_partitions(cluster: Cluster, partitions: Iterable[TopicPartition]) -> None:
    """TopicNotFound if one of them does not exist: nothing would ever come of it."""
    partitions = list(partitions)
    topics = {each.topic for each in partitions}
    missing: list[TopicPartition] = []
    for _ in range(2):
        known = await cluster.topics(topics)
        missing = [
            each for each in partitions if each.partition not in known[each.topic].partitions
        ]
        if not missing:
            return
        # What is known may be from before it was added.
        cluster.request_refresh(*(each.topic for each in missing))
    topic, index = missing[0]
    count = len(cluster.metadata.topics[topic].partitions)
    raise broker_error(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"there is no partition {index}; there are {count}",
        f"topic '{topic}'",
    )
