"""What a follower asks its leader for, and what it does with the answer. No sockets, no clock.

A `Following` has all partitions that one broker follows at one leader. Its requests are Kafka's Fetch
requests of a replica, in a session: the leader is told each position once and after that only what
changed. The offset asked for tells the leader what this replica has.

A follower's disk may be slow, and cutting a log always waits for it. Such work is given to a `Disk` and
done in steps, off the loop; until it ends the partition is left out of the requests, and the others go
on.

Where the logs part. Each position carries the epoch of the follower's last batch. If the leader's log
does not have that epoch up to that offset, its answer names the largest epoch both may share and where
it ends (KIP-595). The follower cuts its log off there, or where its own records of that epoch end, and
asks again, until the two agree. So records that no leader committed go, and nothing else does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from functools import partial
from struct import Struct
from typing import NamedTuple

from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Buffer
from ottla.protocol.messages.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from ottla.protocol.one_partition_fetch import OnePartition, RequestTemplate, template_of
from ottla.record.batch import MAGIC
from ottla.record.errors import InvalidBatch
from ottla.replication.partition import Partition, Role
from ottla.replication.throttle import Throttle
from ottla.storage.errors import StorageError
from ottla.storage.log.truncation import Steps, do_all

log = logging.getLogger("ottla.replication")

_INITIAL_EPOCH = 0
# Of a session, and of a leader.
_MAX_EPOCH = 0x7FFFFFFF
_BATCH_OVERHEAD = 12
# A batch's length, leader epoch and magic byte. (In entries of old message sets the epoch's place is a
# checksum's.)
_read_places = Struct(">iib").unpack_from
_MAGIC_END = 17
_SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)

Key = tuple[bytes, int]


class FetchLimits(NamedTuple):
    """How much one request may bring, and how long it may wait for more."""

    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 10 << 20
    partition_max_bytes: int = 1 << 20
    # How long a partition rests after the leader answered with an error.
    backoff_ms: int = 1000
    # How long an answer may take, beyond what its request may wait at the leader.
    answer_ms: int = 30_000


# A request waits no longer for news while the disk works for one of the partitions, which is then to be
# asked for again.
BUSY_WAIT_MS = 20

# Told of the end of some work: None, or what went wrong.
Done = Callable[[Exception | None], None]


class Disk:
    """Does the work of followers that may wait for a disk. This one does it at once; the server's leaves
    the loop free (server/disk/lanes.py)."""

    def log_time(self, now_ms: int) -> int:
        """What the clock of the logs says: the time of day, by which flushes and erasing are due. The
        followers' own, which never jumps, says `now_ms`."""
        return now_ms

    def is_slow(self, partition: Partition) -> bool:  # noqa: ARG002
        """Whether an append to this partition's log may have to wait."""
        return False

    def take(
        self, partition: Partition, batches: memoryview, high_watermark: int, now_ms: int
    ) -> None:
        """`Partition.take`, watched for how long it takes."""
        partition.take(batches, high_watermark, now_ms)

    def work(
        self,
        partition: Partition,  # noqa: ARG002
        steps: Steps,
        done: Done,
        *,
        appends: bool,  # noqa: ARG002
    ) -> None:
        """Have the steps taken, then call `done`. Until then nothing else touches the log. `appends`:
        each is a write at the log's end, which tells how slow the disk is."""
        try:
            do_all(steps)
        except (StorageError, InvalidBatch) as error:
            done(error)
        else:
            done(None)


class Position(NamedTuple):
    """Where a follower stands, as its leader is told."""

    offset: int
    leader_epoch: int
    last_epoch: int  # of its last batch, -1 if it has none
    log_start_offset: int
    # What it has synced; -1 where that does not count.
    flushed_offset: int = -1


class Outcome(Enum):
    """What became of a partition's part of an answer."""

    DONE = auto()
    LATER = auto()  # the leader cannot serve it now
    OUT_OF_RANGE = auto()  # the leader's log begins after, or ends before, this one's end


def position_of(partition: Partition) -> Position:
    log_ = partition.log
    return Position(
        log_.log_end_offset,
        partition.leader_epoch,
        log_.epochs.latest_epoch if log_.log_end_offset > log_.log_start_offset else -1,
        log_.log_start_offset,
        log_.recovery_point if partition.config.visible_when_flushed else -1,
    )


class _Repeated(NamedTuple):
    """A request about one partition, which the next one may repeat."""

    template: RequestTemplate
    key: Key
    about: tuple[int, int, int]  # version, and who asks: broker id and epoch
    max_wait_ms: int


