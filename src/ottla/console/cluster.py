"""What the console asks of a cluster, by the client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final, Self

from ottla.client.admin.client import AsyncAdmin
from ottla.client.admin.topics import PartitionDescription, TopicDescription
from ottla.client.consumer.asynchronous import AsyncConsumer
from ottla.client.consumer.searching import find_key
from ottla.client.errors import Failures, OttlaError, PartlyDeleted
from ottla.client.positions import EARLIEST, LATEST, FoundOffset, Position, TopicPartition
from ottla.console.messages import (
    Client,
    ClientList,
    Deletion,
    DeletionAnswer,
    Error,
    Health,
    Partition,
    PartitionDeletion,
    RecordPage,
    TopicLine,
    TopicList,
    TopicPage,
)
from ottla.console.refusals import Refusal, refusal_of
from ottla.protocol.errors import ErrorCode
from ottla.record.batch import Record, readable_key
from ottla.record.bytes_json import bytes_to_json
from ottla.version import __version__

log = logging.getLogger("ottla.console")

PATIENCE: Final = 15.0  # seconds for what a call asks of brokers
HEALTH_PATIENCE: Final = 5.0
# Of records that are shown at once: an answer is for people and small scripts.
MOST_RECORDS: Final = 1000
MOST_BYTES: Final = 1 << 20
_SMALL_FETCH: Final = 256 << 10
# Rows that a search looks at before others have a turn.
_ROWS_AT_ONCE: Final = 20_000
# Each holds some tens of megabytes that it has fetched.
_SEARCHES_AT_ONCE: Final = 2


class ClusterCalls:
    """The calls, for as long as the console runs. To be made where an event loop runs."""

    def __init__(self, servers: str) -> None:
        common: dict[str, Any] = {
            "client_id": "ottla-console",
            "default_api_timeout_ms": PATIENCE * 1000,
            "request_timeout_ms": PATIENCE * 1000,
        }
        self._admin = AsyncAdmin(servers, **common)
        self._reader = AsyncConsumer(
            servers,
            arrow=False,
            max_rows=MOST_RECORDS,
            max_bytes=MOST_BYTES,
            isolation_level="read_committed",
            max_partition_fetch_bytes=_SMALL_FETCH,
            fetch_max_bytes=_SMALL_FETCH,
            queued_max_messages_kbytes=_SMALL_FETCH // 1024,
            fetch_wait_max_ms=100,
            **common,
        )
        self._searcher = AsyncConsumer(
            servers, max_rows=_ROWS_AT_ONCE, isolation_level="read_committed", **common
        )
        self._searches = asyncio.Semaphore(_SEARCHES_AT_ONCE)

    async def close(self) -> None:
        for client in (self._searcher, self._reader, self._admin):
            await client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def health(self) -> Health:
        cluster = await self._admin.describe_cluster(timeout=HEALTH_PATIENCE)
        return Health(
            status="ok",
            version=__version__,
            cluster_id=cluster.cluster_id,
            brokers=len(cluster.brokers),
        )

    # Looking

    async def topics(self, internal: bool) -> TopicList:
        listed = await self._admin.list_topics(internal=internal)
        return TopicList(
            topics=[
                TopicLine(
                    name=each.name,
                    internal=each.internal,
                    partitions=len(each.partitions),
                    replication_factor=each.replication_factor,
                )
                for each in listed
            ]
        )

    async def topic(self, name: str) -> TopicPage:
        described = await self._describe(name)
        places = [TopicPartition(name, each.partition) for each in described.partitions]
        starts, errors = await self._offsets(places, EARLIEST)
        stable, more = await self._offsets(places, LATEST, committed=True)
        ends, most = await self._offsets(places, LATEST)
        errors = {**most, **more, **errors}

        def shown(each: PartitionDescription) -> Partition:
            place = TopicPartition(name, each.partition)
            failed = errors.get(place)
            return Partition(
                partition=each.partition,
                leader=each.leader,
                replicas=list(each.replicas),
                in_sync=list(each.in_sync),
                start_offset=starts.get(place),
                stable_offset=stable.get(place),
                end_offset=ends.get(place),
                error=None if failed is None else _error_of(failed),
            )

        return TopicPage(
            name=name,
            topic_id=described.topic_id,
            internal=described.internal,
            partitions=[shown(each) for each in described.partitions],
        )

    async def _describe(self, name: str) -> TopicDescription:
        return (await self._admin.describe_topics(name))[name]

    async def _offsets(
        self, places: list[TopicPartition], position: Position, *, committed: bool = False
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, OttlaError]]:
        """The offsets of partitions, and of those that have none the reason."""
        found: Mapping[TopicPartition, FoundOffset] = {}
        errors: dict[TopicPartition, OttlaError] = {}
        try:
            found = await self._admin.list_offsets(
                dict.fromkeys(places, position),
                isolation="read_committed" if committed else "read_uncommitted",
            )
        except Failures as several:
            found, errors = several.results, dict(several.errors)
        except OttlaError as error:
            if len(places) != 1:
                raise
            errors = {places[0]: error}
        return {
            place: each.offset for place, each in found.items() if each.offset is not None
        }, errors

    async def records(self, topic: str, partition: int, start: Position, limit: int) -> RecordPage:
        """Committed records from a position on, as many as `limit` or as go into an answer."""
        await self._check_partitions(topic, [partition])
        place = TopicPartition(topic, partition)
        bounds = []
        for position, committed in ((EARLIEST, False), (LATEST, True), (start, True)):
            found, errors = await self._offsets([place], position, committed=committed)
            if errors:
                raise errors[place]
            bounds.append(found.get(place))
        first, end, begin = bounds[0] or 0, bounds[1] or 0, bounds[2]
        if begin is None:  # a time after the last record
            begin = end
        if not first <= begin <= end:
            raise Refusal(
                404, f"offset {begin} is not in the log, which goes from {first} to {end}"
            )
        shown, following = await self._read(place, begin, end, limit)
        return RecordPage(
            topic=topic,
            partition=partition,
            start_offset=first,
            stable_offset=end,
            next_offset=following,
            records=shown,
        )

    async def _read(
        self, place: TopicPartition, begin: int, end: int, limit: int
    ) -> tuple[list[dict[str, Any]], int]:
        """Records as they are shown, and the offset after the last of them."""
        shown: list[dict[str, Any]] = []
        size = 0
        if begin >= end:
            return shown, end
        number = place.partition
        async with await self._reader.scan(place.topic, {number: begin}, {number: end}) as scan:
            async for rows in scan:
                for record in rows:
                    if len(shown) >= limit or size >= MOST_BYTES:
                        return shown, record.offset
                    shown.append(_shown(record))
                    size += len(record.key or b"") + len(record.value or b"")
                    size += sum(len(name) + len(value or b"") for name, value in record.headers)
        return shown, end

    async def clients(
        self,
        *,
        client_id: str | None,
        principal: str | None,
        address: str | None,
        group: str | None,
        topic: str | None,
    ) -> ClientList:
        listed = await self._admin.list_clients(
            client_id=client_id, principal=principal, address=address, group=group, topic=topic
        )
        return ClientList(clients=[Client(**each.document()) for each in listed])

    # Deleting

    async def delete(self, topic: str, deletion: Deletion) -> tuple[DeletionAnswer, int]:
        """Delete records; what became of each partition, and the HTTP status of that."""
        key = deletion.wanted_key()
        if key is None:
            wanted = deletion.ranges()
            await self._check_partitions(topic, wanted)
        else:
            before = await self._describe(topic)
            async with self._searches:
                found = await find_key(self._searcher, topic, key)
            if (await self._describe(topic)).topic_id != before.topic_id:
                raise Refusal(409, f"topic '{topic}' was deleted and created again meanwhile")
            wanted = {index: [range(*each) for each in some] for index, some in found.items()}
        return await self._delete(
            topic, wanted, deletion.skip_deleted or key is not None, deletion.dry_run
        )

    async def _delete(
        self, topic: str, wanted: Mapping[int, list[range]], skip_deleted: bool, dry_run: bool
    ) -> tuple[DeletionAnswer, int]:
        places = {TopicPartition(topic, index): some for index, some in wanted.items()}
        deleted: Mapping[TopicPartition, int] = {}
        errors: dict[TopicPartition, OttlaError] = {}
        try:
            if places:
                deleted = await self._admin.delete_records_at(
                    places, skip_deleted=skip_deleted, validate_only=dry_run
                )
        except Failures as several:
            deleted, errors = several.results, dict(several.errors)
        except OttlaError as error:
            if len(places) != 1:
                raise
            errors = dict.fromkeys(places, error)
        partitions = {
            str(place.partition): PartitionDeletion(
                deleted=deleted.get(place, _before(errors.get(place))),
                error=_error_of(errors[place]) if place in errors else None,
            )
            for place in sorted(places)
        }
        count = sum(each.deleted for each in partitions.values())
        if not dry_run:
            log.info(
                "deleted: topic=%s records=%d partitions=%d failed=%d",
                topic,
                count,
                len(places),
                len(errors),
            )
        answer = DeletionAnswer(topic=topic, dry_run=dry_run, deleted=count, partitions=partitions)
        statuses = {_error_of(error).status for error in errors.values()}
        if not errors:
            return answer, 200
        # One status for all, if they failed alike and nothing was done; else there is one for each.
        alike = len(errors) == len(places) and len(statuses) == 1 and not count
        return answer, statuses.pop() if alike else 207

    async def _check_partitions(self, topic: str, numbers: Mapping[int, Any] | list[int]) -> None:
        described = await self._describe(topic)
        known = {each.partition for each in described.partitions}
        for number in numbers:
            if number not in known:
                raise Refusal(
                    404,
                    f"topic '{topic}' has no partition {number}; it has {len(known)}",
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name,
                )


def _before(error: OttlaError | None) -> int:
    return error.deleted if isinstance(error, PartlyDeleted) else 0


def _error_of(error: OttlaError) -> Error:
    # The partition is named by its place in the answer.
    return Error(**refusal_of(error, named=False).error)


def _shown(record: Record) -> dict[str, Any]:
    """As `ottla consume --json` shows it."""
    return {
        "offset": record.offset,
        "timestamp": record.timestamp if record.timestamp >= 0 else None,
        **bytes_to_json("key", record.key),
        **bytes_to_json("value", record.value),
        "headers": [
            {"key": readable_key(name), **bytes_to_json("value", value)}
            for name, value in record.headers
        ],
    }
