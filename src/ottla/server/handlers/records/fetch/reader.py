"""Who fetches, and what it may have of a partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    LeaderIdAndEpoch,
    PartitionData,
)
from ottla.record.deletion import build_cover
from ottla.replication.partition import Role
from ottla.replication.positions import divergence
from ottla.server.failures import error_code
from ottla.server.handlers.records.fetch.found import Found
from ottla.server.partitions import monotonic_ms
from ottla.storage.errors import NotInMemory, StorageError
from ottla.storage.log.readable import VisiblePart

if TYPE_CHECKING:
    from ottla.protocol.messages.fetch import FetchRequest
    from ottla.replication.partition import Partition
    from ottla.server.broker import Broker
    from ottla.server.network.connection import Connection
    from ottla.server.sessions import WatchedPartition
    from ottla.storage.log.log import Log
    from ottla.storage.segments.file import Slice

EMPTY = b""
FIRST_FORMAT_2 = 4
_FIRST_MAX_BYTES = 3
_FIRST_FROM_FOLLOWERS = 11
_FIRST_CURRENT_LEADER = 12
_FIRST_LAST_FETCHED_EPOCH = 12
_FIRST_STORAGE_ERROR = 6
_LED_ELSEWHERE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def code_of(error: Exception, version: int) -> ErrorCode:
    """The code for an error. Clients of before Kafka 1.0 do not know that of a failed disk; they look
    for a leader if they hear that this broker is none."""
    code = error_code(error)
    if code is ErrorCode.KAFKA_STORAGE_ERROR and version < _FIRST_STORAGE_ERROR:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return code


class Reader:
    """The consumer or replica that sent a request, and what it finds."""

    __slots__ = (
        "_allowed",
        "broker",
        "connection",
        "led_elsewhere",
        "replica",
        "replica_epoch",
        "request",
        "sends_watermarks",
        "version",
    )

    def __init__(
        self, broker: Broker, connection: Connection, request: FetchRequest, version: int
    ) -> None:
        self.broker = broker
        self.connection = connection
        self.request = request
        self.version = version
        # The broker that follows, and the epoch of its life; -1 for consumers.
        state = request.replica_state
        self.replica, self.replica_epoch = (
            (request.replica_id, -1) if state is None else (state.replica_id, state.replica_epoch)
        )
        # A replica that has everything is to hear of a high watermark that moved.
        self.sends_watermarks = False
        # Leaders that the answer names, for partitions that are not led here.
        self.led_elsewhere: set[int] = set()
        # Which topics it may read, as far as somebody asked.
        self._allowed: dict[str | bytes, bool] | None = None

    def partition_of(self, watched: WatchedPartition) -> Partition | None:
        topic, partitions = watched.topic, self.broker.partitions
        known = partitions.by_id if isinstance(topic, bytes) else partitions.by_name
        of_topic = known.get(topic)  # type: ignore[arg-type]
        if of_topic is None or not 0 <= watched.index < len(of_topic):
            return None
        return of_topic[watched.index]

    def quiet(self, watched: WatchedPartition, full: bool) -> Partition | None:
        """The partition, if its reader stands at its end (or the response is full, and it stands
        anywhere in the log) and has been told all there is to tell. Of the many partitions of a
        session most are like this most of the time."""
        partition = self.partition_of(watched)
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
                or (self.replica >= 0 and not self.sends_watermarks)
            )
            and watched.log_start_offset == log.log_start_offset
            and partition.role is Role.LEADER
            and watched.current_leader_epoch in (-1, epoch)
            and watched.last_fetched_epoch in (-1, log.epochs.latest_epoch)
        ):
            return partition
        return None

    def _may_fetch(self, topic: str | bytes) -> bool:
        """Whether the client may read a topic. The authorizer is asked once for each topic of a request,
        as in Kafka: a denial is one line in the audit log, however many partitions the topic has."""
        if self._allowed is None:
            self._allowed = {}
        known = self._allowed.get(topic)
        if known is None:
            known = self.broker.security.may_fetch(self.connection, self.replica, topic)
            self._allowed[topic] = known
        return known

    def look_at(
        self,
        watched: WatchedPartition,
        left: int,
        at_least_one: bool,
        wait: bool = False,
        start: int | None = None,
    ) -> Found:
        """What is there from the reader's position on, or from a `start` after it: what lies between
        is deleted."""
        answer = PartitionData(
            partition_index=watched.index,
            high_watermark=-1,
            records=EMPTY,
            aborted_transactions=None,
        )
        found = Found(watched, answer)
        topic = watched.topic
        if self.broker.authorizer is not None and not self._may_fetch(topic):
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
            answer.high_watermark = log.high_watermark
            if self.replica >= 0:
                upper = log.log_end_offset
            elif partition.known_watermark < 0:
                answer.high_watermark = stable = -1
            answer.last_stable_offset = stable
            answer.log_start_offset = log.log_start_offset
            closest = self._closest(partition, watched)
            if closest is not None:
                answer.preferred_read_replica = closest
                found.partition = partition
                return found
            # A session may know an epoch from a request in a later version than this one.
            if watched.last_fetched_epoch >= 0 and self.version >= _FIRST_LAST_FETCHED_EPOCH:
                diverging = divergence(partition, watched.fetch_offset, watched.last_fetched_epoch)
                if diverging is not None:
                    epoch, end = diverging
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
            answer.error_code = code_of(error, self.version)
            if answer.error_code in _LED_ELSEWHERE and self.version >= _FIRST_CURRENT_LEADER:
                answer.current_leader = LeaderIdAndEpoch(
                    leader_id=partition.leader, leader_epoch=partition.leader_epoch
                )
                self.led_elsewhere.add(partition.leader)
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
        if part.is_covered and self.version >= FIRST_FORMAT_2:
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
            and follower.start_offset <= watched.fetch_offset <= follower.end_offset
        ]
        return max(candidates)[1] if candidates else None
