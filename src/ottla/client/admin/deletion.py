"""Deleting single records, by their offsets. An API of Ottla's own: Apache Kafka has none for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, TypeAlias

from ottla.client.admin.base import AdminPart
from ottla.client.errors import BrokerError, OttlaError, PartlyDeleted, Unsupported
from ottla.client.naming import by_partition
from ottla.client.positions import TopicPartition
from ottla.client.spreading import Leaders, Outcomes, Verdict, by_topic, spread
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import ZERO_UUID
from ottla.protocol.messages.delete_records_at import (
    DeletedRange,
    DeleteRecordsAtPartition,
    DeleteRecordsAtRequest,
    DeleteRecordsAtResponse,
    DeleteRecordsAtTopic,
)
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from ottla.wire.connection import Connection

Offsets: TypeAlias = int | range | Iterable[int | range]
# First and last offset.
_Range: TypeAlias = tuple[int, int]

# Of a partition in one request.
_MOST_RANGES: Final = 20_000
_VALIDATE_SINCE: Final = 1  # DeleteRecordsAt
_LARGEST_OFFSET: Final = 2**63 - 1
# The table calls it retriable, because metadata may lag; here it means another topic of the same name.
_FINAL: Final = frozenset((ErrorCode.UNKNOWN_TOPIC_ID,))


class DeletionAdmin(AdminPart):
    """The call that deletes single records."""

    async def delete_records_at(
        self,
        offsets: Mapping[TopicPartition, Offsets],
        *,
        skip_deleted: bool = False,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, int]:
        """Delete the records at these offsets of each partition: one, a `range`, or several of both.

        Consumers do not see them from then on; all other records keep their offsets. The result is how
        many were deleted in each partition. If one of a partition's offsets is out of range, not yet
        committed, in an aborted transaction, no record or deleted already, a BrokerError names it
        and none of that partition is deleted. `skip_deleted` passes over those that are deleted
        already. With `validate_only` nothing is deleted, and the result is how many would be.
        Unsupported with brokers that do not know this call.

        `timeout` is that of each request: there is one for some 20,000 offsets that stand alone.
        """
        ranges = {
            partition: _ranges(partition, given)
            for partition, given in by_partition(offsets).items()
        }
        topic_ids = await self._topic_ids({each.topic for each in ranges}, timeout)
        if validate_only:
            return (await self._in_parts(ranges, topic_ids, skip_deleted, True, timeout)).all()
        many = {each: some for each, some in ranges.items() if len(some) > _MOST_RANGES}
        refused: dict[TopicPartition, OttlaError] = {}
        if many:
            # They go in several requests. A mistake in the last should not come too late.
            try:
                refused = (
                    await self._in_parts(many, topic_ids, skip_deleted, True, timeout)
                ).errors
            except Unsupported:
                pass  # a broker of before there was such a check
        wanted = {each: some for each, some in ranges.items() if each not in refused}
        outcomes = await self._in_parts(wanted, topic_ids, skip_deleted, False, timeout)
        return Outcomes(outcomes.results, {**refused, **outcomes.errors}).all()

    async def _topic_ids(self, topics: set[str], timeout: float | None) -> dict[str, bytes]:
        """Those of the topics as they are now: should one be deleted and created again before all is
        done, nothing of the new one is meant."""
        names = sorted(topics)
        answer = await self.cluster.ask(
            MetadataRequest(
                topics=[MetadataRequestTopic(name=name) for name in names],
                allow_auto_topic_creation=False,
            ),
            MetadataResponse,
            timeout=timeout,
        )
        self.cluster.metadata.learn(answer, names, asyncio.get_running_loop().time())
        return {each.name: each.topic_id for each in answer.topics if each.name is not None}

    async def _in_parts(
        self,
        ranges: Mapping[TopicPartition, list[_Range]],
        topic_ids: Mapping[str, bytes],
        skip_deleted: bool,
        validate_only: bool,
        timeout: float | None,
    ) -> Outcomes[TopicPartition, int]:
        """Request by request, until each partition has been through all of its ranges or has failed."""
        left: dict[TopicPartition, Iterator[_Range]] = {
            partition: iter(some) for partition, some in ranges.items()
        }
        done = dict.fromkeys(ranges, 0)
        errors: dict[TopicPartition, OttlaError] = {}
        while True:
            some = {each: list(islice(rest, _MOST_RANGES)) for each, rest in left.items()}
            some = {each: chosen for each, chosen in some.items() if chosen}
            if not some:
                break
            outcomes = await self._ask_for(some, topic_ids, skip_deleted, validate_only, timeout)
            for partition, count in outcomes.results.items():
                # A request that was sent again counts what it marked itself. All that were asked for are
                # deleted now, unless some were to be passed over.
                named = sum(last - first + 1 for first, last in some[partition])
                done[partition] += count if skip_deleted else named
            for partition, error in outcomes.errors.items():
                del left[partition]
                before = done.pop(partition)
                errors[partition] = _after_some(error, 0 if validate_only else before)
        return Outcomes(done, errors)

    async def _ask_for(
        self,
        ranges: Mapping[TopicPartition, list[_Range]],
        topic_ids: Mapping[str, bytes],
        skip_deleted: bool,
        validate_only: bool,
        timeout: float | None,
    ) -> Outcomes[TopicPartition, int]:
        asked: set[TopicPartition] = set()

        def build(
            connection: Connection, partitions: list[TopicPartition]
        ) -> DeleteRecordsAtRequest:
            version = connection.version_of(DeleteRecordsAtRequest)
            if validate_only and version < _VALIDATE_SINCE:
                raise Unsupported(f"{connection.address} is too old to check without deleting")
            # Asked again, it may be that the request was heard and its answer was lost.
            again = not asked.isdisjoint(partitions) and not validate_only
            asked.update(partitions)
            return DeleteRecordsAtRequest(
                topics=[
                    DeleteRecordsAtTopic(
                        name=topic,
                        topic_id=topic_ids.get(topic, ZERO_UUID),
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
                validate_only=validate_only,
            )

        def read(
            answer: DeleteRecordsAtResponse, _: list[TopicPartition]
        ) -> Iterable[Verdict[TopicPartition, int]]:
            for topic in answer.topics:
                for each in topic.partitions:
                    partition = TopicPartition(topic.name, each.partition_index)
                    yield Verdict(partition, each.error_code, each.deleted, each.error_message)

        return await spread(
            self.cluster,
            ranges,
            Leaders(self.cluster),
            build=build,
            answer=DeleteRecordsAtResponse,
            read=read,
            timeout=timeout,
            final=_FINAL,
        )


def _after_some(error: OttlaError, count: int) -> OttlaError:
    """An error that came after some of a partition's records had been deleted says so."""
    if not count:
        return error
    if isinstance(error, BrokerError):
        return PartlyDeleted(error.code, error.message, error.about, count)
    error.add_note(f"{count:,} records of the partition were deleted before that")
    return error


def _ranges(partition: TopicPartition, given: Offsets) -> list[_Range]:
    """Offsets in order, neighbours together."""
    if isinstance(given, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"{partition}: offsets are numbers or ranges of them, not {given!r}")
    pieces: list[_Range] = []
    for each in [given] if isinstance(given, (int, range)) else given:
        if isinstance(each, range) and each.step == 1:
            if each:
                pieces.append((each.start, each.stop - 1))
        elif isinstance(each, range):
            pieces += [(offset, offset) for offset in each]
        elif isinstance(each, int) and not isinstance(each, bool):
            pieces.append((each, each))
        else:
            raise TypeError(f"{partition}: offsets are numbers or ranges of them, not {each!r}")
    ranges: list[_Range] = []
    for first, last in sorted(pieces):
        if first < 0 or last > _LARGEST_OFFSET:
            wrong = first if first < 0 else last
            raise ValueError(f"{partition}: {wrong} is no offset; they go from 0 to 2^63 - 1")
        if ranges and first <= ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], max(last, ranges[-1][1])
        else:
            ranges.append((first, last))
    return ranges
