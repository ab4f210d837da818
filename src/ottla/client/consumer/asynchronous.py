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

from ottla.client.admin.offsets import CommittedOffset
from ottla.client.cluster import Cluster
from ottla.client.configuration.clients import ConsumerSettings, read_settings
from ottla.client.consumer.fetching import AnyLayout, Fetcher
from ottla.client.consumer.group.classic import ClassicMembership
from ottla.client.consumer.group.commits import (
    AnyCommit,
    Commits,
    at_position,
    commit_of,
    epoch_of,
)
from ottla.client.consumer.group.membership import Membership, MembershipProtocolUnavailable
from ottla.client.consumer.group.next_generation import NextGenerationMembership
from ottla.client.consumer.group.revoked import RevokedPartitions
from ottla.client.consumer.group.subscription import Subscription, Topics, names_to_subscribe
from ottla.client.consumer.partitions import ReadPartition, Result
from ottla.client.consumer.records import ConsumedRecord
from ottla.client.consumer.scanning import Scan
from ottla.client.consumer.starting import (
    begin_at_commits,
    check_partitions,
    not_heard_of,
    offsets_of_new,
    reset_offset,
    resolve,
)
from ottla.client.errors import (
    ClientClosed,
    CommitFailed,
    ConfigurationError,
    Failures,
    OttlaError,
    TimedOut,
    TopicNotFound,
    Unsupported,
    client_error,
)
from ottla.client.naming import (
    AnyPartition,
    Names,
    Partitions,
    by_partition,
    name_of,
    names_of,
    partition_of,
    partitions_of,
)
from ottla.client.positions import EARLIEST, LATEST, AnyPosition, TopicPartition
from ottla.protocol.errors import ErrorCode
from ottla.wire.errors import WireError

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.client.producer.transactions import GroupMember

logger = logging.getLogger(__name__)

MAX_ROWS: Final = 256 * 1024
# Allocators give pieces of more than 16 MiB back to the system at once, and have others cleared anew.
MAX_BYTES: Final = 12 * 1024 * 1024
CLOSE_PATIENCE: Final = 30.0  # seconds
# How long a membership waits, without heartbeats, until it is known where to begin (and at most a
# third of its session). After that it goes on, and partitions are read as soon as it is known.
BEGIN_PATIENCE: Final = 2.0  # seconds

# Called with partitions that were assigned or revoked, in the event loop; it must not block. What it
# raises ends the membership, and is raised where records are asked for.
Listener: TypeAlias = Callable[[frozenset[TopicPartition]], object]

_numbers = itertools.count()


