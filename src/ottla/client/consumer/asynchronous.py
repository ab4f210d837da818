"""The consumer for asyncio.

    async with AsyncConsumer("localhost:9092", group="billing") as consumer:
        await consumer.subscribe("orders")
        async for batch in consumer.batches():      # pyarrow.RecordBatch
            ...

    async with AsyncConsumer("localhost:9092") as consumer:
        table = await consumer.read("orders", start=datetime(2026, 11, 15))

Positions and commits: a partition's position is the offset after the last row handed out. With
enable.auto.commit, what was handed out counts as dealt with when more is asked for (or when the
consumer is closed), and that is what is committed, at every interval and when a partition is given
up: rows of which the user has not come back are read again by whoever goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from ottla.client.admin_offsets import CommittedOffset
from ottla.client.cluster import Cluster
from ottla.client.configuration import ConsumerSettings, read_settings
from ottla.client.consumer.classic import ClassicMembership
from ottla.client.consumer.commits import AnyCommit, Commits, at_position, commit_of
from ottla.client.consumer.epochs import NO_EPOCH
from ottla.client.consumer.fetching import AnyLayout, Fetcher
from ottla.client.consumer.membership import Membership, MembershipProtocolUnavailable
from ottla.client.consumer.next_generation import NextGenerationMembership
from ottla.client.consumer.partitions import ReadPartition, Result
from ottla.client.consumer.records import ConsumedRecord
from ottla.client.consumer.scanning import Scan
from ottla.client.consumer.starting import resolve, starting_offsets
from ottla.client.errors import (
    ClientClosed,
    ConfigurationError,
    OttlaError,
    TimedOut,
    Unsupported,
    broker_error,
    told,
)
from ottla.client.positions import EARLIEST, LATEST, AnyPosition, TopicPartition
from ottla.protocol.errors import ErrorCode
from ottla.wire.errors import WireError

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

MAX_ROWS: Final = 256 * 1024
# Allocators give pieces of more than 16 MiB back to the system at once, and have others cleared anew.
MAX_BYTES: Final = 12 * 1024 * 1024
CLOSE_PATIENCE: Final = 30.0  # seconds

AnyPartition: TypeAlias = TopicPartition | tuple[str, int]
Topics: TypeAlias = str | Iterable[str] | re.Pattern[str]
# Told of partitions that come and go, in the event loop; it must not block.
Listener: TypeAlias = Callable[[frozenset[TopicPartition]], object]

_numbers = itertools.count()


class AsyncConsumer:
    """See the module. To be made where an event loop runs, and used in that loop alone."""

    def __init__(
        self,
        servers: str | Mapping[str, object] | None = None,
        /,
        *,
        group: str | None = None,
        columns: Iterable[str] | None = None,
        max_rows: int = MAX_ROWS,
        max_bytes: int = MAX_BYTES,
        arrow: bool = True,
        **options: object,
    ) -> None:
        """`servers` is "host:port,…" or a dictionary of options; further options are keywords.

        `group` is group.id. `columns` picks columns of the rows, the others are not decoded; a batch
        has at most `max_rows` rows and about `max_bytes` bytes. Without `arrow`, batches are lists of
        records (RecordList), which are there sooner where there are few: pyarrow is not imported.
        """
        if group is not None:
            options["group.id"] = group
        self.settings = read_settings(ConsumerSettings, servers, options)
        self._layout = _layout(columns, arrow)
        self._bounds = (max_rows, max_bytes)
        self._cluster = Cluster(self.settings)
        self._fetcher = Fetcher(
            self._cluster,
            self.settings,
            self._layout,
            reset=self._reset,
            lane=f"fetch-{next(_numbers)}",
            max_rows=max_rows,
            max_bytes=max_bytes,
            outlives_truncation=self.settings.offset_reset != "error",
        )
        group_id = self.settings.group_id
        self._commits = None if group_id is None else Commits(self._cluster, group_id)
        self._membership: Membership | None = None
        self._pattern: re.Pattern[str] | None = None
        self._subscribed: frozenset[str] = frozenset()
        self._forget_refresh: Callable[[], None] | None = None
        self._on_assign: Listener | None = None
        self._on_revoke: Listener | None = None
        # A batch that is handed out record by record: its result, and the rows still to come.
        self._current: tuple[Result, pa.RecordBatch, int] | None = None
        self._polled_at = time.monotonic()
        self._auto_commits: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._scans: set[Scan] = set()
        self._closed = False

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches."""
        return self._layout.schema

    # What is read

    async def subscribe(
        self,
        topics: Topics,
        *,
        on_assign: Listener | None = None,
        on_revoke: Listener | None = None,
    ) -> None:
        """Read these topics: a name, several, or all that match a compiled pattern.

        In a group, its members share the partitions; `on_assign` and `on_revoke` hear of it. Without
        a group this consumer reads all partitions, also those that are added later.
        """
        self._check_open()
        await self._end_assignment()
        self._on_assign, self._on_revoke = on_assign, on_revoke
        if isinstance(topics, re.Pattern):
            self._pattern = topics
            self._cluster.watch(None)
            try:
                await self._cluster.brokers()  # patiently, as long as none answers
                await self._cluster.refresh(None)
            except WireError as error:
                raise told(error) from error
            names = self._matching()
        else:
            names = frozenset([topics] if isinstance(topics, str) else topics)
            if not names:
                raise ValueError("no topic is given")
            self._cluster.watch(names)
            await self._cluster.topics(names, allow_auto_create=self.settings.auto_create_topics)
        self._subscribed = names
        if self._commits is None:
            await self._read_all()
        else:
            await self._join(names)
        self._forget_refresh = self._cluster.on_refresh(self._metadata_refreshed)
        self._metadata_refreshed()

    async def assign(
        self, partitions: Iterable[AnyPartition] | Mapping[AnyPartition, AnyPosition]
    ) -> None:
        """Read these partitions, from the positions given.

        Without positions: from what the group has committed, else by auto.offset.reset.
        """
        self._check_open()
        await self._end_assignment()
        given = {TopicPartition(*each): None for each in partitions}
        if not given:
            return
        topics = {each.topic for each in given}
        self._cluster.watch(topics)
        await self._check_partitions(given)
        if isinstance(partitions, Mapping):
            wanted = {TopicPartition(*each): position for each, position in partitions.items()}
            offsets = await resolve(self._cluster, self.settings, wanted)
            self._fetcher.add(_reading(each, offset) for each, offset in offsets.items())
        else:
            self._fetcher.add(await self._begin_at(set(given)))
        self._begin_auto_commits()

    async def _check_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """TopicNotFound if one of them does not exist: nothing would ever come of it."""
        topics = {each.topic for each in partitions}
        missing: list[TopicPartition] = []
        for _ in range(2):
            known = await self._cluster.topics(topics)
            missing = [
                each for each in partitions if each.partition not in known[each.topic].partitions
            ]
            if not missing:
                return
            # What is known may be from before it was added.
            self._cluster.request_refresh(*(each.topic for each in missing))
        topic, index = missing[0]
        count = len(self._cluster.metadata.topics[topic].partitions)
        raise broker_error(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"there is no partition {index}; there are {count}",
            f"topic '{topic}'",
        )

    async def unsubscribe(self) -> None:
        """Read nothing any more, and leave the group."""
        self._check_open()
        await self._end_assignment()

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are read now."""
        return frozenset(self._fetcher.partitions)

    @property
    def subscription(self) -> frozenset[str]:
        """The topics that are subscribed to now."""
        return self._subscribed

    # Rows

    async def batches(self, *, timeout: float | None = None) -> AsyncIterator[pa.RecordBatch]:
        """Batches of rows, for ever; with `timeout`, until nothing has come for so many seconds."""
        while (rows := await self.next_batch(timeout=timeout)) is not None:
            yield rows

    async def next_batch(self, *, timeout: float | None = None) -> pa.RecordBatch | None:
        """The next rows, all of one partition; None if none came within `timeout` seconds.

        What is wrong with a partition is raised here, in the place of its records, again and again
        until it is sought elsewhere, paused or given up; other partitions go on meanwhile.
        """
        self._check_reading()
        self._poll()
        rest = self._rest()
        if rest is not None:
            return rest
        result = await self._next_result(timeout)
        if result is None:
            return None
        assert result.rows is not None
        result.hand_out()
        return result.rows

    async def __aiter__(self) -> AsyncIterator[ConsumedRecord]:
        """Records, one after the other, for ever."""
        while True:
            record = await self.next_record()
            if record is not None:
                yield record

    async def next_record(self, *, timeout: float | None = None) -> ConsumedRecord | None:
        """The next record; None if none came within `timeout` seconds. Needs all columns."""
        self._check_reading()
        self._poll()
        if self._current is None or self._current[0].stale:
            self._current = None
            result = await self._next_result(timeout)
            if result is None:
                return None
            assert result.rows is not None
            self._iterator = self._layout.records(result.rows)
            self._current = (result, result.rows, 0)
        result, rows, given = self._current
        record = next(self._iterator)
        given += 1
        last = given == rows.num_rows
        result.hand_out(None if last else record.offset + 1)
        self._current = None if last else (result, rows, given)
        return record

    def _rest(self) -> pa.RecordBatch | None:
        """What is left of a batch that was begun record by record."""
        if self._current is None:
            return None
        result, rows, given = self._current
        self._current = None
        if result.stale:
            return None
        result.hand_out()
        return rows.slice(given)

    def _poll(self) -> None:
        """The user asks for more: what was handed out before is dealt with."""
        overslept = self.seconds_since_poll > self.settings.max_poll_interval
        self._polled_at = time.monotonic()
        for state in self._fetcher.partitions.values():
            state.deal_with_all()
        if overslept and self._membership is not None:
            self._membership.wake()

    async def _next_result(self, timeout: float | None) -> Result | None:
        queue = self._fetcher.queue
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._check_membership()
            result = queue.take()
            if result is not None:
                if result.error is not None:
                    queue.put(result)  # it stays true
                    raise result.error
                if result.rows is not None and result.rows.num_rows:
                    return result
                result.hand_out()
                continue
            try:
                wait = None if deadline is None else deadline - time.monotonic()
                async with asyncio.timeout(wait):
                    await queue.news()
            except TimeoutError:
                return None

    def _check_reading(self) -> None:
        self._check_open()
        idle = not self._fetcher.partitions and not self._subscribed and self._pattern is None
        if idle:
            raise ConfigurationError(
                "nothing is read: subscribe to topics or assign partitions first"
            )

    def _check_membership(self) -> None:
        membership = self._membership
        if membership is not None and membership.failure is not None:
            raise membership.failure
        if self._following is not None and self._following.done():
            error = self._following.exception()
            self._following = None
            if error is not None:
                raise error

    # Bounded reads

    async def read(
        self,
        topic: str,
        start: AnyPosition | Mapping[int, AnyPosition] = EARLIEST,
        end: AnyPosition | Mapping[int, AnyPosition] = LATEST,
        *,
        columns: Iterable[str] | None = None,
    ) -> pa.Table:
        """What a topic holds from `start` up to, not including, `end`, as a table.

        Positions are offsets, times, "earliest" or "latest", for all partitions or by partition.
        "latest" is the end as it is now. This neither uses nor moves the consumer's own positions.
        """
        async with await self.scan(topic, start, end, columns=columns) as scan:
            import pyarrow as pa

            return pa.Table.from_batches([rows async for rows in scan], scan.schema)

    async def scan(
        self,
        topic: str,
        start: AnyPosition | Mapping[int, AnyPosition] = EARLIEST,
        end: AnyPosition | Mapping[int, AnyPosition] = LATEST,
        *,
        columns: Iterable[str] | None = None,
    ) -> Scan:
        """The same as batches, one after the other, with bounded memory."""
        self._check_open()
        layout = self._layout if columns is None else _layout(columns, arrow=True)
        scan = await Scan.begin(
            self._cluster,
            self.settings,
            layout,
            topic,
            start,
            end,
            lane=f"fetch-{next(_numbers)}",
            max_rows=self._bounds[0],
            max_bytes=self._bounds[1],
        )
        self._scans.add(scan)
        scan.on_close(lambda: self._scans.discard(scan))
        return scan

    # Positions

    async def seek(self, partition: AnyPartition, position: AnyPosition) -> None:
        """Go on from this position: an offset, a time, "earliest" or "latest"."""
        await self.seek_all({partition: position})

    async def seek_all(self, positions: Mapping[AnyPartition, AnyPosition]) -> None:
        """Go on from these positions."""
        wanted = {TopicPartition(*each): position for each, position in positions.items()}
        for each in wanted:
            self._state(each)
        for each, offset in (await resolve(self._cluster, self.settings, wanted)).items():
            self._state(each).begin_turn(offset)
        self._fetcher.wake()

    def position(self, partition: AnyPartition) -> int:
        """The offset after the last one handed out."""
        return self._state(TopicPartition(*partition)).position

    def positions(self) -> dict[TopicPartition, int]:
        """The positions of all partitions that are read."""
        return {each: state.position for each, state in self._fetcher.partitions.items()}

    async def lag(self, *partitions: AnyPartition) -> dict[TopicPartition, int]:
        """How many offsets lie between the positions and the ends, of these or all partitions."""
        chosen = {TopicPartition(*each) for each in partitions} or set(self._fetcher.partitions)
        ends = await resolve(self._cluster, self.settings, dict.fromkeys(chosen, LATEST))
        return {each: max(0, ends[each] - self.position(each)) for each in sorted(chosen)}

    def pause(self, *partitions: AnyPartition) -> None:
        """Hand out nothing of these partitions (of all, if none are named) until `resume`."""
        for each in partitions or tuple(self._fetcher.partitions):
            self._state(TopicPartition(*each)).paused = True
        self._fetcher.make_room()

    def resume(self, *partitions: AnyPartition) -> None:
        """The end of a pause, for these partitions or for all."""
        for each in partitions or tuple(self._fetcher.partitions):
            self._state(TopicPartition(*each)).paused = False
        self._fetcher.wake()

    @property
    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(each for each, state in self._fetcher.partitions.items() if state.paused)

    def _state(self, partition: TopicPartition) -> ReadPartition:
        try:
            return self._fetcher.partitions[partition]
        except KeyError:
            raise ValueError(f"{partition} is not assigned to this consumer") from None

    # Commits

    async def commit(
        self,
        offsets: Mapping[AnyPartition, AnyCommit] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Commit the positions, or these offsets; an offset may come with metadata, as a pair."""
        commits = self._need_group()
        if offsets is None:
            chosen = {
                each: at_position(state.position, state.epoch)
                for each, state in self._fetcher.partitions.items()
            }
        else:
            chosen = {TopicPartition(*each): commit_of(given) for each, given in offsets.items()}
        await commits.commit(chosen, self._membership, timeout=timeout)
        if offsets is None:
            # So the user says that all of it is dealt with: auto-commit must not go back behind it.
            for each, state in self._fetcher.partitions.items():
                if each in chosen and state.dealt_with < chosen[each].offset <= state.position:
                    state.dealt_with = state.committed = chosen[each].offset
                    state.dealt_epoch = _epoch_of(chosen[each])

    async def committed(
        self, *partitions: AnyPartition, timeout: float | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """What the group has committed, for these partitions or for those that are assigned."""
        commits = self._need_group()
        chosen = [TopicPartition(*each) for each in partitions or tuple(self._fetcher.partitions)]
        return await commits.committed(chosen, stable=self._stable, timeout=timeout)

    def _need_group(self) -> Commits:
        self._check_open()
        if self._commits is None:
            raise ConfigurationError("offsets are a group's: give the consumer a group")
        return self._commits

    @property
    def _stable(self) -> bool:
        return self.settings.isolation == "read_committed"

    async def _commit_dealt_with(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> None:
        """What auto-commit commits."""
        if self._commits is None or not self.settings.auto_commit:
            return
        states = [
            self._fetcher.partitions[each]
            for each in partitions
            if each in self._fetcher.partitions
        ]
        chosen = {
            state.partition: at_position(state.dealt_with, state.dealt_epoch)
            for state in states
            if state.dealt_with >= 0 and state.dealt_with != state.committed
        }
        if chosen:
            await self._commits.commit(chosen, self._membership, timeout=timeout)
            for state in states:
                # Not what it is by now: the user may have gone on meanwhile.
                if state.partition in chosen:
                    state.committed = chosen[state.partition].offset

    def _begin_auto_commits(self) -> None:
        if self._commits is not None and self.settings.auto_commit and self._auto_commits is None:
            self._auto_commits = asyncio.create_task(self._commit_at_intervals())

    async def _commit_at_intervals(self) -> None:
        while True:
            await asyncio.sleep(self.settings.auto_commit_interval)
            try:
                await self._commit_dealt_with(tuple(self._fetcher.partitions))
            except OttlaError as error:
                logger.warning("committing failed, the next interval tries again: %s", error)

    # The group

    async def _join(self, topics: frozenset[str]) -> None:
        kinds: list[type[Membership]] = [NextGenerationMembership, ClassicMembership]
        if self.settings.group_protocol is not None:
            classic = self.settings.group_protocol == "classic"
            kinds = [ClassicMembership if classic else NextGenerationMembership]
        for kind in kinds:
            membership = kind(self._cluster, self.settings, self)
            self._membership = membership
            membership.start(topics)
            try:
                async with asyncio.timeout(self.settings.api_timeout):
                    await membership.joined()
            except TimeoutError:
                await membership.close()
                self._membership = None
                raise TimedOut(
                    f"group '{membership.group}' gave no assignment within "
                    f"{self.settings.api_timeout:g} s (default.api.timeout.ms)"
                ) from None
            except MembershipProtocolUnavailable as error:
                await membership.close()
                self._membership = None
                if kind is kinds[-1]:
                    raise Unsupported(
                        f"the broker has no groups of the consumer protocol: {error}"
                    ) from None
                logger.info("no group of the next generation, joining a classic one: %s", error)
                continue
            self._begin_auto_commits()
            return

    @property
    def seconds_since_poll(self) -> float:
        return time.monotonic() - self._polled_at

    async def begin(self, partitions: set[TopicPartition]) -> None:
        self._fetcher.add(await self._begin_at(partitions))
        if self._on_assign is not None:
            self._on_assign(frozenset(partitions))

    async def give_up(
        self, partitions: set[TopicPartition], *, timeout: float | None = None
    ) -> None:
        try:
            await self._commit_dealt_with(partitions, timeout=timeout)
        except OttlaError as error:
            logger.warning("committing before partitions are given up failed: %s", error)
        self.lose(partitions)

    def lose(self, partitions: set[TopicPartition]) -> None:
        self._fetcher.drop(partitions)
        if self._on_revoke is not None and partitions:
            self._on_revoke(frozenset(partitions))

    async def _begin_at(self, partitions: set[TopicPartition]) -> list[ReadPartition]:
        """Where to begin: at what is committed, else by auto.offset.reset."""
        committed: dict[TopicPartition, CommittedOffset] = {}
        if self._commits is not None:
            committed = await self._commits.committed(partitions, stable=self._stable)
        missing = [each for each in partitions if each not in committed]
        offsets = await starting_offsets(self._cluster, self.settings, missing)
        await self._outlive_old_leaders(committed)
        return [
            *(_reading(each, there.offset, _epoch_of(there)) for each, there in committed.items()),
            *(_reading(each, offset) for each, offset in offsets.items()),
        ]

    async def _outlive_old_leaders(
        self, committed: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        """Who has read in a later epoch than the metadata know of must not ask the leader of then."""
        outdated = set()
        for each, there in committed.items():
            info = self._cluster.metadata.partition(*each)
            if info is not None and 0 <= info.leader_epoch < _epoch_of(there):
                outdated.add(each.topic)
        if outdated:
            self._cluster.request_refresh(*outdated)
            await self._cluster.topics(outdated)

    async def _reset(self, state: ReadPartition) -> int:
        if self.settings.offset_reset == "error":
            raise broker_error(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {state.fetch_offset} is not in the log: seek to go on",
                str(state.partition),
            )
        found = await starting_offsets(self._cluster, self.settings, [state.partition])
        return found[state.partition]

    # Topics that come, grow and go

    def _matching(self) -> frozenset[str]:
        assert self._pattern is not None
        return frozenset(
            info.name
            for info in self._cluster.metadata
            if self._pattern.fullmatch(info.name)
            and not (info.internal and self.settings.exclude_internal_topics)
        )

    def _metadata_refreshed(self) -> None:
        if self._pattern is not None:
            self._subscribed = self._matching()
            if self._membership is not None:
                self._membership.subscribe(self._subscribed)
        idle = self._following is None or self._following.done()
        if self._commits is None and idle and self._new_partitions():
            self._following = asyncio.create_task(self._read_all())

    def _new_partitions(self) -> list[TopicPartition]:
        """Partitions of the subscribed topics that are not read yet."""
        topics = self._cluster.metadata.topics
        every = (
            TopicPartition(name, index)
            for name in sorted(self._subscribed)
            if name in topics
            for index in topics[name].partitions
        )
        return [each for each in every if each not in self._fetcher.partitions]

    async def _read_all(self) -> None:
        """Without a group: read what is not read yet; what came later, from its beginning."""
        known = {each.topic for each in self._fetcher.partitions}
        new = self._new_partitions()
        first = [each for each in new if each.topic not in known]
        offsets = await starting_offsets(self._cluster, self.settings, first)
        grown: dict[TopicPartition, AnyPosition] = {
            each: EARLIEST for each in new if each.topic in known
        }
        offsets.update(await resolve(self._cluster, self.settings, grown))
        # Metadata may have been refreshed meanwhile, and somebody else have been here.
        reading = self._fetcher.partitions
        self._fetcher.add(
            _reading(each, offset) for each, offset in offsets.items() if each not in reading
        )

    # The end

    async def _end_assignment(self, *, timeout: float | None = None) -> None:
        self._current = None
        self._pattern = None
        self._subscribed = frozenset()
        if self._forget_refresh is not None:
            self._forget_refresh()
            self._forget_refresh = None
        for task in (self._auto_commits, self._following):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, OttlaError):
                    await task
        self._auto_commits = self._following = None
        partitions = set(self._fetcher.partitions)
        for state in self._fetcher.partitions.values():
            state.deal_with_all()
        membership = self._membership
        if membership is not None and membership.failure is not None:
            self.lose(partitions)
        elif partitions:
            await self.give_up(partitions, timeout=timeout)
        self._membership = None
        if membership is not None:
            await membership.close()

    async def close(self, *, timeout: float = CLOSE_PATIENCE) -> None:
        """Commit (if that is automatic), leave the group, close the connections.

        The commit may take `timeout` seconds at most, leaving the group another few: if no broker
        answers, whoever goes on reads again what could not be committed.
        """
        if self._closed:
            return
        self._closed = True
        try:
            for scan in list(self._scans):
                await scan.close()
            await self._end_assignment(timeout=timeout)
        finally:
            await self._fetcher.close()
            await self._cluster.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the consumer was closed")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()


def _layout(columns: Iterable[str] | None, arrow: bool) -> AnyLayout:
    if not arrow and columns is None:
        from ottla.client.consumer.plain_rows import PlainLayout

        return PlainLayout()
    from ottla.client.consumer.rows import RowsLayout

    return RowsLayout(columns)


def _reading(partition: TopicPartition, offset: int, epoch: int = NO_EPOCH) -> ReadPartition:
    return ReadPartition(
        partition,
        offset,
        offset,
        dealt_with=offset,
        committed=offset,
        epoch=epoch,
        fetched_epoch=epoch,
        dealt_epoch=epoch,
    )


def _epoch_of(commit: CommittedOffset) -> int:
    return NO_EPOCH if commit.leader_epoch is None else commit.leader_epoch
