"""Fetching ahead: many brokers at once, decoding beside the event loop, memory within a limit.

For each broker that leads (or is the preferred replica of) a partition to be read there is one task:
it asks for all of that broker's partitions in one request, finds from the batches' lengths where to
go on, sends the next request, and has the answer decoded in a thread meanwhile. The kernels release
the interpreter's lock, so receiving and decoding overlap.

What was fetched and not yet handed out is bounded by queued.max.messages.kbytes: requests ask for no
more than there is room for, and wait when there is none, or when many answers wait already.

Whatever goes wrong with a partition ends in one of three ways: it passes (a leader that moved) and is
tried again; the user's setting says what to do (auto.offset.reset); or it becomes an exception in the
place of the records, and the partition stands still until the user seeks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ottla.client.cluster import PASSING, Cluster
from ottla.client.configuration.clients import ConsumerSettings
from ottla.client.consumer.epochs import (
    EPOCH_IN_FETCH_SINCE,
    NO_EPOCH,
    Epochs,
    InEpoch,
    ends_of_epochs,
    epochs_of,
)
from ottla.client.consumer.incremental import Head, IncrementalAnswer
from ottla.client.consumer.partitions import ReadPartition, ReadyQueue, Result
from ottla.client.consumer.sessions import (
    SESSION_ERRORS,
    TOPIC_IDS_SINCE,
    FetchSession,
    Wanted,
)
from ottla.client.errors import (
    AdvertisedUnreachable,
    BrokerError,
    CorruptRecords,
    LogTruncated,
    OttlaError,
    TopicNotFound,
    broker_error,
    client_error,
)
from ottla.client.positions import TopicPartition
from ottla.protocol.errors import ErrorCode, error_code
from ottla.protocol.message import ZERO_UUID
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData
from ottla.record.columns import reach
from ottla.record.errors import InvalidBatch
from ottla.wire.connection import Connection
from ottla.wire.errors import WireError

if TYPE_CHECKING:
    from ottla.client.consumer.plain_rows import PlainLayout
    from ottla.client.consumer.rows import IncrementalRows, RowsLayout

logger = logging.getLogger(__name__)

# What makes rows of record batches: Arrow's, or plain records.
AnyLayout: TypeAlias = "RowsLayout | PlainLayout"

_THREADS: Final = max(1, min(4, os.cpu_count() or 1))
# Answers up to this size are decoded at once: handing them to a thread would take longer.
_DECODED_IN_PLACE: Final = 16 * 1024
# The same for what is left of one that was decoded while it came in.
_FINISHED_IN_PLACE: Final = 2 * 1024 * 1024
# Rows of this many bytes are made of an answer before they are handed to the loop.
_MADE_AT_ONCE: Final = 4 * 1024 * 1024
_WARN_AFTER: Final = 10  # failures in a row after which a broker is warned of
_SMALLEST_REQUEST: Final = 256 * 1024
_LARGEST_FETCH: Final = 1024 * 1024 * 1024
_UNKNOWN_TOPIC: Final = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    )
)

# Told of a partition whose offset is out of range; gives the new offset, or raises.
Reset = Callable[[ReadPartition], Awaitable[int]]


class Fetcher:
    """Reads partitions ahead into `queue`. To be used inside of the event loop; `close` it."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        layout: AnyLayout,
        *,
        reset: Reset,
        lane: str,
        max_rows: int,
        max_bytes: int,
        outlives_truncation: bool = False,
    ) -> None:
        self.queue = ReadyQueue(settings.queued_max_bytes)
        self.partitions: dict[TopicPartition, ReadPartition] = {}
        self._cluster = cluster
        self._settings = settings
        self._layout = layout
        self._reset = reset
        self._lane = lane
        self._max_rows = max_rows
        # Each partition may have one result more than there is room for, or it would never have any.
        self._max_bytes = min(max_bytes, max(self.queue.limit // 4, 1))
        # Whether to go on where a log was cut off; else that becomes an exception.
        self._outlives_truncation = outlives_truncation
        self._committed_only = settings.reads_committed
        self._brokers: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ottla-decode")
        self._forget_refresh = cluster.on_refresh(self.wake)
        # Not set while an answer is being decoded before it is its turn.
        self._nobody_ahead = asyncio.Event()
        self._nobody_ahead.set()
        # For those who wait: when a broker has last answered (on the loop's clock), and what is wrong
        # where none does.
        self.answered_at = 0.0
        self.trouble: OttlaError | None = None
        self._closed = False

    # What is read

    def add(self, partitions: Iterable[ReadPartition]) -> None:
        """Begin to read; the topics are known to the cluster's metadata."""
        for each in partitions:
            info = self._cluster.metadata.topics.get(each.partition.topic)
            each.topic_id = ZERO_UUID if info is None else info.topic_id
            if each.end_offset is not None and each.fetch_offset >= each.end_offset:
                each.ended = True
            self.partitions[each.partition] = each
        self.wake()

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading; rows that wait are dropped."""
        for each in partitions:
            state = self.partitions.pop(each, None)
            if state is not None:
                state.turn += 1
        self.wake()

    def make_room(self) -> None:
        """If the queue is full, let go of what paused partitions have in it: others want to be read."""
        if not self.queue.is_full:
            return
        for state in self.partitions.values():
            if state.paused and state.failed is None and state.fetch_offset > state.position:
                state.let_go()
        self.queue.sweep()

    def wake(self) -> None:
        """Something has changed: partitions, their state, or who leads them."""
        if self._closed:
            return
        self._changed.set()
        self.queue.wake()
        self._start_tasks()

    @property
    def exhausted(self) -> bool:
        """Whether all partitions have been read to their end offsets, and everything handed out."""
        return all(
            state.ended and not state.waiting and (state.decoding is None or state.decoding.done())
            for state in self.partitions.values()
        )

    async def close(self) -> None:
        self._closed = True
        self._forget_refresh()
        tasks = [*self._brokers.values(), *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._cluster.close_lane(self._lane)
        self._threads.shutdown(wait=False, cancel_futures=True)

    # Requests

    def _start_tasks(self) -> None:
        """One task for each broker that has something to be read."""
        now = asyncio.get_running_loop().time()
        for state in self.partitions.values():
            if state.ended or state.failed is not None:
                continue
            node = self._node_of(state, now)
            if node is None:
                self._cluster.request_refresh(state.partition.topic)
            elif node not in self._brokers:
                self._brokers[node] = asyncio.create_task(self._serve(node))

    def _node_of(self, state: ReadPartition, now: float) -> int | None:
        """The broker to read from: the preferred replica for a while, else the leader."""
        nodes = self._cluster.metadata.nodes
        if state.preferred_replica >= 0:
            if now < state.preferred_until and state.preferred_replica in nodes:
                return state.preferred_replica
            state.preferred_replica = -1
        info = self._cluster.metadata.partition(*state.partition)
        if info is None or info.leader not in nodes:
            return None
        return info.leader

    async def _serve(self, node: int) -> None:
        session = FetchSession()
        failures = 0
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            now = loop.time()
            mine = [
                state
                for state in self.partitions.values()
                if self._node_of(state, now) == node and state.wants_more
            ]
            ready = [state for state in mine if state.not_before <= now]
            if not ready:
                wait = min((state.not_before - now for state in mine), default=None)
                await self._change(wait)
                continue
            if self.queue.is_full:
                self.make_room()
                await self.queue.space()
                continue
            try:
                answer = await self._fetch(node, ready, session)
            except WireError as error:
                failures += 1
                session.reset()
                problem = client_error(error)
                self._note(node, failures, problem)
                self._return_to_leader(ready)
                if not isinstance(problem, PASSING):
                    self._fail_all(ready, problem)
                    continue
                self._cluster.request_refresh(*{state.partition.topic for state in ready})
                await asyncio.sleep(self._settings.reconnects_backoff.after(failures))
            except BrokerError as error:
                failures += 1
                session.reset()
                self._note(node, failures, error)
                self._return_to_leader(ready)
                self._cluster.request_refresh()
                await asyncio.sleep(self._settings.retries_backoff.after(failures))
            except AdvertisedUnreachable as error:
                self._fail_all(ready, error)
            else:
                if answer:
                    failures = 0
                    self.answered_at = loop.time()
                    self.trouble = None
                    continue
                failures += 1
                await asyncio.sleep(self._settings.retries_backoff.after(failures))

    def _note(self, node: int, failures: int, problem: OttlaError) -> None:
        """Logs a failure: as a warning, once, if it does not pass by itself."""
        self.trouble = problem
        level = logging.WARNING if failures == _WARN_AFTER else logging.INFO
        logger.log(level, "fetching from broker %d failed (%d): %s", node, failures, problem)

    async def _change(self, wait: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._changed.wait()
                # Let others see it, too, before somebody clears it.
                await asyncio.sleep(0)

    async def _fetch(self, node: int, states: list[ReadPartition], session: FetchSession) -> bool:
        """One request and its answer; whether the session is well."""
        settings = self._settings
        connection = await self._cluster.connection(node, self._lane)
        if session.connection is not connection:
            session.reset()
            session.connection = connection
        without_id = any(state.topic_id == ZERO_UUID for state in states)
        version = connection.version_of(FetchRequest, TOPIC_IDS_SINCE - 1 if without_id else None)
        if version < EPOCH_IN_FETCH_SINCE:
            states = await self._validated(connection, node, states)
            if not states:
                return True
        turns = {state.partition: (state, state.turn) for state in states}
        wanted = {state.partition: self._wanted(state, version) for state in states}
        request = FetchRequest(
            max_wait_ms=int(settings.fetch_wait * 1000),
            min_bytes=settings.fetch_min_bytes,
            max_bytes=self._budget(),
            isolation_level=int(self._committed_only),
            rack_id=settings.client_rack,
        )
        session.fill(request, wanted, version)
        for state in states:
            state.in_flight = True
        begun: dict[TopicPartition, IncrementalRows] = {}
        try:
            answer = await connection.request(
                request,
                FetchResponse,
                version=version,
                timeout=settings.fetch_wait + settings.request_timeout,
                on_part=self._decoder_ahead(version, turns, begun),
            )
        finally:
            for state, turn in turns.values():
                if state.turn == turn:
                    state.in_flight = False
        code = error_code(answer.error_code)
        if code in SESSION_ERRORS:
            session.reset()
            return True
        if code is not ErrorCode.NONE:
            raise broker_error(answer.error_code, about=f"fetching from broker {node}")
        session.answered(answer.session_id)
        return self._take_over(answer, turns, node, begun)

    def _decoder_ahead(
        self,
        version: int,
        turns: dict[TopicPartition, tuple[ReadPartition, int]],
        begun: dict[TopicPartition, IncrementalRows],
    ) -> IncrementalAnswer:
        """Begins to decode an answer that is still coming in; what was begun is put into `begun`."""

        def begin(head: Head, records: memoryview) -> IncrementalRows | None:
            name = names.get(head.topic)
            if name is None or head.error_code or head.preferred_replica >= 0:
                return None
            partition = TopicPartition(name, head.partition)
            state, turn = turns.get(partition, (None, 0))
            if state is None or state.turn != turn or partition in begun:
                return None
            bounds = self._bounds(state, head.aborted)
            rows = self._layout.incremental(records, partition, **bounds)
            if rows is not None:
                begun[partition] = rows
            return rows

        names: dict[str | bytes, str] = {}
        for (name, _), (state, _) in turns.items():
            names[name] = names[state.topic_id] = name
        return IncrementalAnswer(version, begin)

    def _bounds(self, state: ReadPartition, aborted: list[tuple[int, int]]) -> dict[str, Any]:
        """What is wanted of an answer that begins at the partition's offset."""
        return {
            "start_offset": state.fetch_offset,
            "end_offset": state.end_offset,
            "aborted": aborted if self._committed_only else [],
            "check_crc": self._settings.check_crcs,
            "max_rows": self._max_rows,
            "max_bytes": self._max_bytes,
        }

    def _wanted(self, state: ReadPartition, version: int) -> Wanted:
        state.leader_epoch = self._leader_epoch(state)
        most = max(self._settings.partition_max_bytes, state.largest_fetch)
        told_epoch = state.fetched_epoch if version >= EPOCH_IN_FETCH_SINCE else NO_EPOCH
        return Wanted(state.fetch_offset, most, state.leader_epoch, state.topic_id, told_epoch)

    def _leader_epoch(self, state: ReadPartition) -> int:
        info = self._cluster.metadata.partition(*state.partition)
        return NO_EPOCH if info is None else info.leader_epoch

    async def _validated(
        self, connection: Connection, node: int, states: list[ReadPartition]
    ) -> list[ReadPartition]:
        """Those whose last record the leader has, too; the others are dealt with.

        For brokers that do not look at it themselves whenever they are fetched from.
        """
        asked = {
            state.partition: InEpoch(state.fetched_epoch, epoch)
            for state in states
            if state.fetched_epoch >= 0
            and state.leader_epoch != (epoch := self._leader_epoch(state))
        }
        if not asked:
            return states
        turns = {state.partition: (state, state.turn) for state in states}
        for state in states:
            state.in_flight = True
        try:
            ends = await ends_of_epochs(connection, asked, self._settings.request_timeout)
        finally:
            for state, turn in turns.values():
                if state.turn == turn:
                    state.in_flight = False
        good = []
        for state, turn in turns.values():
            if state.turn != turn or not state.wants_more:
                continue
            end = None if ends is None else ends.get(state.partition)
            if state.partition not in asked or end is None:
                good.append(state)
            elif end.error_code:
                data = PartitionData(error_code=end.error_code)
                self._take_error(state, data, FetchResponse(), node)
            elif end.epoch < 0 or end.end_offset < 0:
                self._take_out_of_range(state)
            elif end.epoch < state.fetched_epoch or end.end_offset < state.fetch_offset:
                self._take_divergence(state, end.epoch, end.end_offset)
            else:
                good.append(state)
        return good

    def _budget(self) -> int:
        """How much the next request may bring: room is shared by brokers, and by two requests each."""
        room = self.queue.limit - self.queue.occupied
        share = self.queue.limit // (2 * max(len(self._brokers), 1))
        return min(self._settings.fetch_max_bytes, max(min(room, share), _SMALLEST_REQUEST))

    # Answers

    def _take_over(
        self,
        answer: FetchResponse,
        turns: dict[TopicPartition, tuple[ReadPartition, int]],
        node: int,
        begun: dict[TopicPartition, IncrementalRows],
    ) -> bool:
        """Deal with an answer; False if all that came of it is a reason to wait."""
        names = {state.topic_id: name for (name, _), (state, _) in turns.items()}
        named = 0
        troubled: set[ReadPartition] = set()
        brought = False
        for topic in answer.responses:
            name = topic.topic or names.get(topic.topic_id)
            if name is None:
                continue
            for data in topic.partitions:
                state, turn = turns.get(TopicPartition(name, data.partition_index), (None, 0))
                if state is None or state.turn != turn:
                    continue
                named += 1
                if data.error_code:
                    troubled.add(state)
                    self._take_error(state, data, answer, node)
                elif (diverging := data.diverging_epoch) is not None:
                    self._take_divergence(state, diverging.epoch, diverging.end_offset)
                    brought = True
                elif self._take_records(state, data, node, begun.get(state.partition)):
                    brought = True
        # A broker that throttles answers at once, with nothing in it.
        if not brought and not answer.throttle_time_ms:
            self._look_for_ends(each for each in turns.values() if each[0] not in troubled)
        return not named or len(troubled) < named

    def _take_records(
        self, state: ReadPartition, data: PartitionData, node: int, begun: IncrementalRows | None
    ) -> bool:
        if data.high_watermark >= 0:
            state.high_watermark = data.high_watermark
        state.last_stable_offset = data.last_stable_offset
        if data.log_start_offset >= 0:
            state.log_start_offset = data.log_start_offset
        if data.preferred_read_replica >= 0 and data.preferred_read_replica != node:
            self._prefer(state, data.preferred_read_replica)
            return True
        if not data.records:
            return False
        records = memoryview(data.records)
        reached = reach(records, 0 if begun is None else begun.last_read)
        if reached is None:
            self._ask_for_more(state, len(records))
            return True
        if reached.next_offset <= state.fetch_offset:
            self._fail(
                state,
                CorruptRecords(f"{state.partition}: what came ends before {state.fetch_offset}"),
            )
            return True
        aborted = [
            (each.producer_id, each.first_offset) for each in data.aborted_transactions or ()
        ]
        bounds = self._bounds(state, aborted)
        state.fetch_offset = reached.next_offset
        state.fetched_epoch = reached.leader_epoch
        if state.end_offset is not None and state.fetch_offset >= state.end_offset:
            state.ended = True
        results: Iterator[tuple[Any, int]]
        if begun is None:
            results = self._layout.decode(records[: reached.size], state.partition, **bounds)
            in_place = len(records) <= _DECODED_IN_PLACE
        else:
            results = iter(begun)
            in_place = begun.left <= _FINISHED_IN_PLACE
        self.queue.begin_decoding(len(records))
        epochs = epochs_of(records, reached)
        job = self._decode(
            state, state.turn, state.decoding, results, len(records), epochs, in_place=in_place
        )
        state.decoding = self._spawn(job)
        return True

    def _ask_for_more(self, state: ReadPartition, size: int) -> None:
        """Fetch more bytes the next time, for not even one batch came whole: brokers before Kafka 0.10.1
        cut batches at the limit."""
        most = max(self._settings.partition_max_bytes, state.largest_fetch)
        if size >= most and most < _LARGEST_FETCH:
            state.largest_fetch = 2 * most
            return
        problem = f"{state.partition}: no whole batch in {size} bytes at {state.fetch_offset}"
        self._fail(state, CorruptRecords(problem))

    def _look_for_ends(self, turns: Iterable[tuple[ReadPartition, int]]) -> None:
        """The broker has waited and nothing came: what is left before the end is not to be seen."""
        for state, turn in turns:
            if state.end_offset is None or state.turn != turn or state.failed is not None:
                continue
            known = state.last_stable_offset if self._committed_only else state.high_watermark
            if known >= state.end_offset:
                state.ended = True
                self.queue.wake()

    def _spawn(self, job: Awaitable[None]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _decode(
        self,
        state: ReadPartition,
        turn: int,
        before: asyncio.Task[None] | None,
        results: Iterator[tuple[Any, int]],
        size: int,
        epochs: Epochs,
        *,
        in_place: bool,
    ) -> None:
        """Put the rows of one answer into the queue, after those of the answer before it."""
        loop = asyncio.get_running_loop()
        begun: asyncio.Future[_DecodedPart] | None = None
        at_once = min(_MADE_AT_ONCE, self.queue.limit)
        try:
            if before is not None and not before.done():
                if not in_place and await self._may_go_ahead(before):
                    self._nobody_ahead.clear()
                    begun = loop.run_in_executor(self._threads, _decode_part, results, at_once)
                await asyncio.wait([before])
                if begun is not None:
                    self._nobody_ahead.set()
            while state.turn == turn and state.failed is None:
                # Compressed batches may need more room than they came with.
                while state.waiting and self.queue.occupied > self.queue.limit:
                    await self.queue.space()
                if in_place:
                    part = _decode_part(results, at_once)
                elif begun is not None:
                    part = await begun
                    begun = None
                else:
                    part = await loop.run_in_executor(self._threads, _decode_part, results, at_once)
                if state.turn != turn:
                    return
                for rows, next_offset in part.made:
                    charge = rows.nbytes
                    self.queue.occupy(charge)
                    self.queue.put(Result(state, turn, rows, next_offset, epochs, charge))
                if part.error is not None:
                    why = f"{state.partition}: {part.error.reason}"
                    self._fail(state, CorruptRecords(why))
                if part.ended:
                    return
        except Exception as error:  # noqa: BLE001 - memory is short, most likely; the user is told
            if state.turn == turn:
                # Not passed over: what comes next would be taken for what follows.
                problem = OttlaError(f"{state.partition}: records were not decoded: {error!r}")
                problem.__cause__ = error
                self._fail(state, problem)
        finally:
            if begun is not None:
                self._nobody_ahead.set()
                await asyncio.wait([begun])
            del results
            self.queue.end_decoding(size)

    async def _may_go_ahead(self, before: asyncio.Task[None]) -> bool:
        """Whether to decode an answer while the one before it still is, when the others let it.

        One is ahead at most: what is made of it is not counted until it is its turn.
        """
        while not before.done() and not self._nobody_ahead.is_set():
            free = asyncio.ensure_future(self._nobody_ahead.wait())
            try:
                await asyncio.wait([before, free], return_when=asyncio.FIRST_COMPLETED)
            finally:
                free.cancel()
        return not before.done() and self.queue.occupied <= self.queue.limit

    # Trouble

    def _take_error(
        self, state: ReadPartition, data: PartitionData, answer: FetchResponse, node: int
    ) -> None:
        code = error_code(data.error_code)
        about = f"partition {state.partition.partition} of topic '{state.partition.topic}'"
        problem = broker_error(data.error_code, about=about)
        logger.info("fetching %s from broker %d: %s", state.partition, node, problem)
        self.trouble = problem
        topic, index = state.partition
        now = asyncio.get_running_loop().time()
        if state.preferred_replica >= 0:
            self._return_to_leader([state])
            if code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                self._cluster.request_refresh(topic)
            return
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._take_out_of_range(state)
            return
        state.not_before = now + self._settings.retry_backoff
        leader = data.current_leader
        if (
            leader is not None
            and leader.leader_id >= 0
            and self._cluster.learn_leader(
                topic, index, leader.leader_id, leader.leader_epoch, answer.node_endpoints
            )
        ):
            state.not_before = 0.0
            self.wake()
        elif code in _UNKNOWN_TOPIC:
            state.in_flight = True  # until it is known whether there is such a topic
            self._spawn(self._look_for_topic(state, state.turn, problem))
        elif code is ErrorCode.CORRUPT_MESSAGE:
            self._fail(state, CorruptRecords(f"{state.partition}: the broker's log is damaged"))
        elif problem.retriable or code is ErrorCode.UNKNOWN_SERVER_ERROR:
            self._cluster.request_refresh(topic)
        else:
            self._fail(state, problem)

    def _prefer(self, state: ReadPartition, replica: int) -> None:
        """The leader knows a replica that is closer (KIP-392): read from there, for a while."""
        now = asyncio.get_running_loop().time()
        if replica in self._cluster.metadata.nodes:
            state.preferred_replica = replica
            state.preferred_until = now + self._settings.metadata_max_age
        else:
            # The metadata have to name it first; the leader would say the same again until then.
            state.not_before = now + self._settings.retry_backoff
            self._cluster.request_refresh(state.partition.topic)
        self.wake()

    def _return_to_leader(self, states: Iterable[ReadPartition]) -> None:
        """Something is wrong with the replica that was preferred, if one was."""
        now = asyncio.get_running_loop().time()
        for state in states:
            if state.preferred_replica >= 0:
                state.preferred_replica = -1
                # It may say the same again: not to and fro in a hurry.
                state.not_before = now + self._settings.retry_backoff
        self.wake()

    def _take_divergence(self, state: ReadPartition, epoch: int, end_offset: int) -> None:
        """What was fetched last is not in the log, which was cut off: see `epochs`.

        `epoch` is the largest up to that of the record before that the log knows, and ends there.
        """
        if state.preferred_replica >= 0:
            self._return_to_leader([state])
            return
        if state.position < state.fetch_offset and state.position <= end_offset:
            # Nothing of it was handed out yet.
            logger.info("%s: the log was cut off at %d, reading again", state.partition, end_offset)
            state.let_go()
            self.queue.sweep()
            self.wake()
            return
        state.let_go()
        self.queue.sweep()
        position, offset = state.position, min(state.position, end_offset)
        if self._outlives_truncation:
            logger.warning(
                "%s: the log was cut off at %d, before %d: going on there, what was read is lost",
                state.partition,
                offset,
                position,
            )
            state.begin_turn(offset, epoch)
            self.wake()
            return
        problem = (
            f"{state.partition}: the log was cut off at {offset}, before {position}, and "
            "auto.offset.reset says not to choose another offset: seek to go on"
        )
        self._fail(state, LogTruncated(problem, position, offset))

    def _take_out_of_range(self, state: ReadPartition) -> None:
        state.in_flight = True  # until it is known where to go on
        self._spawn(self._reposition(state, state.turn))

    async def _reposition(self, state: ReadPartition, turn: int) -> None:
        """The offset is out of range: where to go on is the user's to say (auto.offset.reset)."""
        before = state.decoding
        if before is not None and not before.done():
            await asyncio.wait([before])
        try:
            offset = await self._reset(state)
        except OttlaError as error:
            if state.turn == turn:
                self._fail(state, error)
            return
        if state.turn != turn:
            return
        logger.warning(
            "%s: offset %d is out of range, going on at %d",
            state.partition,
            state.fetch_offset,
            offset,
        )
        state.fetch_offset = offset
        state.fetched_epoch = NO_EPOCH
        # The position follows, after what is still to be handed out.
        self.queue.put(Result(state, turn, None, offset))
        state.in_flight = False
        self.wake()

    async def _look_for_topic(self, state: ReadPartition, turn: int, problem: BrokerError) -> None:
        """A broker does not know the topic: it is young, or it was deleted."""
        topic, index = state.partition
        self._cluster.request_refresh(topic)
        found: OttlaError | None = None
        try:
            info = await self._cluster.topic(topic)
        except TopicNotFound as error:
            found = error
        except OttlaError as error:
            logger.info("%s: %s", state.partition, error)
        else:
            if index not in info.partitions:
                found = problem
            elif (
                ZERO_UUID not in (state.topic_id, info.topic_id) and info.topic_id != state.topic_id
            ):
                found = TopicNotFound(
                    ErrorCode.UNKNOWN_TOPIC_ID,
                    "it was deleted; the topic of this name is another one",
                    problem.about,
                )
        if state.turn != turn:
            return
        state.in_flight = False
        if found is not None:
            self._fail(state, found)
        self.wake()

    def _fail_all(self, states: Iterable[ReadPartition], problem: OttlaError) -> None:
        for state in states:
            self._fail(state, problem)

    def _fail(self, state: ReadPartition, problem: OttlaError) -> None:
        """The partition stands still, and its reader gets the exception."""
        state.failed = problem
        self.queue.put(Result(state, state.turn, None, state.fetch_offset, error=problem))


class _DecodedPart(NamedTuple):
    """What was decoded of a part of an answer, and whether that was its last part."""

    made: list[tuple[Any, int]]  # rows, and the offsets after them
    ended: bool
    error: InvalidBatch | None = None


def _decode_part(results: Iterator[tuple[Any, int]], at_once: int) -> _DecodedPart:
    """Decode about `at_once` bytes of rows: each turn through the event loop takes its time."""
    made: list[tuple[Any, int]] = []
    size = 0
    try:
        for rows, next_offset in results:
            made.append((rows, next_offset))
            size += rows.nbytes
            if size >= at_once:
                return _DecodedPart(made, ended=False)
    except InvalidBatch as error:
        return _DecodedPart(made, ended=True, error=error)
    return _DecodedPart(made, ended=True)
