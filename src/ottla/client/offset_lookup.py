"""Offsets of positions: what ListOffsets says, for many partitions at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from ottla.client.cluster import Cluster
from ottla.client.errors import Unsupported
from ottla.client.positions import (
    AnyPosition,
    FoundOffset,
    Kind,
    Position,
    TopicPartition,
    position_of,
)
from ottla.client.spreading import Leaders, Outcomes, Verdict, by_topic, spread
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.wire.connection import Connection

Isolation = Literal["read_committed", "read_uncommitted"]

# What stands for the positions in place of a time.
_LATEST: Final = -1
_EARLIEST: Final = -2
_MAX_TIMESTAMP: Final = -3
_MAX_TIMESTAMP_SINCE: Final = 7  # ListOffsets (Kafka 3.0)


async def find_offsets(
    cluster: Cluster,
    positions: Mapping[TopicPartition, AnyPosition],
    *,
    isolation: Isolation = "read_uncommitted",
    timeout: float | None = None,
) -> Outcomes[TopicPartition, FoundOffset]:
    """The offset of each partition at its position.

    An offset given as a number comes back as it is, whether there is a record or not. The end is
    the high watermark; under read_committed it is the last stable offset.
    """
    wanted = {partition: position_of(position) for partition, position in positions.items()}
    outcomes: Outcomes[TopicPartition, FoundOffset] = Outcomes()
    asked: dict[TopicPartition, int] = {}
    for partition, position in wanted.items():
        if position.kind is Kind.OFFSET:
            outcomes.results[partition] = FoundOffset(position.number)
        else:
            asked[partition] = _timestamp(position)
    if asked:
        found = await _ask(cluster, asked, isolation, timeout)
        outcomes.results.update(found.results)
        outcomes.errors.update(found.errors)
    backwards = {
        partition: position.number
        for partition, position in wanted.items()
        if position.kind is Kind.BEFORE_END and partition in outcomes.results
    }
    if backwards:
        starts = await _ask(cluster, dict.fromkeys(backwards, _EARLIEST), isolation, timeout)
        for partition, start in starts.results.items():
            found_end = outcomes.results[partition]
            outcomes.results[partition] = found_end.back_by(backwards[partition], start.offset or 0)
        for partition, error in starts.errors.items():
            outcomes.results.pop(partition)
            outcomes.errors[partition] = error
    return outcomes


def _timestamp(position: Position) -> int:
    match position.kind:
        case Kind.EARLIEST:
            return _EARLIEST
        case Kind.MAX_TIMESTAMP:
            return _MAX_TIMESTAMP
        case Kind.TIME:
            return max(position.number, 0)
        case _:
            return _LATEST


async def _ask(
    cluster: Cluster,
    timestamps: Mapping[TopicPartition, int],
    isolation: Isolation,
    timeout: float | None,
) -> Outcomes[TopicPartition, FoundOffset]:
    def build(connection: Connection, partitions: list[TopicPartition]) -> ListOffsetsRequest:
        special = any(timestamps[each] == _MAX_TIMESTAMP for each in partitions)
        if special and connection.version_of(ListOffsetsRequest) < _MAX_TIMESTAMP_SINCE:
            raise Unsupported(f"{connection.address} is too old for max-timestamp (Kafka 3.0)")
        return ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(isolation == "read_committed"),
            topics=[
                ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=index,
                            timestamp=timestamps[TopicPartition(topic, index)],
                        )
                        for index in indexes
                    ],
                )
                for topic, indexes in by_topic(partitions).items()
            ],
            timeout_ms=int(cluster.settings.request_timeout * 1000),
        )

    def read(
        answer: ListOffsetsResponse, _: list[TopicPartition]
    ) -> Iterable[Verdict[TopicPartition, FoundOffset]]:
        for topic in answer.topics:
            for each in topic.partitions:
                yield Verdict(
                    TopicPartition(topic.name, each.partition_index),
                    each.error_code,
                    FoundOffset(
                        each.offset if each.offset >= 0 else None,
                        each.timestamp if each.timestamp >= 0 else None,
                        each.leader_epoch if each.leader_epoch >= 0 else None,
                    ),
                )

    return await spread(
        cluster,
        timestamps,
        Leaders(cluster),
        build=build,
        answer=ListOffsetsResponse,
        read=read,
        timeout=timeout,
    )
