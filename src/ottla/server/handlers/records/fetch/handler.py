"""One Fetch request, from its arrival to its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.errors import ProtocolError
from ottla.protocol.frame import frame_response_parts
from ottla.protocol.messages.fetch import FetchResponse, FetchTopic
from ottla.replication.partition import READ_COMMITTED
from ottla.replication.positions import note
from ottla.server.api import encode_large, failed
from ottla.server.handlers.records.fetch.cold import complete, fail
from ottla.server.handlers.records.fetch.reader import FIRST_FORMAT_2, Reader
from ottla.server.handlers.records.fetch.request import (
    establish,
    named,
    named_in_steps,
    positions_to_note,
)
from ottla.server.handlers.records.fetch.response import (
    PARTITIONS_AT_ONCE,
    records_of_one,
    response,
    response_in_steps,
)
from ottla.server.partitions import monotonic_ms
from ottla.server.sessions import INITIAL_EPOCH
from ottla.server.turns import Turns, in_turns
from ottla.storage.errors import StorageError

if TYPE_CHECKING:
    import asyncio

    from ottla.protocol.messages.fetch import FetchRequest, PartitionData
    from ottla.replication.partition import Partition, Waiter
    from ottla.server.broker import Broker
    from ottla.server.delayed import Deadline
    from ottla.server.handlers.records.fetch.found import Found
    from ottla.server.network.connection import Connection
    from ottla.server.network.slots import Part, Slot
    from ottla.server.sessions import FetchSession, Key, WatchedPartition
    from ottla.server.turns import Steps

# The timers of waits up to this share a queue, in which one that is over stays as long as any before it.
SHORT_WAIT_MS = 1000
# Of more partitions than this, only some are looked at before the loop has its turn.
MANY_PARTITIONS = 2000


class Fetch:
    """One Fetch request from its arrival to its answer; also a waiter on its partitions."""

    __slots__ = (
        "_missing",
        "_moved",
        "_others",
        "_quiet",
        "_slot",
        "_timer",
        "_waits_on",
        "_watches",
        "broker",
        "connection",
        "correlation_id",
        "reader",
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
        self.reader = Reader(broker, connection, request, version)
        self.session: FetchSession | None = None
        self.watched: list[WatchedPartition] = []
        self._slot: Slot | None = None
        self._timer: Deadline | asyncio.TimerHandle | None = None
        self._waits_on: list[Partition] = []
        # Partitions of the session about which there is nothing to say, as of the last look; and what
        # else was looked at. Quiet ones stay so until they move.
        self._quiet: dict[Partition, WatchedPartition] = {}
        self._others: list[WatchedPartition] = []
        self._moved: set[Partition] = set()
        # Partitions of a look that is going on, if the loop has its turn in between.
        self._watches: set[Partition] | None = None
        self._missing = 0

    def start(self) -> None:
        if not self._establish(named(self.request, self.version)):
            return
        # A request like the one before it has the same topics: nothing is made or freed for this.
        self.connection.activity.reading = self.session or self.request.topics
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
            if self._establish(await in_turns(named_in_steps(self.request, self.version))):
                activity = self.connection.activity
                if self.session is not None:
                    activity.reading = self.session
                else:
                    activity.reading = await in_turns(self._topics())
                await self._start_many()
        except Exception:  # noqa: BLE001 - see failed
            failed(self.connection, "FETCH", self.version)

    def _topics(self) -> Steps[list[FetchTopic]]:
        """Topics that are there, without partitions: all would be much to keep after the request."""
        partitions = self.broker.partitions
        found: dict[str | bytes, FetchTopic] = {}
        for each in self.request.topics:
            if each.topic in partitions.by_name or each.topic_id in partitions.by_id:
                key = each.topic or each.topic_id
                found[key] = FetchTopic(topic=each.topic, topic_id=each.topic_id)
            yield
        return list(found.values())

    def _establish(self, asked: dict[Key, WatchedPartition]) -> bool:
        """Finds out which partitions the request is about. False if it was refused and answered."""
        broker = self.broker
        try:
            self.session, self.watched = establish(
                self.request, self.version, asked, broker.sessions, broker.loop.time()
            )
        except ProtocolError as error:
            self._send(FetchResponse(error_code=error.code, responses=[]))
            return False
        if self.reader.replica >= 0:
            self.connection.activity.replica_id = self.reader.replica
            self._note_positions(asked)
        return True

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
        """Answer with what the first look has found, or wait for more."""
        wait = self.request.max_wait_ms
        if urgent or wait <= 0 or not self.watched or self._is_enough(found, size):
            self._finish(found)
            return
        self._missing = self.request.min_bytes - size
        if self._slot is None:
            self._slot = self.connection.reserve(exclusive=True)
        self._waits_on = [each.partition for each in found if each.partition is not None]
        self._waits_on += self._quiet
        for partition in self._waits_on:
            self._waiters_of(partition).add(self)
        if wait <= SHORT_WAIT_MS:
            self._timer = self.broker.deadlines.after(wait, self.conclude)
        else:
            self._timer = self.broker.loop.call_later(wait / 1000, self.conclude)
        self.broker.waiting_fetches.add(self)

    def _is_enough(self, found: list[Found], size: int) -> bool:
        """Whether these bytes are what was asked for, or all that one answer can have: nothing that
        comes would be added to them."""
        request = self.request
        if size >= request.min_bytes:
            return True
        if not size:
            return False
        most = min(request.max_bytes, self.broker.config.fetch_max_bytes)
        return size >= most or any(self._is_cut_short(each) for each in found)

    def _is_cut_short(self, found: Found) -> bool:
        """Whether the reader may have more of a partition, and gets it with its next request only:
        because a segment ends, or because this answer has no room. (What the partition's own limit
        keeps back does not count, as in Kafka.)"""
        partition, watched = found.partition, found.watched
        log = None if partition is None else partition.opened
        if log is None:
            return False
        is_replica = self.reader.replica >= 0
        if is_replica:
            end = log.log_end_offset
        elif self.request.isolation_level == READ_COMMITTED:
            end = log.last_stable_offset
        else:
            end = log.high_watermark
        if found.piece is not None:
            slot = log.segments.slot_of(found.piece.segment.base_offset)
            return log.segments.end_of(slot, log.log_end_offset) < end
        if is_replica and self.broker.throttle.leading.is_set:
            return False
        return found.limit < watched.max_bytes and watched.fetch_offset < end

    def _waiters_of(self, partition: Partition) -> set[Waiter]:
        return partition.waiters if self.reader.replica < 0 else partition.replica_waiters

    def _note_positions(self, asked: dict[Key, WatchedPartition]) -> None:
        """What a replica asks for is what it has: the high watermark may move by it. Producers that
        waited for that get their answers together: those of one connection in one piece."""
        if self.broker.authorizer is not None and not self.broker.security.may_replicate(
            self.connection
        ):
            return
        reactor = self.broker.reactor
        reactor.gather()
        try:
            self._note_each(asked)
        finally:
            reactor.send_gathered()

    def _note_each(self, asked: dict[Key, WatchedPartition]) -> None:
        reader = self.reader
        now = monotonic_ms()
        if self.session is not None:
            reader.sends_watermarks = self.session.is_time_for_watermarks(now)
        for watched in positions_to_note(self.session, asked, self.watched, now):
            partition = reader.partition_of(watched)
            if partition is None:
                continue  # the answer says so
            try:
                note(partition, reader.replica, reader.replica_epoch, watched, now)
            except (ProtocolError, StorageError):
                continue  # likewise

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
        """Take note if the partition moves during a look that takes several turns of the loop."""
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
        reader = self.reader
        is_replica = reader.replica >= 0
        for watched in at:
            if incremental:
                # After data that fills the response, there is nothing to be searched for.
                quiet = reader.quiet(watched, full=left <= 0 < total)
                if quiet is not None:
                    self._quiet[quiet] = watched
                    if self._watches is not None:
                        self._watch(quiet)
                    continue
            self._others.append(watched)
            found = reader.look_at(watched, left, at_least_one=total == 0)
            everything.append(found)
            if self._watches is not None:
                self._watch(found.partition)
            answer = found.answer
            if (
                answer.error_code
                or answer.diverging_epoch is not None
                or answer.preferred_read_replica >= 0
                or (is_replica and incremental and self._has_moved_start(watched, answer))
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
        """Whether the log start moved since the replica was told: a deletion may wait for replicas."""
        return 0 <= watched.log_start_offset < answer.log_start_offset

    @property
    def _is_incremental(self) -> bool:
        """Whether the answer names only partitions with news."""
        return self.session is not None and self.request.session_epoch != INITIAL_EPOCH

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
            if urgent or self._is_enough(found, size):
                self._stop_waiting()
                self._finish(found)
            else:
                self._missing = self.request.min_bytes - size
        except Exception:  # noqa: BLE001 - see failed
            self._stop_waiting()
            failed(self.connection, "FETCH", self.version)

    def conclude(self) -> None:
        """Answer with what is there: the time is up, or the broker stops."""
        self._stop_waiting()
        self.reader.sends_watermarks = True
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
            self.broker.spawn(self._finish_later(found, self.version < FIRST_FORMAT_2), "fetch")
            return
        cold = False
        convert = self.version < FIRST_FORMAT_2
        reads = self.broker.reads
        for each in found:
            piece = each.piece
            if each.missing is not None or (each.is_masked and piece is not None):
                cold = True
            elif piece is not None and not convert:
                try:
                    records = reads.take(piece)
                except OSError as error:
                    fail(each, error, self.version)
                    continue
                if records is None:
                    cold = True
                else:
                    each.answer.records = records
        if not cold and not convert:
            parts = records_of_one(self.reader, self.session, found, self.correlation_id)
            if parts is not None:
                self._send_parts(parts)
            else:
                self._send(response(self.reader, self.session, self._is_incremental, found))
            return
        if self._slot is None:
            self._slot = self.connection.reserve(exclusive=True)
        self.broker.spawn(self._finish_later(found, convert), "fetch")

    async def _finish_later(self, found: list[Found], convert: bool) -> None:
        try:
            many = len(found) > MANY_PARTITIONS
            await complete(self.reader, found, convert, many)
            what = (self.reader, self.session, self._is_incremental, found)
            if many:
                answer = await in_turns(response_in_steps(*what))
                self._hold_to_quota(answer)
                steps = encode_large(answer, self.version, self.correlation_id)
                self._send_parts(await in_turns(steps))
            else:
                self._send(response(*what))
        except Exception:  # noqa: BLE001 - see failed
            failed(self.connection, "FETCH", self.version)

    def _send(self, answer: FetchResponse) -> None:
        self._hold_to_quota(answer)
        self._send_parts(frame_response_parts(answer, self.version, self.correlation_id))

    def _hold_to_quota(self, answer: FetchResponse) -> None:
        """What a consumer is sent counts towards its quota."""
        quotas = self.broker.quotas
        if quotas is not None and self.reader.replica < 0:
            size = sum(
                len(one.records or b"") for each in answer.responses for one in each.partitions
            )
            answer.throttle_time_ms = quotas.fetched(self.connection, size)

    def _send_parts(self, parts: list[Part]) -> None:
        if self._slot is not None:
            self._slot.fill(parts)
        else:
            self.connection.answer_parts(parts)