class Following:
    """The partitions that are followed at one leader. See the module."""

    def __init__(
        self,
        leader: int,
        limits: FetchLimits,
        throttle: Throttle | None = None,
        disk: Disk | None = None,
        freed: Callable[[], None] = lambda: None,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        """`freed` is called when the disk has done its work for a partition, and `clock` asked then."""
        self.leader = leader
        self._throttle = throttle
        self.limits = limits
        self._disk = disk or Disk()
        self._freed = freed
        self._clock = clock
        # Partitions for which the disk works.
        self._busy: set[Key] = set()
        self.partitions: dict[Key, Partition] = {}
        # What the leader was told in this session.
        self._last_sent: dict[Key, Position] = {}
        # What may differ from it.
        self._changed: set[Key] = set()
        self._resting: dict[Key, int] = {}
        self._session_id = 0
        self._session_epoch = _INITIAL_EPOCH
        # What the request under way asked for, by partition.
        self._asked: dict[Key, Position] = {}
        # Partitions that took records which count only once they are synced.
        self.unflushed: set[Partition] = set()
        # The last request, if it was about one partition and the next one may be like it.
        self._repeated: _Repeated | None = None

    def put(self, partition: Partition) -> None:
        """Follow this partition from now on, or notice that its leader epoch changed."""
        key = (partition.topic_id, partition.index)
        self.partitions[key] = partition
        self._resting.pop(key, None)
        self._changed.add(key)

    def remove(self, partition: Partition) -> None:
        key = (partition.topic_id, partition.index)
        if self.partitions.get(key) is partition:
            del self.partitions[key]
            self._changed.add(key)
            self._resting.pop(key, None)

    def changed(self, partition: Partition) -> None:
        """Have the next request say where this partition stands."""
        self._changed.add((partition.topic_id, partition.index))

    def reset(self) -> None:
        """Begin a new session: the connection was lost, and with it what the leader was told."""
        self._session_id = 0
        self._session_epoch = _INITIAL_EPOCH
        self._last_sent.clear()
        self._changed = set(self.partitions)

    def rest(self, key: Key, now_ms: int) -> None:
        """Leave this partition alone for a while."""
        self._resting[key] = now_ms + self.limits.backoff_ms
        self._changed.add(key)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to ask for."""
        return not self.partitions

    def rest_ms(self, now_ms: int) -> int:
        """How long there is nothing to ask for, because all partitions rest or the disk works for
        them; 0 if that is not so of some."""
        held_up = len(self._resting)
        if self._busy:
            held_up += sum(key in self.partitions for key in self._busy)
        if not held_up or held_up < len(self.partitions):
            return 0
        if not self._resting:
            return self.limits.backoff_ms
        return max(0, min(self._resting.values()) - now_ms)

    # The request --------------------------------------------------------------------------------

    def request(self, broker_id: int, broker_epoch: int, now_ms: int) -> FetchRequest:
        """The next request. The answer to the one before it must have been handled."""
        self._wake(now_ms)
        is_full = self._session_epoch == _INITIAL_EPOCH
        keys: Iterable[Key] = self.partitions if is_full else self._changed
        topics: dict[bytes, FetchTopic] = {}
        forgotten: dict[bytes, ForgottenTopic] = {}
        for key in list(keys):
            partition = self.partitions.get(key)
            if partition is None or key in self._resting or key in self._busy:
                self._forget(key, forgotten)
                continue
            if self._throttle is not None and self._throttle.following.is_set:
                wait = self._throttle.rest_ms(partition, now_ms)
                if wait:
                    self._resting[key] = now_ms + wait
                    self._forget(key, forgotten)
                    continue
            try:
                position = position_of(partition)
            except StorageError as error:
                log.warning("no log to follow with: %s", error)
                self._resting[key] = now_ms + self.limits.backoff_ms
                self._forget(key, forgotten)  # or it is answered for again and again
                continue
            if not is_full and self._last_sent.get(key) == position:
                continue
            self._last_sent[key] = position
            self._add(topics, key, position, self._most_bytes(partition))
            if 0 <= position.flushed_offset < position.offset:
                self.unflushed.add(partition)  # to be told again once that has changed
        self._changed = set()
        self._asked = self._last_sent
        return FetchRequest(
            replica_state=ReplicaState(replica_id=broker_id, replica_epoch=broker_epoch),
            max_wait_ms=self._wait(now_ms),
            min_bytes=self.limits.min_bytes,
            max_bytes=self.limits.max_bytes,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=list(topics.values()),
            forgotten_topics_data=[] if is_full else list(forgotten.values()),
        )

    def encoded(
        self, version: int, broker_id: int, broker_epoch: int, now_ms: int
    ) -> tuple[Sequence[Buffer], int]:
        """The next request as it is sent, and the milliseconds that it may wait at the leader."""
        repeated = self._repeated
        if repeated is not None:
            body = self._repeat(repeated, version, broker_id, broker_epoch, now_ms)
            if body is not None:
                return (body,), repeated.max_wait_ms
        request = self.request(broker_id, broker_epoch, now_ms)
        parts = request.encode_parts(version)
        self._repeated = None
        named = [
            (each.topic_id, one.partition) for each in request.topics for one in each.partitions
        ]
        if len(named) == 1 and not request.forgotten_topics_data:
            template = template_of(b"".join(parts), version, request)
            if template is not None:
                about = (version, broker_id, broker_epoch)
                self._repeated = _Repeated(template, named[0], about, request.max_wait_ms)
        return parts, request.max_wait_ms

    def _repeat(
        self,
        repeated: _Repeated,
        version: int,
        broker_id: int,
        broker_epoch: int,
        now_ms: int,
    ) -> bytes | None:
        """The request if it says the same as the one before it, but for the place in the log; else
        None, and nothing has changed."""
        key = repeated.key
        partition = self.partitions.get(key)
        sent = self._last_sent.get(key)
        if (
            partition is None
            or sent is None
            or self._session_epoch == _INITIAL_EPOCH
            or len(self._changed) != 1
            or key not in self._changed
            or self._busy
            or (version, broker_id, broker_epoch) != repeated.about
            or (self._resting and not self._rests_as_before(repeated, now_ms))
            or (self._throttle is not None and self._throttle.rest_ms(partition, now_ms))
        ):
            return None
        try:
            position = position_of(partition)
        except StorageError:
            return None
        if position[1:] != sent[1:] or position.offset == sent.offset or sent.flushed_offset >= 0:
            return None
        self._last_sent[key] = position
        self._changed.clear()
        self._asked = self._last_sent
        return repeated.template.filled(self._session_epoch, position.offset)

    def _rests_as_before(self, repeated: _Repeated, now_ms: int) -> bool:
        """Whether all resting partitions rest on, and the request may wait as long as the last one."""
        return min(self._resting.values()) > now_ms and self._wait(now_ms) == repeated.max_wait_ms

    def _forget(self, key: Key, forgotten: dict[bytes, ForgottenTopic]) -> None:
        if self._last_sent.pop(key, None) is not None:
            topic_id, index = key
            forgotten.setdefault(
                topic_id, ForgottenTopic(topic_id=topic_id, partitions=[])
            ).partitions.append(index)

    def _most_bytes(self, partition: Partition) -> int:
        """The most bytes of one partition in one answer."""
        most = self.limits.partition_max_bytes
        return most if self._throttle is None else min(most, self._throttle.portion(partition))

    def _add(
        self, topics: dict[bytes, FetchTopic], key: Key, position: Position, max_bytes: int
    ) -> None:
        topic_id, index = key
        topic = topics.get(topic_id)
        if topic is None:
            topic = topics[topic_id] = FetchTopic(topic_id=topic_id, partitions=[])
        topic.partitions.append(
            FetchPartition(
                partition=index,
                current_leader_epoch=position.leader_epoch,
                fetch_offset=position.offset,
                last_fetched_epoch=position.last_epoch,
                log_start_offset=position.log_start_offset,
                partition_max_bytes=max_bytes,
                flushed_offset=position.flushed_offset,
            )
        )

    def _wake(self, now_ms: int) -> None:
        for key, until in list(self._resting.items()):
            if until <= now_ms:
                del self._resting[key]
                self._changed.add(key)

    def _wait(self, now_ms: int) -> int:
        """How long a request may wait at the leader: not beyond the end of a partition's rest."""
        longest = self.limits.max_wait_ms
        if self._busy:
            longest = min(longest, BUSY_WAIT_MS)
        if self._resting:
            left = max(0, min(self._resting.values()) - now_ms)
            # Not all of it: as long as it is the same power of two, requests are alike (`_repeat`).
            longest = min(longest, 1 << left.bit_length() >> 1)
        return longest

    # The answer ---------------------------------------------------------------------------------

    def took_one(self, about: OnePartition, records: memoryview, now_ms: int) -> list[Partition]:
        """As `answered`, for an answer that brings records of one partition and says nothing else."""
        self._go_on(about.session_id)
        key = (about.topic_id, about.partition)
        partition = self.partitions.get(key)
        position = self._asked.get(key)
        if partition is not None and position is not None:
            self._changed.add(key)
            if self.is_current(partition, position):
                received = (records, about.high_watermark, about.log_start_offset)
                if self._append(key, partition, position, *received, now_ms) is Outcome.LATER:
                    self.rest(key, now_ms)
        return []

    def _go_on(self, session_id: int) -> None:
        """Go on to the next epoch of the answer's session; if it has none, begin another."""
        self._session_id = session_id
        epoch = self._session_epoch
        if not session_id:
            self._session_epoch = _INITIAL_EPOCH
        else:
            self._session_epoch = 1 if epoch == _MAX_EPOCH else epoch + 1

    def answered(self, response: FetchResponse, now_ms: int) -> list[Partition]:
        """Take an answer in. Returns the partitions whose position the leader does not have: what it has
        is to be looked up."""
        if response.error_code:
            self.reset()
            if response.error_code not in _SESSION_ERRORS:
                log.warning("fetch refused: leader=%d error=%d", self.leader, response.error_code)
                for key in self.partitions:  # or it is refused again at once, and again
                    self.rest(key, now_ms)
            return []
        self._go_on(response.session_id)
        out_of_range = []
        for topic in response.responses:
            for data in topic.partitions:
                key = (topic.topic_id, data.partition_index)
                partition = self.partitions.get(key)
                position = self._asked.get(key)
                if partition is None or position is None:
                    continue
                outcome = self._take(key, partition, position, data, now_ms)
                self._changed.add(key)
                if outcome is Outcome.LATER:
                    self.rest(key, now_ms)
                elif outcome is Outcome.OUT_OF_RANGE:
                    self.rest(key, now_ms)
                    out_of_range.append(partition)
        return out_of_range

    def _take(
        self,
        key: Key,
        partition: Partition,
        position: Position,
        data: PartitionData,
        now_ms: int,
    ) -> Outcome:
        if not self.is_current(partition, position):
            return Outcome.DONE  # the answer to a question of the past
        code = data.error_code
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return Outcome.OUT_OF_RANGE
        if code:
            if code not in _EXPECTED:
                log.warning(
                    "leader %d does not serve %s-%d: error %d",
                    self.leader, partition.topic, partition.index, code,
                )  # fmt: skip
            return Outcome.LATER
        received = (data.records or b"", data.high_watermark, data.log_start_offset)
        return self._append(key, partition, position, *received, now_ms, data.diverging_epoch)

    def _append(
        self,
        key: Key,
        partition: Partition,
        position: Position,
        sent: Buffer,
        high_watermark: int,
        log_start_offset: int,
        now_ms: int,
        diverging: EpochEndOffset | None = None,
    ) -> Outcome:
        """Take what the leader sent of a partition, and what it says of its log: where that and this one
        part, if they do."""
        try:
            log_ms = self._disk.log_time(now_ms)
            if diverging is not None:
                steps = cut_off(partition, diverging.epoch, diverging.end_offset, log_ms)
                self._work(key, partition, steps)
                return Outcome.DONE
            records = whole_batches(sent, position.leader_epoch)
            if self._throttle is not None:
                self._throttle.took(partition, len(records), now_ms)
            if records and self._disk.is_slow(partition):
                steps = _take_in_steps(partition, records, high_watermark, log_start_offset, log_ms)
                self._work(key, partition, steps, appends=True)
                return Outcome.DONE
            self._disk.take(partition, records, high_watermark, log_ms)
            if partition.is_unflushed:
                self.unflushed.add(partition)
            follow_start(partition, log_start_offset)
        except (StorageError, InvalidBatch) as error:
            _tell(partition, position.offset, error)
            return Outcome.LATER
        except Exception:
            # Our mistake. It stops this partition, and none of the others.
            log.exception(
                "replication of %s-%d at %d failed",
                partition.topic, partition.index, position.offset,
            )  # fmt: skip
            return Outcome.LATER
        return Outcome.DONE

    def settle(self, partition: Partition, leader_start: int, leader_end: int, now_ms: int) -> None:
        """Where the leader's log begins and ends, for a partition that stood outside of that."""
        key = (partition.topic_id, partition.index)
        self._resting.pop(key, None)
        try:
            log_ms = self._disk.log_time(now_ms)
            steps = settle_out_of_range(partition, leader_start, leader_end, log_ms)
        except StorageError as error:
            _tell(partition, leader_end, error)
            self.rest(key, now_ms)
            return
        self._work(key, partition, steps)

    def _work(self, key: Key, partition: Partition, steps: Steps, *, appends: bool = False) -> None:
        self._busy.add(key)
        partition.occupy()
        done = partial(self._worked, key, partition)
        self._disk.work(partition, steps, done, appends=appends)

    def _worked(self, key: Key, partition: Partition, error: Exception | None) -> None:
        now_ms = self._clock()
        self._busy.discard(key)
        self._changed.add(key)
        if error is not None:
            opened = partition.opened
            _tell(partition, -1 if opened is None else opened.log_end_offset, error)
            if key in self.partitions:
                self.rest(key, now_ms)
        elif partition.is_unflushed:
            self.unflushed.add(partition)
        partition.release(now_ms)
        self._freed()

    def is_current(self, partition: Partition, position: Position) -> bool:
        """Whether the partition still stands where it stood when the leader was asked."""
        opened = partition.opened
        return (
            partition.role is Role.FOLLOWER
            and partition.leader == self.leader
            and partition.leader_epoch == position.leader_epoch
            and opened is not None
            and opened.log_end_offset == position.offset
            and not opened.is_busy
        )

    def position_asked(self, partition: Partition) -> Position | None:
        """What the leader was last told of a partition."""
        return self._last_sent.get((partition.topic_id, partition.index))


# What happens around an election; the next image ends it.
_EXPECTED = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REPLICA_NOT_AVAILABLE,
)


