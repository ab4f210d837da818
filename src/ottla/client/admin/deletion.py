"""Deleting single records, by their offsets. An API of Ottla's own: Apache Kafka has none for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

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

# First and last offset.
_Range = tuple[int, int]

# Of a partition in one request.
_MOST_RANGES: Final = 20_000


class DeletionAdmin(AdminPart):
    """The call that deletes single records."""

    async def delete_records_at(
        self,
        offsets: Mapping[TopicPartition, int | Iterable[int]],
        *,
        skip_deleted: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, int]:
        """Delete the records at these offsets (one, several, or a `range`) of each partition.

        Consumers do not see them from then on; all other records keep their offsets. The result is how
        many were deleted in each partition. If one of a partition's offsets is out of range, not yet
        committed, in an aborted transaction, no record or deleted already, a BrokerError names it
        and none of that partition is deleted. `skip_deleted` passes over those that are deleted
        already. Unsupported with brokers that do not know this call.
        """
        ranges = {
            partition: iter(list(_ranges(partition, given)))
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


def _ranges(partition: TopicPartition, given: int | Iterable[int]) -> Iterator[_Range]:
    """Offsets in order, neighbours together."""
    if isinstance(given, range) and given.step == 1:
        if len(given):
            yield given[0], given[-1]
        return
    offsets = [given] if isinstance(given, int) else sorted(given)
    first = last = None
    for offset in offsets:
        if not isinstance(offset, int):
            raise TypeError(f"{partition}: offsets are numbers, not {offset!r}")
        if first is None or last is None:
            first = last = offset
        elif offset <= last + 1:
            last = offset
        else:
            yield first, last
            first = last = offset
    if first is not None and last is not None:
        yield first, last
