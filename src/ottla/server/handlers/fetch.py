"""Fetch: record batches of one or more partitions, from a position on.

- A response begins with the batch that holds the offset asked for, so a client may get a few records
  before it, and it may end inside a batch; clients expect both.
- `max_bytes` bounds the response and each partition. The first batch of the first partition that has
  any data comes whole, however large, so that a consumer always gets on. Another whose first batch does
  not fit into what is left gets nothing (from v3 on), never a part of it.
- With less than `min_bytes` to give, the request waits up to `max_wait_ms` for appends to its
  partitions; an error or a moved leader ends the wait.
- read_committed readers see up to the last stable offset, with the list of the aborted transactions
  that overlap what they are sent.
- An epoch that the reader brings along is checked: it may know of a newer leader than this broker
  (UNKNOWN_LEADER_EPOCH) or of an older one (FENCED_LEADER_EPOCH), or its log may have been cut off
  behind it (a diverging epoch in the answer).
- A follower serves consumers too, up to the high watermark it knows; a leader sends consumers that name
  their rack to an in-sync replica in it, if `replica.selector.class` asks for that (KIP-392).
- Who asks the wrong broker is told which one leads (KIP-951).
- A replica reads to the log's end, and what it asks for tells the leader what it has; a tagged field of
  Ottla's own tells what of that it has synced (`visible.when.flushed`). Its fetch waits for the log to
  grow or to begin later, a consumer's for the high watermark to move. A replica that has everything
  hears of that when the wait is over, or within half a second.
- A partition that is named several times is read once, as it is named last.
- Records that were deleted one by one are not sent, nor are the marks that say so: batches with such
  records are sent as copies without them, those without any record not at all. Where nothing else is
  left before the end, one control batch covers it, so that a consumer's position gets there. (Old
  formats know no such batch.) Replicas get the log as it is.
- Large ranges go from the page cache to the socket by `sendfile`. Data that is not in memory is read
  ahead in a thread first, so that one reader of old data does not hold up the others.

Versions:
  v0, v1  messages in format 0, v2 and v3 in format 1 (converted in a worker process); v1 throttle
  v3      max_bytes for the whole response
  v4      isolation level, last stable offset, aborted transactions; format 2
  v5      log start offset
  v7      sessions
  v9      current leader epoch
  v11     rack of the reader, preferred read replica
  v12     flexible, last fetched epoch, diverging epoch
  v13     topics by id
  v15     the replica's id and epoch in a tagged field
  v16     endpoints of new leaders in the answer
  v17     directory id, v18 high watermark (both of replicas, tagged)
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.frame import frame_response_parts
from ottla.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from ottla.record.deletion import build_cover
from ottla.replication.partition import Role
from ottla.server import sessions
from ottla.server.api import (
    LARGE_REQUEST,
    Api,
    Serve,
    decode_large,
    decode_request,
    encode_large,
    failed,
    handles_raw,
)
from ottla.server.failures import error_code
from ottla.server.found import Found
from ottla.server.network.connection import Connection, MalformedRequest, Part, Slot
from ottla.server.partitions import monotonic_ms
from ottla.server.sessions import Session, WatchedPartition
from ottla.server.turns import Steps, Turns, in_turns, run_in_turns
from ottla.storage.errors import NotInMemory, OffsetOutOfRange, StorageError
from ottla.storage.readable_log import VisiblePart

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.replication.partition import Partition, Waiter
    from ottla.server.broker import Broker
    from ottla.storage.log import Log
    from ottla.storage.segment_file import Slice

_FIRST_SESSIONS = 7
_FIRST_FROM_FOLLOWERS = 11
_FIRST_CURRENT_LEADER = 12
_FIRST_ENDPOINTS = 16
_LED_ELSEWHERE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
_FIRST_LAST_FETCHED_EPOCH = 12
_FIRST_TOPIC_IDS = 13
_FIRST_FORMAT_2 = 4
_FIRST_MAX_BYTES = 3
_EMPTY = b""
# An index and a few KiB of a segment are what a search reads. Should memory be so short that what
# was brought is gone at once, it is to end all the same.
SEARCH_STEPS = 4
# Of more partitions than this, only some are looked at before the loop has its turn.
MANY_PARTITIONS = 2000
PARTITIONS_AT_ONCE = 10


@handles_raw(FetchRequest, versions=(0, 18))
def bind(broker: Broker, _: Api) -> Serve:
    def serve(
        connection: Connection,
        view: memoryview,
        at: int,
        stop: int,
        version: int,
        correlation_id: int,
    ) -> None:
        if stop - at > LARGE_REQUEST:
            _serve_large(broker, connection, view[at:stop], version, correlation_id)
            return
        request = decode_request(FetchRequest, view, at, stop, version)
        Fetch(broker, connection, request, version, correlation_id).start()

    return serve


def _serve_large(
    broker: Broker, connection: Connection, body: memoryview, version: int, correlation_id: int
) -> None:
    """A request that names so many partitions that it is decoded in steps."""
    steps = decode_large(FetchRequest, connection.keep(body), version)
    slot = connection.reserve(exclusive=True)

    def begin(request: FetchRequest) -> None:
        fetch = Fetch(broker, connection, request, version, correlation_id)
        fetch.start_many(slot)

    def refuse(error: Exception) -> None:
        if isinstance(error, MalformedRequest):
            connection._give_up(error)
        else:
            failed(connection, "FETCH", version, error)

    run_in_turns(broker.loop, steps, begin, refuse, lambda: not connection.closed)


class Fetch:
    """One Fetch request from its arrival to its answer; also a waiter on its partitions."""

    __slots__ = (
        "_led_elsewhere",
        "_missing",
        "_moved",
        "_others",
        "_quiet",
        "_slot",
        "_tells_watermarks",
        "_timer",
        "_waits_on",
        "_watches",
        "broker",
        "connection",
        "correlation_id",
        "replica",
        "replica_epoch",
        "request",
        "session",
        "version",
        "watched",
    )

    def __init__(
        self,
        broker: Broker,
        connection: Connection,
        request: FetchRequest,
        version: int,
        correlation_id: int,
    ) -> None:
        self.broker = broker
        self.connection = connection
        self.request = request
        self.version = version
        self.correlation_id = correlation_id
        # The broker that follows, and the epoch of its life; -1 for consumers.
        state = request.replica_state
        self.replica, self.replica_epoch = (
            (request.replica_id, -1) if state is None else (state.replica_id, state.replica_epoch)
        )
        self.session: Session | None = None
        self.watched: list[WatchedPartition] = []
        self._slot: Slot | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waits_on: list[Partition] = []
        # Partitions of the session about which there is nothing to say, as of the last look; and what
        # else was looked at. Quiet ones stay so until they move.
        self._quiet: dict[Partition, WatchedPartition] = {}
        self._others: list[WatchedPartition] = []
        self._moved: set[Partition] = set()
        # Partitions of a look that is going on, if the loop has its turn in between.
        self._watches: set[Partition] | None = None
        self._missing = 0
        # A replica that has everything is to hear of a high watermark that moved.
        self._tells_watermarks = False
        # Leaders that the answer names, for partitions that are not led here.
        self._led_elsewhere: set[int] = set()

    def start(self) -> None:
        named = self._named()
        try:
            self._establish(named)
        except ProtocolError as error:
            self._send(FetchResponse(error_code=error.code, responses=[]))
            return
        if self.replica >= 0:
            self._note_positions(named)
        if len(self.watched) > MANY_PARTITIONS:
            self._slot = self.connection.reserve(exclusive=True)
            self.broker.spawn(self._start_many(), "fetch of many partitions")
            return
        self._begin(*self._look(self.watched))

    def start_many(self, slot: Slot) -> None:
        """As `start`, for a request with very many partitions."""
        self._slot = slot
        self.broker.spawn(self._read_many(), "fetch of many partitions")

    async def _read_many(self) -> None:
        try:
            named = await in_turns(self._named_in_steps())
            try:
                self._establish(named)
            except ProtocolError as error:
                self._send(FetchResponse(error_code=error.code, responses=[]))
                return
            if self.replica >= 0:
                self._note_positions(named)
            await self._start_many()
        except Exception:  # noqa: BLE001 - see failed
            failed(self.connection, "FETCH", self.version)

    async def _start_many(self) -> None:
        try:
            found, size, urgent = await self._look_in_turns(self.watched)
            if self._moved:
                # Something came while this was looked for: it is not known what is where.
                urgent = True
            self._begin(found, size, urgent)
        except Exception:  # noqa: BLE001 - see failed
            failed(self.connection, "FETCH", self.version)

    def _begin(self, found: list[Found], size: int, urgent: bool) -> None:
        """The first look is taken: answer, or wait."""
        wait = self.request.max_wait_ms
        if urgent or size >= self.request.min_bytes or wait <= 0 or not self.watched:
            self._finish(found)
            return
        self._missing = self.request.min_bytes - size
        if self._slot is None:
            self._slot = self.connection.reserve(exclusive=True)
        self._waits_on = [each.partition for each in found if each.partition is not None]
        self._waits_on += self._quiet
        for partition in self._waits_on:
            self._waiters_of(partition).add(self)
        self._timer = self.broker.loop.call_later(wait / 1000, self.conclude)
        self.broker.waiting_fetches.add(self)

    def _waiters_of(self, partition: Partition) -> set[Waiter]:
        return partition.waiters if self.replica < 0 else partition.replica_waiters

    def _note_positions(self, named: dict[sessions.Key, WatchedPartition]) -> None:
        """What a replica asks for is what it has: the high watermark may move by it. Producers that
        waited for that get their answers together: those of one connection in one piece."""
        if self.broker.authorizer is not None and not self.broker.security.may_replicate(
            self.connection
        ):
            return
        reactor = self.broker.reactor
        reactor.gather()
        try:
            self._note_each(named)
        finally:
            reactor.send_gathered()

    def _note_each(self, named: dict[sessions.Key, WatchedPartition]) -> None:
        now = monotonic_ms()
        if self.session is not None:
            self._tells_watermarks = self.session.is_time_to_tell_all(now)
        positions: Iterable[WatchedPartition] = self.watched
        if self.session is not None and not self.session.is_time_to_note_all(now):
            positions = named.values()  # the others stand where they stood
        for watched in positions:
            partition = self._partition_of(watched)
            if (
                partition is None
                or partition.role is not Role.LEADER
                or watched.current_leader_epoch != partition.leader_epoch
            ):
                continue  # the answer says why
            try:
                partition.fetched(
                    self.replica,
                    watched.fetch_offset,
                    self.replica_epoch,
                    now,
                    watched.flushed_offset,
                    watched.reader_start,
                )
            except (ProtocolError, StorageError):
                continue  # likewise

    def _partition_of(self, watched: WatchedPartition) -> Partition | None:
        topic, partitions = watched.topic, self.broker.partitions
        known = partitions.by_id if isinstance(topic, bytes) else partitions.by_name
        of_topic = known.get(topic)  # type: ignore[arg-type]
        if of_topic is None or not 0 <= watched.index < len(of_topic):
            return None
        return of_topic[watched.index]

    # Which partitions ---------------------------------------------------------------------------

    def _establish(self, named: dict[sessions.Key, WatchedPartition]) -> None:
        """Find out which partitions the request is about: its own, or those of its session."""
        request = self.request
        if self.version < _FIRST_SESSIONS or request.session_epoch == sessions.FINAL_EPOCH:
            if request.session_id:
                self.broker.sessions.remove(request.session_id)
            self.watched = list(named.values())
            return
        now = self.broker.loop.time()
        by_id = self.version >= _FIRST_TOPIC_IDS
        if request.session_epoch == sessions.INITIAL_EPOCH:
            self.broker.sessions.remove(request.session_id)
            self.watched = list(named.values())
            if named:
                session = self.broker.sessions.create(now, by_id)
                if session is not None:
                    session.partitions.update(named)
                    self.session = session
            return
        session = self.broker.sessions.get(request.session_id, now)
        if session is None:
            raise ProtocolError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise ProtocolError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            raise ProtocolError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        for key, each in named.items():
            known = session.partitions.get(key)
            if known is None:
                session.partitions[key] = each
            else:
                known.fetch_offset = each.fetch_offset
                known.flushed_offset = each.flushed_offset
                known.max_bytes = each.max_bytes
                known.current_leader_epoch = each.current_leader_epoch
                known.last_fetched_epoch = each.last_fetched_epoch
                known.reader_start = each.reader_start
        for forgotten in request.forgotten_topics_data:
            topic = forgotten.topic_id if by_id else forgotten.topic
            for index in forgotten.partitions:
                session.partitions.pop((topic, index), None)
        session.advance()
        self.session = session
        self.watched = list(session.partitions.values())

    def _named(self) -> dict[sessions.Key, WatchedPartition]:
        named: dict[sessions.Key, WatchedPartition] = {}
        for topic in self.request.topics:
            for wanted in topic.partitions:
                self._name(named, topic, wanted)
        return named

    def _named_in_steps(self) -> Steps[dict[sessions.Key, WatchedPartition]]:
        named: dict[sessions.Key, WatchedPartition] = {}
        for topic in self.request.topics:
            for wanted in topic.partitions:
                self._name(named, topic, wanted)
                yield
            yield
        return named

    def _name(
        self,
        named: dict[sessions.Key, WatchedPartition],
        topic: FetchTopic,
        wanted: FetchPartition,
    ) -> None:
        name = topic.topic_id if self.version >= _FIRST_TOPIC_IDS else topic.topic
        watched = WatchedPartition(name, wanted.partition)
        watched.fetch_offset = wanted.fetch_offset
        watched.flushed_offset = wanted.flushed_offset
        watched.max_bytes = wanted.partition_max_bytes
        watched.current_leader_epoch = wanted.current_leader_epoch
        watched.last_fetched_epoch = wanted.last_fetched_epoch
        watched.reader_start = wanted.log_start_offset
        named[name, wanted.partition] = watched

    # What is there ------------------------------------------------------------------------------

    def _look(self, at: list[WatchedPartition]) -> tuple[list[Found], int, bool]:
        """What each partition has, the bytes of it, and whether something should be told at once."""
        self._others = []
        everything: list[Found] = []
        total, urgent = self._look_on(at, everything, 0)
        return everything, total, urgent

    async def _look_in_turns(self, at: list[WatchedPartition]) -> tuple[list[Found], int, bool]:
        """As `_look`, with the loop's turn now and then. What moves meanwhile is noted."""
        self._others = []
        everything: list[Found] = []
        total = 0
        urgent = False
        turns = Turns()
        self._moved.clear()
        self._watches = set()
        try:
            for first in range(0, len(at), PARTITIONS_AT_ONCE):
                some = at[first : first + PARTITIONS_AT_ONCE]
                total, has_news = self._look_on(some, everything, total)
                urgent = urgent or has_news
                await turns.pause()
        finally:
            for partition in self._watches:
                self._waiters_of(partition).discard(self)
            self._watches = None
        return everything, total, urgent

    def _watch(self, partition: Partition | None) -> None:
        """During a look that takes its time: note if the partition moves."""
        if partition is not None:
            assert self._watches is not None
            self._watches.add(partition)
            self._waiters_of(partition).add(self)

    def _look_on(
        self, at: list[WatchedPartition], everything: list[Found], total: int
    ) -> tuple[int, bool]:
        """Look at some more partitions, with so many bytes found so far; what was found is added to
        `everything`. The bytes in all, and whether something should be told at once."""
        left = max(0, min(self.request.max_bytes, self.broker.config.fetch_max_bytes) - total)
        urgent = False
        incremental = self._is_incremental
        for watched in at:
            if incremental:
                # Behind data that fills the response, there is nothing to be searched for.
                quiet = self._quiet_one(watched, full=left <= 0 < total)
                if quiet is not None:
                    self._quiet[quiet] = watched
                    if self._watches is not None:
                        self._watch(quiet)
                    continue
            self._others.append(watched)
            found = self._look_at(watched, left, at_least_one=total == 0)
            everything.append(found)
            if self._watches is not None:
                self._watch(found.partition)
            answer = found.answer
            if (
                answer.error_code
                or answer.diverging_epoch is not None
                or answer.preferred_read_replica >= 0
                or (self.replica >= 0 and incremental and self._has_moved_start(watched, answer))
            ):
                urgent = True
            elif found.piece is not None:
                total += found.piece.length
                left = max(0, left - found.piece.length)
                # What it ends before need not be waited for.
                urgent = urgent or found.is_masked or found.ends_early
            elif answer.records:
                total += len(answer.records)
                left = max(0, left - len(answer.records))
            elif found.missing is not None:
                # It is not known how much there is; it should not wait for more.
                urgent = True
                total += found.limit
                left = max(0, left - found.limit)
        return total, urgent

    @staticmethod
    def _has_moved_start(watched: WatchedPartition, answer: PartitionData) -> bool:
        """Records were deleted, and somebody may wait for the replica to do the same."""
        return 0 <= watched.log_start_offset < answer.log_start_offset

    @property
    def _is_incremental(self) -> bool:
        """The answer names only partitions with news."""
        return self.session is not None and self.request.session_epoch != sessions.INITIAL_EPOCH

    def _quiet_one(self, watched: WatchedPartition, full: bool) -> Partition | None:
        """The partition, if its reader stands at its end (or the response is full, and it stands
        anywhere in the log) and has been told all there is to tell. Of the many partitions of a
        session most are like this most of the time."""
        partition = self._partition_of(watched)
        if partition is None:
            return None
        log, epoch = partition.opened, partition.leader_epoch
        if (
            log is not None
            and log.offline is None
            and (
                watched.fetch_offset == log.log_end_offset
                or (full and log.log_start_offset <= watched.fetch_offset < log.log_end_offset)
            )
            and (
                watched.high_watermark == log.high_watermark
                or (self.replica >= 0 and not self._tells_watermarks)
            )
            and watched.log_start_offset == log.log_start_offset
            and partition.role is Role.LEADER
            and watched.current_leader_epoch in (-1, epoch)
            and watched.last_fetched_epoch in (-1, log.epochs.latest_epoch)
        ):
            return partition
        return None

    def _look_at(
        self,
        watched: WatchedPartition,
        left: int,
        at_least_one: bool,
        wait: bool = False,
        start: int | None = None,
    ) -> Found:
        """What is there from the reader's position on, or from a `start` behind it: what lies between
        is deleted."""
        answer = PartitionData(
            partition_index=watched.index,
            high_watermark=-1,
            records=_EMPTY,
            aborted_transactions=None,
        )
        found = Found(watched, answer)
        topic = watched.topic
        if self.broker.authorizer is not None and not self.broker.security.may_fetch(
            self.connection, self.replica, topic
        ):
            answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return found
        partitions = self.broker.partitions
        if isinstance(topic, bytes):
            of_topic = partitions.by_id.get(topic)
            if of_topic is None:
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_ID
                return found
        else:
            of_topic = partitions.by_name.get(topic)
        if of_topic is None or not 0 <= watched.index < len(of_topic):
            answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return found
        partition = of_topic[watched.index]
        try:
            if partition.role is not Role.LEADER and (
                partition.role is not Role.FOLLOWER
                or self.replica >= 0
                or self.version < _FIRST_FROM_FOLLOWERS
                or partition.is_being_cut
            ):
                raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self.broker.check_leader_epoch(partition, watched.current_leader_epoch)
            if self.replica >= 0 and self.replica not in partition.followers:
                raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            log = partition.log
            if log.offline is not None:
                raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR)
            committed = self.request.isolation_level == 1 and self.replica < 0
            stable = log.last_stable_offset
            upper = stable if committed else log.high_watermark
            if self.replica >= 0:
                upper = log.log_end_offset
            answer.high_watermark = log.high_watermark
            answer.last_stable_offset = stable
            answer.log_start_offset = log.log_start_offset
            closest = self._closest(partition, watched)
            if closest is not None:
                answer.preferred_read_replica = closest
                found.partition = partition
                return found
            # A session may know an epoch from a request in a later version than this one.
            if watched.last_fetched_epoch >= 0 and self.version >= _FIRST_LAST_FETCHED_EPOCH:
                epoch, end = partition.end_offset_for_epoch(watched.last_fetched_epoch)
                if epoch < 0 or watched.fetch_offset < log.log_start_offset:
                    raise OffsetOutOfRange(
                        watched.fetch_offset, log.log_start_offset, log.log_end_offset
                    )
                if epoch < watched.last_fetched_epoch or end < watched.fetch_offset:
                    answer.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end)
                    return found
            found.partition = partition
            if start is not None:
                found.start = start
            limit = min(watched.max_bytes, left)
            if (
                self.replica >= 0
                and self.broker.throttle.leading.is_set
                and self.broker.throttle.holds_back(partition, self.replica, monotonic_ms())
            ):
                return found
            if not at_least_one and not self.broker.reads.has_descriptors:
                limit = 0  # what was found so far keeps enough files open; the rest next time
            found.limit, found.at_least_one = limit, at_least_one
            try:
                if log.deletions is None or self.replica >= 0:
                    piece = log.read(watched.fetch_offset, limit, upper, at_least_one, wait)
                else:
                    piece = self._visible(found, log, limit, upper, wait)
                cut = piece is not None and piece.length < piece.first_size
                if cut and self.version >= _FIRST_MAX_BYTES:
                    piece = None  # bytes without a whole batch are no progress for the reader
                if committed and piece is not None:
                    answer.aborted_transactions = [
                        AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
                        for producer_id, first_offset in log.aborted_transactions(
                            watched.fetch_offset, min(upper, log.end_bound(piece)), wait
                        )
                    ]
            except NotInMemory as missing:
                found.missing = missing
                return found
            found.piece = piece
        except (ProtocolError, StorageError) as error:
            answer.error_code = error_code(error)
            if answer.error_code in _LED_ELSEWHERE and self.version >= _FIRST_CURRENT_LEADER:
                answer.current_leader = LeaderIdAndEpoch(
                    leader_id=partition.leader, leader_epoch=partition.leader_epoch
                )
                self._led_elsewhere.add(partition.leader)
            answer.high_watermark = answer.last_stable_offset = answer.log_start_offset = -1
        return found

    def _visible(self, found: Found, log: Log, limit: int, upper: int, wait: bool) -> Slice | None:
        """The piece of a log with marks to read, or a batch in the answer that stands for what cannot
        be seen."""
        offset = found.watched.fetch_offset
        if found.start > offset and found.start >= min(upper, log.log_end_offset):
            part = VisiblePart(None, is_covered=offset < upper)
        else:
            part = log.read_visible(found.start, limit, upper, found.at_least_one, wait)
        if part.is_covered and self.version >= _FIRST_FORMAT_2:
            epoch = log.epochs.epoch_for_offset(upper - 1)
            found.answer.records = build_cover(offset, upper, epoch)
        found.is_masked, found.ends_early = part.is_masked, part.ends_early
        return part.piece

    def _closest(self, partition: Partition, watched: WatchedPartition) -> int | None:
        """The in-sync replica in the consumer's rack, if it is to read there and may do so now."""
        rack = self.request.rack_id
        broker = self.broker
        if (
            not rack
            or self.replica >= 0
            or self.version < _FIRST_FROM_FOLLOWERS
            or not broker.config.selects_by_rack
            or partition.role is not Role.LEADER
            or rack == broker.config.broker_rack
        ):
            return None
        brokers = broker.image.brokers
        candidates = [
            (follower.end_offset, member)
            for member, follower in partition.followers.items()
            if member in partition.isr
            and member in brokers
            and brokers[member].rack == rack
            # What the consumer asks for next must be there.
            and follower.end_offset >= watched.fetch_offset
        ]
        return max(candidates)[1] if candidates else None

    # Waiting ------------------------------------------------------------------------------------

    def progressed(self, partition: Partition, appended_bytes: int) -> None:
        self._missing -= appended_bytes
        self._moved.add(partition)
        if self._missing > 0 or self._slot is None or not self._waits_on:
            return
        if self.connection.closed:
            self._stop_waiting()
            return
        try:
            moved = [self._quiet.pop(each) for each in self._moved if each in self._quiet]
            self._moved.clear()
            if len(self._others) + len(moved) > MANY_PARTITIONS:
                self.conclude()
                return
            found, size, urgent = self._look(self._others + moved)
            if urgent or size >= self.request.min_bytes:
                self._stop_waiting()
                self._finish(found)
            else:
                self._missing = self.request.min_bytes - size
        except Exception:  # noqa: BLE001 - see failed
            self._stop_waiting()
            failed(self.connection, "FETCH", self.version)

    def conclude(self) -> None:
        """The time is up (or the broker stops): answer with what is there."""
        self._stop_waiting()
        self._tells_watermarks = True
        if self.connection.closed:
            return
        if len(self.watched) > MANY_PARTITIONS:
            self.broker.spawn(self._conclude_many(), "fetch of many partitions")
            return
        try:
            self._finish(self._look(self.watched)[0])
        except Exception:  # noqa: BLE001 - see failed
            failed(self.connection, "FETCH", self.version)

    async def _conclude_many(self) -> None:
        try:
            found, _, _ = await self._look_in_turns(self.watched)
            self._finish(found)
        except Exception:  # noqa: BLE001 - see failed
            failed(self.connection, "FETCH", self.version)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for partition in self._waits_on:
            self._waiters_of(partition).discard(self)
        self._waits_on.clear()
        self.broker.waiting_fetches.discard(self)

    # Answering ----------------------------------------------------------------------------------

    def _finish(self, found: list[Found]) -> None:
        if len(found) > MANY_PARTITIONS:
            self.broker.spawn(self._finish_later(found, self.version < _FIRST_FORMAT_2), "fetch")
            return
        cold = False
        convert = self.version < _FIRST_FORMAT_2
        reads = self.broker.reads
        for each in found:
            piece = each.piece
            if each.missing is not None or (each.is_masked and piece is not None):
                cold = True
            elif piece is not None and not convert:
                try:
                    records = reads.take(piece)
                except OSError as error:
                    self._fail_partition(each, error)
                    continue
                if records is None:
                    cold = True
                else:
                    each.answer.records = records
        if not cold and not convert:
            self._send(self._response(found))
            return
        if self._slot is None:
            self._slot = self.connection.reserve(exclusive=True)
        self.broker.spawn(self._finish_later(found, convert), "fetch")

    @staticmethod
    def _fail_partition(found: Found, error: Exception) -> None:
        """What was found cannot be had."""
        found.answer.error_code = error_code(error)
        found.piece = None

    async def _finish_later(self, found: list[Found], convert: bool) -> None:
        try:
            await self._bring(found, convert)
            if len(found) > MANY_PARTITIONS:
                response = await in_turns(self._response_in_steps(found))
                self._hold_to_quota(response)
                steps = encode_large(response, self.version, self.correlation_id)
                self._send_parts(await in_turns(steps))
            else:
                self._send(self._response(found))
        except Exception:  # noqa: BLE001 - see failed
            failed(self.connection, "FETCH", self.version)

    async def _bring(self, found: list[Found], convert: bool) -> None:
        """Read what is not in memory in a thread; convert for old clients in a worker process."""
        turns = Turns()
        many = len(found) > MANY_PARTITIONS
        for at, each in enumerate(found):
            await turns.pause()
            if each.missing is not None:
                try:
                    each = found[at] = await self._find(each, each.missing)
                except OSError as error:
                    self._fail_partition(each, error)
            if each.is_masked and each.piece is not None:
                try:
                    each = found[at] = await self._unmask(each)
                except (StorageError, OSError, ValueError) as error:
                    self._fail_partition(each, error)
            if each.piece is None or (each.answer.records is not _EMPTY and not convert):
                continue
            try:
                if convert:
                    raw = each.answer.records
                    if not isinstance(raw, bytes) or not raw:
                        raw = await self.broker.reads.read(each.piece)
                    magic = 0 if self.version < 2 else 1
                    each.answer.records = await self.broker.workers.downgrade(
                        raw, magic, each.watched.fetch_offset
                    )
                else:
                    # Of many, it has not been tried yet whether they are in memory.
                    records = self.broker.reads.take(each.piece) if many else None
                    if records is None:
                        records = await self.broker.reads.take_cold(each.piece)
                    each.answer.records = records
            except (StorageError, OSError, ValueError) as error:
                self._fail_partition(each, error)

    async def _find(self, found: Found, missing: NotInMemory | None) -> Found:
        """Look again, with what the search needs brought into memory before each step of it."""
        for attempt in range(SEARCH_STEPS):
            assert missing is not None
            await self.broker.reads.load(missing, found.limit)
            last = attempt == SEARCH_STEPS - 1
            again = self._look_at(
                found.watched, found.limit, found.at_least_one, wait=last, start=found.start
            )
            missing = again.missing
            if missing is None:
                break
        return again

    async def _unmask(self, found: Found) -> Found:
        """Bring what was found without the records that were deleted. Where none is left, look on
        behind it."""
        while found.is_masked and found.piece is not None:
            piece, partition = found.piece, found.partition
            assert partition is not None
            raw = await self.broker.reads.read(piece)
            log = partition.log
            first = int.from_bytes(raw[:8], "big", signed=True)
            hidden = (
                []
                if log.deletions is None
                else log.deletions.invisible.between(first, log.end_bound(piece))
            )
            seen = await self.broker.workers.visible(raw, hidden)
            if seen.batches:
                found.answer.records = seen.batches
                break
            found = self._look_at(
                found.watched, found.limit, found.at_least_one, start=seen.end_offset
            )
            if found.missing is not None:
                found = await self._find(found, found.missing)
        return found

    def _response(self, found: list[Found]) -> FetchResponse:
        topics: dict[str | bytes, FetchableTopicResponse] = {}
        self._add_to_response(found, topics)
        return self._response_of(topics)

    def _response_in_steps(self, found: list[Found]) -> Steps[FetchResponse]:
        topics: dict[str | bytes, FetchableTopicResponse] = {}
        for first in range(0, len(found), PARTITIONS_AT_ONCE):
            self._add_to_response(found[first : first + PARTITIONS_AT_ONCE], topics)
            yield
        return self._response_of(topics)

    def _response_of(self, topics: dict[str | bytes, FetchableTopicResponse]) -> FetchResponse:
        response = FetchResponse(
            session_id=self.session.id if self.session is not None else sessions.NO_SESSION,
            responses=list(topics.values()),
        )
        if self._led_elsewhere and self.version >= _FIRST_ENDPOINTS:
            response.node_endpoints = self._leaders_named()
        return response

    def _add_to_response(
        self, found: list[Found], topics: dict[str | bytes, FetchableTopicResponse]
    ) -> None:
        if self.replica >= 0 and self.broker.throttle.leading.is_set:
            self._count(found)
        session = self.session
        incremental = self._is_incremental
        by_id = self.version >= _FIRST_TOPIC_IDS
        for each in found:
            watched, answer = each.watched, each.answer
            if session is not None:
                changed = (
                    watched.high_watermark != answer.high_watermark
                    or watched.log_start_offset != answer.log_start_offset
                )
                watched.high_watermark = answer.high_watermark
                watched.log_start_offset = answer.log_start_offset
                if answer.error_code:
                    # Named again in the next response, whatever comes then.
                    watched.high_watermark = -1
                elif each.piece is not None or answer.records is not _EMPTY:
                    key = (watched.topic, watched.index)
                    if key in session.partitions:
                        session.partitions.move_to_end(key)
                elif (
                    incremental
                    and not changed
                    and answer.diverging_epoch is None
                    and answer.preferred_read_replica < 0
                ):
                    continue
            topic = topics.get(watched.topic)
            if topic is None:
                topic = topics[watched.topic] = FetchableTopicResponse(partitions=[])
                if by_id:
                    assert isinstance(watched.topic, bytes)
                    topic.topic_id = watched.topic
                else:
                    assert isinstance(watched.topic, str)
                    topic.topic = watched.topic
            topic.partitions.append(answer)

    def _count(self, found: list[Found]) -> None:
        """What a replica is sent runs against the leader's limit."""
        throttle = self.broker.throttle
        throttle.leading.record(
            sum(
                each.piece.length
                for each in found
                if each.piece is not None
                and each.partition is not None
                and throttle.counts_as_leader(each.partition)
            ),
            monotonic_ms(),
        )

    def _leaders_named(self) -> list[NodeEndpoint]:
        """Where the leaders are reached that the answer names."""
        named = self._led_elsewhere
        return [
            NodeEndpoint(node_id=node.id, host=host, port=port, rack=node.rack)
            for node, host, port in self.broker.nodes_for(self.connection.listener.name)
            if node.id in named
        ]

    def _send(self, response: FetchResponse) -> None:
        self._hold_to_quota(response)
        self._send_parts(frame_response_parts(response, self.version, self.correlation_id))

    def _hold_to_quota(self, response: FetchResponse) -> None:
        """What a consumer is sent counts towards its quota."""
        quotas = self.broker.quotas
        if quotas is not None and self.replica < 0:
            size = sum(
                len(one.records or b"") for each in response.responses for one in each.partitions
            )
            response.throttle_time_ms = quotas.fetched(self.connection, size)

    def _send_parts(self, parts: list[Part]) -> None:
        if self._slot is not None:
            self._slot.fill(parts)
        else:
            self.connection.answer_parts(parts)