def whole_batches(records: Buffer, leader_epoch: int = _MAX_EPOCH) -> memoryview:
    """What of an answer is to be taken from the leader of this epoch. It may end inside a batch: what is
    before that. And a leader that was deposed while the answer was on its way sends what its log holds
    by then, at the same place in its file: its successor's records, which need not follow on those that
    were asked for."""
    view = memoryview(records)
    size = len(view)
    at = 0
    while at + _MAGIC_END <= size:
        length, epoch, magic = _read_places(view, at + 8)
        following = at + length + _BATCH_OVERHEAD
        if following > size or following <= at or (epoch > leader_epoch and magic == MAGIC):
            break
        at = following
    return view[:at]


def _tell(partition: Partition, offset: int, error: Exception) -> None:
    log.error(
        "replication of %s-%d at %d failed: %s", partition.topic, partition.index, offset, error
    )


def _take_in_steps(
    partition: Partition,
    records: memoryview,
    high_watermark: int,
    log_start_offset: int,
    now_ms: int,
) -> Steps:
    yield from partition.take_in_steps(records, high_watermark, now_ms)
    follow_start(partition, log_start_offset)


def cut_off(partition: Partition, epoch: int, end_offset: int, now_ms: int) -> Steps:
    """The leader's records up to `epoch` end at `end_offset`: what this log has beyond that goes."""
    log_ = partition.log
    own_epoch, own_end = log_.end_offset_for_epoch(epoch)
    if own_epoch < 0:
        # Not a single record in common.
        target = log_.log_start_offset
    elif own_epoch == epoch:
        target = min(own_end, end_offset)
    else:
        target = own_end
    target = min(target, log_.log_end_offset)
    if target < log_.high_watermark:
        log.error(
            "%s-%d is cut off at %d, below its high watermark %d: committed records were lost by an "
            "unclean election, or by more failures than the topic has replicas",
            partition.topic, partition.index, target, log_.high_watermark,
        )  # fmt: skip
    log.info(
        "%s-%d is cut off at %d (its end was %d, the leader's epoch %d ends at %d)",
        partition.topic, partition.index, target, log_.log_end_offset, epoch, end_offset,
    )  # fmt: skip
    return log_.truncation_to(target, now_ms)


def follow_start(partition: Partition, leader_start: int) -> None:
    """Records that the leader no longer has are gone here too."""
    log_ = partition.log
    if leader_start > log_.log_start_offset:
        log_.advance_start(min(leader_start, log_.high_watermark))


def settle_out_of_range(
    partition: Partition, leader_start: int, leader_end: int, now_ms: int
) -> Steps:
    """The follower's end is not in the leader's log: begin where that begins, or end where it ends."""
    log_ = partition.log
    if log_.log_end_offset < leader_start:
        log.warning(
            "%s-%d begins anew at %d: the leader no longer has what follows %d",
            partition.topic, partition.index, leader_start, log_.log_end_offset,
        )  # fmt: skip
        return log_.new_start_at(leader_start, now_ms)
    if log_.log_end_offset > leader_end:
        log.warning(
            "%s-%d is cut off at the leader's end %d (its own was %d)",
            partition.topic, partition.index, leader_end, log_.log_end_offset,
        )  # fmt: skip
    return log_.truncation_to(leader_end, now_ms)