class AsyncConsumer:
    """Reads topics in an event loop, as Arrow batches or records.

    To be made where an event loop runs, and used in that loop alone.
    """

    def __init__(
        self,
        servers: str | Mapping[str, object] | None = None,
        /,
        *,
        group: str | None = None,
        columns: Names | None = None,
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
        self._subscription = Subscription()
        self._forget_refresh: Callable[[], None] | None = None
        self._on_assign: Listener | None = None
        self._on_revoke: Listener | None = None
        # A batch that is handed out record by record: its result, and the rows still to come.
        self._current: tuple[Result, pa.RecordBatch, int] | None = None
        self._polled_at = time.monotonic()
        # In a call that waits until the group has given an assignment.
        self._is_joining = False
        self._auto_commits: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        # Partitions that the group has assigned and of which it is not known yet where to begin, with
        # the task that finds it out.
        self._starting: dict[TopicPartition, asyncio.Task[None]] = {}
        self._revoked = RevokedPartitions()
        # Those of topics that a pattern chose and somebody deleted: they come back with their topic.
        self._deleted: set[TopicPartition] = set()
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

        TopicNotFound (or InvalidTopic, NotAuthorized) if a topic that is named is not there; one that a
        pattern has chosen may come and go. TimedOut if the group gives no assignment in time.
        """
        self._check_open()
        await self._end_assignment()
        self._on_assign, self._on_revoke = on_assign, on_revoke
        if isinstance(topics, re.Pattern):
            self._subscription = Subscription(
                pattern=topics, exclude_internal=self.settings.exclude_internal_topics
            )
            self._cluster.watch(None)
            try:
                await self._cluster.brokers()  # patiently, as long as none answers
                await self._cluster.refresh(None)
            except WireError as error:
                raise client_error(error) from error
            self._subscription.match(self._cluster.metadata)
        else:
            named = Subscription(names_to_subscribe(topics))
            self._cluster.watch(named.topics)
            await self._cluster.topics(
                named.topics, allow_auto_create=self.settings.auto_create_topics
            )
            self._subscription = named
        if self._commits is None:
            await self._read_all()
        else:
            await self._join(self._subscription.topics)
        self._forget_refresh = self._cluster.on_refresh(self._metadata_refreshed)
        self._metadata_refreshed()

    async def assign(self, partitions: Partitions | Mapping[AnyPartition, AnyPosition]) -> None:
        """Read these partitions, from the positions given.

        Without positions: from what the group has committed, else by auto.offset.reset. TopicNotFound
        if there is no such partition; NoStartingOffset if nothing says where to begin.
        """
        self._check_open()
        await self._end_assignment()
        given = partitions_of(partitions)
        if not given:
            return
        topics = {each.topic for each in given}
        self._cluster.watch(topics)
        await check_partitions(self._cluster, given)
        if isinstance(partitions, Mapping):
            offsets = await resolve(self._cluster, self.settings, by_partition(partitions))
            self._fetcher.add(
                ReadPartition.starting_at(each, offset) for each, offset in offsets.items()
            )
        else:
            self._fetcher.add(await self._begin_at(set(given)))
        self._begin_auto_commits()

    async def unsubscribe(self) -> None:
        """Read nothing any more, and leave the group; a commit that fails then is logged."""
        self._check_open()
        await self._end_assignment()

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are read now."""
        return frozenset(self._fetcher.partitions)

    @property
    def subscription(self) -> frozenset[str]:
        """The topics that are subscribed to now."""
        return self._subscription.topics

    # Rows

    async def batches(self, *, timeout: float | None = None) -> AsyncIterator[pa.RecordBatch]:
        """Batches of rows, for ever; with `timeout`, until nothing has come for so many seconds.

        Raises what `next_batch` does.
        """
        while (rows := await self.next_batch(timeout=timeout)) is not None:
            yield rows

    async def next_batch(self, *, timeout: float | None = None) -> pa.RecordBatch | None:
        """The next rows, all of one partition; None if none came within `timeout` seconds.

        What is wrong with a partition is raised here, in the place of its records, again and again
        until it is sought elsewhere, paused or given up; other partitions go on meanwhile: TopicNotFound
        (of topics that were named), OffsetOutOfRange, LogTruncated, NoStartingOffset, CorruptRecords,
        NotAuthorized. Also what has ended the membership in the group, for example Fenced.
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
        """The next record; None if none came within `timeout` seconds. Raises what `next_batch` does.

        ValueError if the consumer was made for some columns only: records have all of them.
        """
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
        """The rest of a batch of which some records were handed out one by one."""
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
        was_overdue = self.seconds_since_poll > self.settings.max_poll_interval
        self._polled_at = time.monotonic()
        for state in self._fetcher.partitions.values():
            state.deal_with_all()
        if self.settings.auto_commit:
            self._revoked.forget_rows()  # whoever commits nothing need not hear what was not
        if was_overdue and self._membership is not None:
            self._membership.wake()

    async def _next_result(self, timeout: float | None) -> Result | None:
        queue = self._fetcher.queue
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._check_membership()
            result = queue.take()
            if result is not None:
                if result.error is not None:
                    if self._is_handled_silently(result):
                        continue
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
        if not self._fetcher.partitions and not self._subscription:
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
        columns: Names | None = None,
    ) -> pa.Table:
        """What a topic holds from `start` up to, not including, `end`, as a table.

        Positions are offsets, times, "earliest" or "latest", for all partitions or by partition.
        "latest" is the end as it is now. This neither uses nor moves the consumer's own positions.

        TopicNotFound if there is no such topic, ValueError for a partition, position or column that
        cannot be, OffsetOutOfRange where `start` is an offset that is gone, CorruptRecords, and TimedOut
        if no broker answers for default.api.timeout.ms.
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
        columns: Names | None = None,
    ) -> Scan:
        """What `read` gives, as batches one after the other, with bounded memory; raises the same."""
        self._check_open()
        name_of(topic, "topic")
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
        """Go on from this position: an offset, a time, "earliest" or "latest".

        ValueError if the partition is not assigned to this consumer, or the position is none. An offset
        that does not exist is noticed when it is read (auto.offset.reset).
        """
        await self.seek_all({partition: position})

    async def seek_all(self, positions: Mapping[AnyPartition, AnyPosition]) -> None:
        """Go on from these positions; see `seek`. If one of them cannot be, none is moved."""
        wanted = by_partition(positions)
        for each in wanted:
            self._state(each)
        for each, offset in (await resolve(self._cluster, self.settings, wanted)).items():
            self._state(each).begin_turn(offset)
        self._fetcher.wake()

    def position(self, partition: AnyPartition) -> int:
        """The offset after the last one handed out; ValueError if the partition is not assigned."""
        return self._state(partition_of(partition)).position

    def positions(self) -> dict[TopicPartition, int]:
        """The positions of all partitions that are read."""
        return {each: state.position for each, state in self._fetcher.partitions.items()}

    async def lag(self, *partitions: AnyPartition) -> dict[TopicPartition, int]:
        """How many offsets lie between the positions and the ends, of these or all partitions.

        ValueError for a partition that is not assigned.
        """
        chosen = {partition_of(each) for each in partitions} or set(self._fetcher.partitions)
        ends = await resolve(self._cluster, self.settings, dict.fromkeys(chosen, LATEST))
        return {each: max(0, ends[each] - self.position(each)) for each in sorted(chosen)}

    def pause(self, *partitions: AnyPartition) -> None:
        """Hand out nothing of these partitions (of all, if none are named) until `resume`.

        ValueError for a partition that is not assigned. The place in the group is kept only while
        records are asked for (max.poll.interval.ms), of which there may be none.
        """
        for each in partitions or tuple(self._fetcher.partitions):
            self._state(partition_of(each)).paused = True
        self._fetcher.make_room()

    def resume(self, *partitions: AnyPartition) -> None:
        """The end of a pause, for these partitions or for all; ValueError as for `pause`."""
        for each in partitions or tuple(self._fetcher.partitions):
            self._state(partition_of(each)).paused = False
        self._fetcher.wake()

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions of which nothing is handed out now."""
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
        """Commit the positions, or these offsets; an offset may come with metadata, as a pair.

        CommitFailed if the group has taken partitions away, of which the user has rows that were not
        committed (it is raised once for them), or whose offsets are given: the others are committed.
        TopicNotFound if a partition does not exist, ConfigurationError if there is no group.
        """
        commits = self._need_group()
        reading = self._fetcher.partitions
        if offsets is None:
            revoked = self._revoked.missed(reading)
            chosen = {
                each: at_position(state.position, state.epoch) for each, state in reading.items()
            }
        else:
            chosen = {each: commit_of(given) for each, given in by_partition(offsets).items()}
            revoked = self._revoked.among(chosen, reading)
            for each in revoked:
                del chosen[each]
        revoked = {each for each in revoked if not self._is_deleted_match(each)}
        try:
            await commits.commit(
                chosen,
                self._membership,
                timeout=timeout,
                await_rebalance=True,
                ignore_deleted=self._subscription.by_pattern,
            )
        except CommitFailed as error:
            for each in error.partitions:
                chosen.pop(each, None)
            self._note_committed(chosen, positions=offsets is None)
            self._revoked.forget_rows(error.partitions)
            if not revoked:
                raise
            raise commits.failed(error.partitions | revoked, error.code) from error
        self._note_committed(chosen, positions=offsets is None)
        if revoked:
            failure = None if self._membership is None else self._membership.failure
            raise commits.failed(revoked, ErrorCode.UNKNOWN_MEMBER_ID) from failure

    def _note_committed(
        self, chosen: Mapping[TopicPartition, CommittedOffset], *, positions: bool
    ) -> None:
        for each, commit in chosen.items():
            state = self._fetcher.partitions.get(each)
            if state is None:
                continue
            state.saved = commit.offset
            # With the positions the user says that all before them is dealt with: auto-commit must not
            # go back before them.
            if positions and state.dealt_with < commit.offset <= state.position:
                state.dealt_with = state.committed = commit.offset
                state.dealt_epoch = epoch_of(commit)

    async def committed(
        self, *partitions: AnyPartition, timeout: float | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """What the group has committed, for these partitions or for those that are assigned.

        Partitions without a commit are left out. ConfigurationError if there is no group.
        """
        commits = self._need_group()
        chosen = [partition_of(each) for each in partitions or tuple(self._fetcher.partitions)]
        stable = self.settings.reads_committed
        return await commits.committed(chosen, stable=stable, timeout=timeout)

    def group_member(self) -> GroupMember:
        """Who this consumer is in its group, for `Producer.send_offsets_to_transaction`.

        Offsets that are sent so are refused (UnknownMember, Fenced) once the group has gone on without
        this consumer; those that only name the group are not. ConfigurationError if there is no group.
        """
        # Here, because it brings the whole producer with it, and few need this.
        from ottla.client.producer.transactions import GroupMember

        self._need_group()
        assert self.settings.group_id is not None
        membership = self._membership
        if membership is None:
            return GroupMember(self.settings.group_id)
        return GroupMember(
            membership.group, membership.epoch, membership.member_id, membership.instance_id
        )

    def _need_group(self) -> Commits:
        self._check_open()
        if self._commits is None:
            raise ConfigurationError("offsets are a group's: give the consumer a group")
        return self._commits

    async def _commit_dealt_with(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> None:
        """Commits, automatically, what the user has dealt with."""
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
            await self._commits.commit(
                chosen,
                self._membership,
                timeout=timeout,
                ignore_deleted=self._subscription.by_pattern,
            )
            for state in states:
                # Not what it is by now: the user may have gone on meanwhile.
                if state.partition in chosen:
                    state.committed = state.saved = chosen[state.partition].offset

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
            self._is_joining = True
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
            finally:
                self._is_joining = False
                self._polled_at = time.monotonic()
            self._begin_auto_commits()
            return

    # For its membership (Assignee)

    @property
    def seconds_since_poll(self) -> float:
        """How long the user has not asked for records. Not at all in a call that waits for the group."""
        return 0.0 if self._is_joining else time.monotonic() - self._polled_at

    async def begin(self, partitions: set[TopicPartition]) -> None:
        """The group has assigned these, too."""
        self._revoked.give_back(partitions)
        self._deleted -= partitions
        patience = min(BEGIN_PATIENCE, self.settings.session_timeout / 3)
        starting = asyncio.create_task(self._start(partitions))
        self._starting.update(dict.fromkeys(partitions, starting))
        try:
            await asyncio.wait([starting], timeout=patience)
        except asyncio.CancelledError:
            starting.cancel()
            raise
        if starting.done():
            starting.result()
        elif self._membership is not None:
            starting.add_done_callback(self._membership.end_with)

    async def _start(self, partitions: set[TopicPartition]) -> None:
        """Begin to read as soon as it is known where. An open transaction whose offsets have to be
        awaited, or a leader that is away, does not end the membership."""
        left = set(partitions)
        late: set[TopicPartition] = set()
        while left:
            wanted = left - late or left
            try:
                reading = await self._begin_at_what_is_left(wanted)
            except (TimedOut, Failures) as error:
                behind = not_heard_of(error, wanted)
                if not behind:
                    raise
                late |= behind
                logger.warning("not known yet where to begin, asked again: %s", error)
                continue
            finally:
                # Those that the group has taken away meanwhile, and has perhaps given back since.
                task = asyncio.current_task()
                left = {each for each in left if self._starting.get(each) is task}
            begun = wanted & left
            left -= wanted
            for each in begun:
                del self._starting[each]
            self._fetcher.add(each for each in reading if each.partition in begun)
            if self._on_assign is not None and begun:
                self._on_assign(frozenset(begun))

    async def give_up(
        self, partitions: set[TopicPartition], *, timeout: float | None = None
    ) -> None:
        """The group takes these away once what is to be committed is."""
        try:
            await self._commit_dealt_with(partitions, timeout=timeout)
        except OttlaError as error:
            logger.warning("committing before partitions are given up failed: %s", error)
        self.lose(partitions)

    def lose(self, partitions: set[TopicPartition]) -> None:
        """The group has taken these away already."""
        self._revoked.add(partitions, self._fetcher.partitions)
        self._deleted -= partitions
        self._fetcher.drop(partitions)
        begun = partitions - self._starting.keys()
        for each in partitions - begun:
            del self._starting[each]
        if self._on_revoke is not None and begun:
            self._on_revoke(frozenset(begun))

    async def _begin_at_what_is_left(self, partitions: set[TopicPartition]) -> list[ReadPartition]:
        """As `_begin_at`, without those topics of a pattern that were deleted meanwhile."""
        try:
            return await self._begin_at(partitions)
        except (TopicNotFound, Failures) as error:
            metadata = self._cluster.metadata
            left = {each for each in partitions if metadata.partition(*each) is not None}
            if not self._subscription.by_pattern or left == partitions:
                raise
            logger.info("a topic of the pattern was deleted before it was read: %s", error)
            self._deleted |= partitions - left
            return await self._begin_at(left)

    async def _begin_at(self, partitions: set[TopicPartition]) -> list[ReadPartition]:
        return await begin_at_commits(self._cluster, self.settings, self._commits, partitions)

    async def _reset(self, state: ReadPartition) -> int:
        return await reset_offset(self._cluster, self.settings, state)

    # Topics that are created, grow and are deleted

    def _metadata_refreshed(self) -> None:
        if self._subscription.by_pattern:
            self._subscription.match(self._cluster.metadata)
            if self._membership is not None:
                self._membership.subscribe(self._subscription.topics)
        if self._following is not None and not self._following.done():
            return
        if self._commits is None:
            if self._unread():
                self._following = asyncio.create_task(self._read_all())
        elif back := self._returned():
            self._following = asyncio.create_task(self._read_again(back))

    def _is_handled_silently(self, result: Result) -> bool:
        """Whether it is a deleted topic that the user has not named: nobody waits for it."""
        if not self._subscription.by_pattern or not isinstance(result.error, TopicNotFound):
            return False
        partition = result.source.partition
        logger.info("%s is not read any more, its topic was deleted: %s", partition, result.error)
        self._fetcher.drop([partition])
        self._deleted.add(partition)
        self._metadata_refreshed()  # there may be another of this name already
        return True

    def _is_deleted_match(self, partition: TopicPartition) -> bool:
        deleted = self._cluster.metadata.partition(*partition) is None
        return self._subscription.by_pattern and deleted

    def _returned(self) -> set[TopicPartition]:
        """Partitions of a pattern's topics that were deleted and made again, and stayed assigned."""
        owned = set() if self._membership is None else self._membership.owned
        metadata = self._cluster.metadata
        return {
            each for each in self._deleted & owned if metadata.partition(*each) is not None
        } - self._fetcher.partitions.keys()

    async def _read_again(self, partitions: set[TopicPartition]) -> None:
        reading = await self._begin_at_what_is_left(partitions)
        # The group may have taken them away meanwhile.
        self._fetcher.add(each for each in reading if each.partition in self._deleted)
        self._deleted -= {each.partition for each in reading}

    def _unread(self) -> list[TopicPartition]:
        return self._subscription.unread(self._cluster.metadata, self._fetcher.partitions)

    async def _read_all(self) -> None:
        """Without a group: read what is not read yet; what came later, from its beginning."""
        self._deleted.clear()
        while True:
            new = self._unread()
            try:
                offsets = await offsets_of_new(
                    self._cluster, self.settings, new, self._fetcher.partitions
                )
            except (TopicNotFound, Failures) as error:
                if not self._subscription.by_pattern or self._unread() == new:
                    raise
                logger.info("a topic of the pattern was deleted before it was read: %s", error)
                continue
            # Metadata may have been refreshed meanwhile, and somebody else have been here.
            reading = self._fetcher.partitions
            self._fetcher.add(
                ReadPartition.starting_at(each, offset)
                for each, offset in offsets.items()
                if each not in reading
            )
            return

    # The end

    async def _end_assignment(self, *, timeout: float | None = None) -> None:
        self._current = None
        self._subscription = Subscription()
        if self._forget_refresh is not None:
            self._forget_refresh()
            self._forget_refresh = None
        starting = set(self._starting.values())
        self._starting.clear()
        for task in (self._auto_commits, self._following, *starting):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, OttlaError):
                    await task
        self._auto_commits = self._following = None
        partitions = set(self._fetcher.partitions)
        for state in self._fetcher.partitions.values():
            state.deal_with_all()
        membership = self._membership
        try:
            if membership is not None and membership.failure is not None:
                self.lose(partitions)
            elif partitions:
                await self.give_up(partitions, timeout=timeout)
        finally:  # a listener may raise
            self._membership = None
            self._on_assign = self._on_revoke = None
            self._revoked.clear()
            self._deleted.clear()
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


def _layout(columns: Names | None, arrow: bool) -> AnyLayout:
    if not arrow and columns is None:
        from ottla.client.consumer.plain_rows import PlainLayout

        return PlainLayout()
    from ottla.client.consumer.rows import RowsLayout

    return RowsLayout(None if columns is None else names_of(columns, "columns"))
