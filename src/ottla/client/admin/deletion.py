"""Deleting single records, by their offsets. An API of Ottla's own: Apache Kafka has none for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final, TypeAlias

from ottla.client.admin.base import AdminPart
from ottla.client.naming import by_partition
from ottla.client.positions import TopicPartition
from ottla.client.spreading import Leaders, Verdict, by_topic, spread
from ottla.protocol.messages.delete_records_at import (
    DeletedRange,
    DeleteRecordsAtPartition,
    DeleteRecordsAtRequest,
    DeleteRecordsAtResponse,
    DeleteRecordsAtTopic,
)
from ottla.wire.connection import Connection

Offsets: TypeAlias = int | range | Iterable[int | range]
# First and last offset.
_Range: TypeAlias = tuple[int, int]

# Of a partition in one request.
_MOST_RANGES: Final = 20_000


class DeletionAdmin(AdminPart):
    """The call that deletes single records."""

    async def delete_records_at(
        self,
        offsets: Mapping[TopicPartition, Offsets],
        *,
        skip_deleted: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, int]:
        """Delete the records at these offsets of each partition: one, a `range`, or several of both.

        Consumers do not see them from then on; all other records keep their offsets. The result is how
        many were deleted in each partition. If one of a partition's offsets is out of range, not yet
        committed, in an aborted transaction, no record or deleted already, a BrokerError names it
        and none of that partition is deleted. `skip_deleted` passes over those that are deleted
        already. Unsupported with brokers that do not know this call.
        """
        ranges = {
            partition: iter(_ranges(partition, given))
            for partition, given in by_partition(offsets).items()
        }
        deleted = dict.fromkeys(ranges, 0)
        while True:
            some = {each: list(islice(left, _MOST_RANGES)) for each, left in ranges.items()}
            some = {each: chosen for each, chosen in some.items() if chosen}
            if not some:
                return deleted
            for partition, count in (await self._delete(some, skip_deleted, timeout)).items():
                deleted[partition] += count

    async def _delete(
        self,
        ranges: Mapping[TopicPartition, list[_Range]],
        skip_deleted: bool,
        timeout: float | None,
    ) -> dict[TopicPartition, int]:
        asked: set[TopicPartition] = set()

        def build(_: Connection, partitions: list[TopicPartition]) -> DeleteRecordsAtRequest:
            # Asked again, it may be that the request was heard and its answer was lost.
            again = not asked.isdisjoint(partitions)
            asked.update(partitions)
            return DeleteRecordsAtRequest(
                topics=[
                    DeleteRecordsAtTopic(
                        name=topic,
                        partitions=[
                            DeleteRecordsAtPartition(
                                partition_index=index,
                                ranges=[
                                    DeletedRange(first_offset=first, last_offset=last)
                                    for first, last in ranges[TopicPartition(topic, index)]
                                ],
                            )
                            for index in indexes
                        ],
                    )
                    for topic, indexes in by_topic(partitions).items()
                ],
                timeout_ms=self._timeout_ms,
                skip_deleted=skip_deleted or again,
            )

        def read(
            answer: DeleteRecordsAtResponse, _: list[TopicPartition]
        ) -> Iterable[Verdict[TopicPartition, int]]:
            for topic in answer.topics:
                for each in topic.partitions:
                    partition = TopicPartition(topic.name, each.partition_index)
                    yield Verdict(partition, each.error_code, each.deleted, each.error_message)

        outcomes = await spread(
            self.cluster,
            ranges,
            Leaders(self.cluster),
            build=build,
            answer=DeleteRecordsAtResponse,
            read=read,
            timeout=timeout,
        )
        return outcomes.all()


def _ranges(partition: TopicPartition, given: Offsets) -> list[_Range]:
    """Offsets in order, neighbours together."""
    pieces: list[_Range] = []
    for each in [given] if isinstance(given, (int, range)) else given:
        if isinstance(each, range) and each.step == 1:
            if each:
                pieces.append((each[0], each[-1]))
        elif isinstance(each, range):
            pieces += [(offset, offset) for offset in each]
        elif isinstance(each, int) and not isinstance(each, bool):
            pieces.append((each, each))
        else:
            raise TypeError(f"{partition}: offsets are numbers or ranges of them, not {each!r}")
    ranges: list[_Range] = []
    for first, last in sorted(pieces):
        if ranges and first <= ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], max(last, ranges[-1][1])
        else:
            ranges.append((first, last))
    return ranges
