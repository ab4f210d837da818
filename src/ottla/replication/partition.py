"""One partition as this broker holds it: its role, its log, its replicas, and who waits for it.

Roles and what ends them; the cluster's image decides (`update`), never this broker alone:

    ABSENT    no replica here; no log is opened
    FOLLOWER  copies the leader's log; learns from it what is committed
    LEADER    appends, counts what its followers have, decides what is committed, asks the controller
              to change the in-sync set

    from \\ image says     leader is here     replica is here     no replica here
    ABSENT                LEADER             FOLLOWER            ABSENT
    FOLLOWER              LEADER             FOLLOWER            ABSENT
    LEADER, same epoch    LEADER             FOLLOWER            ABSENT
    LEADER, newer epoch   LEADER, anew       FOLLOWER            ABSENT

An image may skip states, so what matters is where it arrives: a newer leader epoch begins a new term
even if the leader is the same. Entering or leaving a term fails everybody who waits for a commit in
the one before it. While a thread appends to a follower's log or cuts it, the image waits.

The high watermark is the offset below which every member of the in-sync set has everything. It counts
the larger set while a change of the set is not confirmed, and it stands still while the set is smaller
than `min.insync.replicas`: so what is below it is on that many brokers.

Where the topic asks for `visible.when.flushed`, what a replica *has synced* counts in the place of what
it has: the recovery point of the leader's log, and what followers say of theirs with what they ask for.
So what is below the high watermark is on the disks of all members of the in-sync set.

When an append may be acknowledged:
- committed (acks=all): every in-sync replica has it, and it is flushed;
- flushed (acks=1): it is on disk, if it is one of those that `flush.messages` asks to be. An append
  that does not reach that number is flushed in the background and counts as flushed at once.

No socket, no file but the log's, no clock: times are given in milliseconds of a monotonic clock.
"""

from __future__ import annotations

from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.record.validation.findings import Rules
from ottla.replication.waiters import OffsetWaiter, OffsetWaiters, Reached
from ottla.storage.config import LogConfig
from ottla.storage.errors import FolderOffline, LogOffline, UnexpectedOffset
from ottla.storage.log.producer_state import Origin

if TYPE_CHECKING:
    from ottla.cluster.metadata import Partition as PartitionState
    from ottla.record.batch import HeaderFields
    from ottla.storage.log.append import Append
    from ottla.storage.log.log import Log
    from ottla.storage.log.truncation import Steps

READ_COMMITTED = 1
UNKNOWN = -1
# A follower may miss an answer, or be one of many whose turn comes later. One that is stuck asks again
# after a second each time.
SUSPICIOUS_REPEATS = 5

# What is told of an append: base offset, append time (-1: the producer's times count), where the log
# starts, the offset after its last record, and whether it is known to be committed and flushed already
# (if not, `is_committed` and `is_flushed` tell).
Appended: TypeAlias = tuple[int, int, int, int, bool]


class Role(Enum):
    ABSENT = auto()
    FOLLOWER = auto()
    LEADER = auto()


class Waiter(Protocol):
    """Somebody who waits for more to read."""

    def progressed(self, partition: Partition, appended_bytes: int) -> None: ...


class Owner(Protocol):
    """What a partition needs from, and tells, the broker that holds it."""

    def load(self, partition: Partition) -> Log:
        """Open the log of a partition."""

    def appended(self, partition: Partition, size: int) -> None:
        """The leader's log grew: followers may read on."""

    def advanced(self, partition: Partition, size: int) -> None:
        """The high watermark moved, by about so many bytes: consumers may read on."""

    def is_alive(self, broker_id: int) -> bool:
        """Whether a broker is part of the cluster just now."""

    def may_be_in_sync(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether the controller would let this life of a broker join an in-sync set."""

    def suspected(self, partition: Partition, offset: int) -> None:
        """A follower was sent what is at `offset` several times and does not get on: it may be
        damaged."""

    def isr_wanted(self, partition: Partition) -> None:
        """`partition.wanted_isr` is to be put to the controller."""

    def role_changed(self, partition: Partition) -> None:
        """The role, the leader or the leader epoch changed."""


class Follower:
    """What the leader knows of another replica."""

    __slots__ = (
        "broker_epoch",
        "caught_up_ms",
        "end_offset",
        "fetched_end",
        "fetched_ms",
        "flushed_offset",
        "repeats",
        "start_offset",
    )

    def __init__(self, now_ms: int) -> None:
        # Its log's end: everything below it was fetched in this term. UNKNOWN until it first fetches.
        self.end_offset = UNKNOWN
        # Up to where it has synced that; UNKNOWN unless it says so.
        self.flushed_offset = UNKNOWN
        # Where its log begins.
        self.start_offset = UNKNOWN
        # Of the life of its broker that fetched.
        self.broker_epoch = UNKNOWN
        # When it last had everything that the leader had at that time.
        self.caught_up_ms = now_ms
        # When it last fetched, and where the leader's log ended then.
        self.fetched_ms = UNKNOWN
        self.fetched_end = UNKNOWN
        # How often in a row it asked for the same although there was more.
        self.repeats = 0

    def fetched(
        self,
        offset: int,
        broker_epoch: int,
        log_end: int,
        now_ms: int,
        flushed_offset: int = UNKNOWN,
        *,
        flushed_counts: bool = False,
    ) -> None:
        """Take note of a fetch from `offset` on, which shows that it has what is before. With
        `flushed_counts` it has caught up only with what it has synced."""
        self.flushed_offset = flushed_offset if flushed_offset < offset else offset
        has = self.flushed_offset if flushed_counts else offset
        if has >= log_end:
            self.caught_up_ms = now_ms
        elif self.fetched_end != UNKNOWN and has >= self.fetched_end:
            # It has all that there was when it last asked.
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.end_offset = offset
        self.broker_epoch = broker_epoch
        self.fetched_ms = now_ms
        self.fetched_end = log_end


# Nobody has heard of it.
_UNHEARD = Follower(0)

# What partitions have in common that are not here. A broker of a large cluster knows many times as many
# of them as it holds, and what each held for itself was most of the memory of an idle broker.
_NOBODY: Any = frozenset()
_NOBODY_WAITS: Final = OffsetWaiters()  # nobody is added, see `_make_room`
_NO_FOLLOWERS: Final[dict[int, Follower]] = {}  # never changed, as no dict of followers is


def append_copied(log: Log, batches: memoryview | bytes, now_ms: int) -> None:
    """Append whole batches of another replica. Where that one's log begins inside a batch (records
    before were deleted), an empty log that was to begin there begins with the batch."""
    try:
        log.append_replicated(batches, now_ms)
    except UnexpectedOffset as error:
        if not _begins_inside(log, error.first_offset):
            raise
        log.truncate_fully_and_start_at(error.first_offset, now_ms)
        log.append_replicated(batches, now_ms)


def _begins_inside(log: Log, first_offset: int) -> bool:
    """Whether the log is empty and was to begin inside the batch with this first offset."""
    return log.log_start_offset == log.log_end_offset and first_offset < log.log_end_offset


class Partition:
    """One partition as this broker holds it: role, log, replicas and who waits.

    Invariants: wanted_isr is None unless the role is LEADER; every replica but this one has an entry
    in `followers` while the role is LEADER, and there is none otherwise.
    """

    __slots__ = (
        "_alone",
        "_awaiting_commit",
        "_awaiting_deletion",
        "_awaiting_flush",
        "_broken",
        "_counted",
        "_flushed_counts",
        "_held_back",
        "_log",
        "_owner",
        "_uncommitted_bytes",
        "_was_dropped",
        "adding",
        "broker_id",
        "config",
        "epoch_start_offset",
        "followers",
        "index",
        "internal",
        "is_new",
        "is_occupied",
        "isr",
        "lane",
        "leader",
        "leader_epoch",
        "open_to_clients",
        "partition_epoch",
        "record_rules",
        "replica_waiters",
        "replicas",
        "role",
        "topic",
        "topic_id",
        "under_min_isr",
        "waiters",
        "wanted_isr",
    )

    def __init__(
        self,
        broker_id: int,
        topic: str,
        topic_id: bytes,
        state: PartitionState,
        owner: Owner,
        now_ms: int = 0,
    ) -> None:
        self.broker_id = broker_id
        self.topic = topic
        self.topic_id = topic_id
        self.index = state.index
        # Consumers, who read below the high watermark, and followers, who read to the log's end.
        # Sets of its own once it is here, see `_follow`.
        self.waiters: set[Waiter] = _NOBODY
        self.replica_waiters: set[Waiter] = _NOBODY
        # Where appends queue up while the disk is slow or a batch is being recompressed
        # (server/disk/lanes.py); None means that an append may be done at once.
        self.lane: object | None = None
        # A topic of the coordinators' own, which clients may not write to.
        self.internal = False
        # Made in this life of the broker: there is no older log of it.
        self.is_new = False
        # Led here, and clients may write to it. The server keeps this and the next up to date.
        self.open_to_clients = False
        # What is asked of each record of a producer; None: records are not looked at.
        self.record_rules: Rules | None = Rules()
        # Fewer replicas in sync than `min.insync.replicas` asks for.
        self.under_min_isr = False
        self.config = LogConfig()
        self._awaiting_commit: OffsetWaiters = _NOBODY_WAITS
        self._awaiting_flush: OffsetWaiters = _NOBODY_WAITS
        self._awaiting_deletion: OffsetWaiters = _NOBODY_WAITS
        self._owner = owner
        # Opened on first use: of thousands of partitions most are asleep.
        self._log: Log | None = None
        self._broken = False
        self.role = Role.ABSENT
        self.replicas: tuple[int, ...] = ()
        # Those of them that a move brings.
        self.adding: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.leader = UNKNOWN
        self.leader_epoch = UNKNOWN
        self.partition_epoch = UNKNOWN
        # As leader: where this term began, once the log was opened in it (UNKNOWN before).
        self.epoch_start_offset = UNKNOWN
        self.followers: dict[int, Follower] = _NO_FOLLOWERS
        # The in-sync set that the controller was asked for and has not confirmed: brokers with the
        # epochs in which they fetched.
        self.wanted_isr: dict[int, int] | None = None
        # The other members of the larger in-sync set, while a change of it is not confirmed: what all
        # of them have is committed. Reckoned by `_settle`, which every change of the set ends with.
        self._counted: tuple[Follower, ...] = ()
        # This replica is the whole in-sync set: what it has is committed.
        self._alone = False
        # What is synced counts, not what is there: `visible.when.flushed`.
        self._flushed_counts = False
        self._uncommitted_bytes = 0
        # See `occupy`; and the newest state that the cluster has decided on since.
        self.is_occupied = False
        self._held_back: PartitionState | None = None
        # One of the states before that had no replica here: the log was deleted.
        self._was_dropped = False
        self._follow(state, now_ms)

    def __repr__(self) -> str:
        return f"<Partition {self.topic}-{self.index} {self.role.name} epoch {self.leader_epoch}>"

    # What the cluster decides -------------------------------------------------------------------

    def update(self, state: PartitionState, now_ms: int, config: LogConfig | None = None) -> None:
        """Take over what the cluster has decided about this partition. What is older than what is
        known is passed over. `config`: the topic's settings as of then, for `configure` to take over;
        with the minimum of before, a set that has become smaller might commit."""
        if state.leader_epoch < self.leader_epoch or (
            state.leader_epoch == self.leader_epoch and state.partition_epoch < self.partition_epoch
        ):
            return
        if self.is_occupied:
            self._held_back = state
            self._was_dropped = self._was_dropped or self.broker_id not in state.replicas
            return
        if config is not None and self.broker_id in (self.leader, state.leader):
            self.config = config
        if self._follow(state, now_ms):
            self._owner.role_changed(self)

    def _follow(self, state: PartitionState, now_ms: int) -> bool:
        """Whether a new term began with this."""
        if state.leader == self.broker_id:
            role = Role.LEADER
        else:
            role = Role.FOLLOWER if self.broker_id in state.replicas else Role.ABSENT
        if self.role is Role.ABSENT and role is not Role.ABSENT:
            # Moved away from here and back: the log of then was deleted. It is not forgotten sooner, for
            # an append that was under way must find that log, and not make a new one.
            self._log = None
            self._make_room()
        new_term = state.leader_epoch != self.leader_epoch or role is not self.role
        if state.partition_epoch != self.partition_epoch or new_term:
            self.wanted_isr = None
        self.replicas = state.replicas
        self.adding = state.adding
        self.isr = state.isr
        self.leader = state.leader
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.role = role
        if new_term:
            self._begin_term(now_ms)
        elif role is Role.LEADER:
            self._know_followers(now_ms)
        self._settle()
        if role is Role.LEADER:
            self.advance()
            if self.is_offline:
                self.resign()  # elected with a log that had failed, or asked for too early
        return new_term

    def _make_room(self) -> None:
        """Makes the sets of those who wait, unless they are there already."""
        if self._awaiting_commit is _NOBODY_WAITS:
            self.waiters = set()
            self.replica_waiters = set()
            self._awaiting_commit = OffsetWaiters()
            self._awaiting_flush = OffsetWaiters()
            self._awaiting_deletion = OffsetWaiters()

    def _begin_term(self, now_ms: int) -> None:
        self.fail_waiters(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.followers = _NO_FOLLOWERS
        self.epoch_start_offset = UNKNOWN
        self._uncommitted_bytes = 0
        if self.role is Role.LEADER:
            self._know_followers(now_ms)
            if self._log is not None:
                self.epoch_start_offset = self._log.log_end_offset
        self.wake()

    def _know_followers(self, now_ms: int) -> None:
        others = [each for each in self.replicas if each != self.broker_id]
        self.followers = {each: self.followers.get(each) or Follower(now_ms) for each in others}

    def _settle(self) -> None:
        # A topic with fewer replicas than it wants in sync is content with those it has, as in Kafka.
        # Nor does it wait for replicas on their way in.
        wanted = min(self.config.min_insync_replicas, len(self.replicas) - len(self.adding))
        self.under_min_isr = len(self.isr) < wanted
        self._flushed_counts = self.config.visible_when_flushed
        self._alone = (
            self.role is Role.LEADER
            and self.isr == (self.broker_id,)
            and self.wanted_isr is None
            and not self.under_min_isr
            and not self._flushed_counts
        )
        members = set(self.isr)
        if self.wanted_isr is not None:
            members |= self.wanted_isr.keys()
        members.discard(self.broker_id)
        # A member that is no replica (an image under way) has nothing that is known of.
        self._counted = tuple(self.followers.get(each) or _UNHEARD for each in members)

    def occupy(self) -> None:
        """Hold changes back while a thread works on this follower's log: what the cluster decides until
        `release` is taken over then. (A leader needs to know where its log ends.)"""
        self.is_occupied = True

    def release(self, now_ms: int) -> None:
        self.is_occupied = False
        held_back, self._held_back = self._held_back, None
        was_dropped, self._was_dropped = self._was_dropped, False
        if held_back is not None:
            if was_dropped and self.broker_id in held_back.replicas:
                self._log = None  # as in `_follow`: moved away from here and back meanwhile
            self.update(held_back, now_ms)

    def removed(self) -> None:
        """Become absent: the topic was deleted, or the replica was moved away from this broker."""
        self._held_back = None
        self.role = Role.ABSENT
        self._alone = False
        self.open_to_clients = False
        self.followers = _NO_FOLLOWERS
        self.wanted_isr = None
        self.fail_waiters(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.wake()

    # The log ------------------------------------------------------------------------------------

    @property
    def log(self) -> Log:
        log = self._log
        if log is None:
            try:
                log = self._log = self._owner.load(self)
                self._broken = False
            except (LogOffline, FolderOffline):
                self._broken = True
                self.resign()  # nobody can write or follow here, and another's log may be sound
                raise
            if self.role is Role.LEADER:
                self.epoch_start_offset = log.log_end_offset
                self._settle()
                self.advance()
        return log

    @property
    def opened(self) -> Log | None:
        """The log, if somebody has used it since the start."""
        return self._log

    def forget_log(self) -> None:
        """The log was closed or moved away; the next use loads it anew."""
        self._log = None

    def replace_log(self, log: Log) -> None:
        """The same log lies elsewhere now, and is synced there."""
        self._log = log
        self.advance()
        self._release_waiters(log)  # a flush of the former one is nobody's any more

    @property
    def is_offline(self) -> bool:
        """Whether the disk under the log is known to have failed."""
        return self._broken or (self._log is not None and self._log.offline is not None)

    def configure(self, config: LogConfig) -> None:
        """Take over the topic's settings."""
        flushed_counted = self._flushed_counts
        self.config = config
        self._settle()
        log = self._log
        if log is not None:
            log.reconfigure(config)
            if self.role is Role.LEADER:
                self.advance()
            self._release_waiters(log)
        if self._flushed_counts != flushed_counted and self.role is Role.FOLLOWER:
            self._owner.role_changed(
                self
            )  # its leader is to be told what it has synced, or no more

    # As leader: appending -----------------------------------------------------------------------

    def check_leader(self) -> None:
        """ProtocolError unless this broker leads."""
        if self.role is not Role.LEADER:
            raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def append(
        self,
        buffer: bytearray | memoryview,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        checked: HeaderFields | None = None,
    ) -> Appended:
        """Append batches at once. `checked`: the header, if the buffer is one batch that has passed
        `check_produced`."""
        if self.role is not Role.LEADER:
            self.check_leader()
        log = self._log or self.log
        if checked is not None:
            base_offset = log.append_simple(buffer, checked, self.leader_epoch, now_ms)
            if base_offset >= 0:
                end_offset = log.log_end_offset
                self._grew(log, len(buffer))
                is_settled = self._alone and end_offset < log.flush_at_offset
                return base_offset, -1, log.log_start_offset, end_offset, is_settled
        append = log.append(buffer, self.leader_epoch, now_ms, origin, checked)
        return self._appended(log, append)

    def prepare(self, buffer: bytearray | memoryview, now_ms: int, origin: Origin) -> Append:
        """The first of the steps of an append whose write is done elsewhere (a lane): see
        Log.prepare. The last is `commit`."""
        self.check_leader()
        return self.log.prepare(buffer, self.leader_epoch, now_ms, origin)

    def commit(self, append: Append) -> Appended:
        """Make an append that was written part of the log; of a duplicate, its original is told.
        ProtocolError if another leads by now: then it is cut off again, unless that one has it, too."""
        log = self.log
        if not append.duplicate:
            log.commit(append)
        self.check_leader()
        return self._appended(log, append)

    def _appended(self, log: Log, append: Append) -> Appended:
        if not append.duplicate:
            self._grew(log, append.size)
        return (
            append.base_offset,
            append.log_append_time,
            append.log_start_offset,
            append.last_offset + 1,
            self.is_committed(append.last_offset + 1),
        )

    def _grew(self, log: Log, size: int) -> None:
        """Take note that so many bytes were appended to the log."""
        if self._alone:
            log.advance_high_watermark(log.log_end_offset)
            if self._awaiting_commit.waiting:
                self._release_waiters(log)
            if self.waiters:
                self._owner.advanced(self, size)
        else:
            self._uncommitted_bytes += size
        if self.replica_waiters:
            self._owner.appended(self, size)

    # As leader: what is committed ---------------------------------------------------------------

    def is_replicated(self, end_offset: int) -> bool:
        """Whether every in-sync replica has what is below `end_offset`."""
        return end_offset <= (self._log or self.log).high_watermark

    def is_flushed(self, end_offset: int) -> bool:
        """Whether what is below `end_offset` has been synced as far as `flush.messages` asks for."""
        return end_offset < (self._log or self.log).flush_at_offset

    def is_committed(self, end_offset: int) -> bool:
        """Whether an append with acks=all that ends at `end_offset` may be acknowledged."""
        log = self._log or self.log
        return end_offset <= log.high_watermark and end_offset < log.flush_at_offset

    def when_committed(self, end_offset: int, reached: Reached) -> OffsetWaiter:
        """Have `reached` called once `is_committed(end_offset)`, or can no longer become so."""
        self._make_room()
        return self._awaiting_commit.add(end_offset, reached)

    def when_flushed(self, end_offset: int, reached: Reached) -> OffsetWaiter:
        """Have `reached` called once `is_flushed(end_offset)`, or can no longer become so."""
        self._make_room()
        return self._awaiting_flush.add(end_offset, reached)

    def once_committed(self, end_offset: int, reached: Reached) -> None:
        """As `when_committed`, and at once if there is nothing to wait for."""
        if self.role is not Role.LEADER:
            reached(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self.is_committed(end_offset):
            reached(ErrorCode.NONE)
        else:
            self.when_committed(end_offset, reached)

    def stop_waiting(self, waiter: OffsetWaiter) -> None:
        """Remove a waiter whose time is up; it is not called."""
        self._awaiting_commit.remove(waiter)
        self._awaiting_flush.remove(waiter)
        self._awaiting_deletion.remove(waiter)

    def flushed(self) -> None:
        """A flush of the log came to its end."""
        if self._log is not None:
            if self._flushed_counts:
                self.advance()
            self._release_waiters(self._log)

    def fail_waiters(self, code: ErrorCode) -> None:
        """Fail all who wait for commits, flushes or deletions, which will not come here: another broker
        leads, the topic is deleted, or the disk failed."""
        self._awaiting_commit.fail(code)
        self._awaiting_flush.fail(code)
        self._awaiting_deletion.fail(code)

    def _release_waiters(self, log: Log) -> None:
        if log.offline is not None:
            self.fail_waiters(ErrorCode.KAFKA_STORAGE_ERROR)
            return
        flushed = log.flush_at_offset - 1
        if self._awaiting_flush.waiting:
            self._awaiting_flush.advance(flushed)
        if self._awaiting_commit.waiting:
            self._awaiting_commit.advance(min(log.high_watermark, flushed))

    def advance(self) -> None:
        """Move the high watermark to where the in-sync replicas are."""
        log = self._log
        if log is None or self.role is not Role.LEADER:
            return
        end = log.log_end_offset
        if self._flushed_counts:
            if self.under_min_isr:
                return
            end = min((each.flushed_offset for each in self._counted), default=end)
            end = min(end, log.recovery_point)
        elif not self._alone:
            if self.under_min_isr:
                return
            for follower in self._counted:
                if follower.end_offset < end:
                    end = follower.end_offset
        if end <= log.high_watermark:
            return
        log.advance_high_watermark(end)
        if self._awaiting_commit.waiting:
            self._release_waiters(log)
        size, self._uncommitted_bytes = self._uncommitted_bytes, 0
        if self.waiters:
            self._owner.advanced(self, max(size, 1))

    @property
    def has_caught_up(self) -> bool:
        """Whether what was committed before this leader's term is known to be (KIP-207)."""
        log = self._log or self.log
        return log.high_watermark >= self.epoch_start_offset

    @property
    def known_watermark(self) -> int:
        """The high watermark, as a client may be told it; UNKNOWN from a leader that has not caught up,
        for a leader before it may have told more. (A follower tells what it knows, which may be less
        than its leader's.)"""
        return (self._log or self.log).high_watermark if self.has_caught_up else UNKNOWN

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Up to where this leader's log agrees with one whose last record is of `epoch`: as the log's
        own answer, but this term counts from its start, also while nothing was written in it. Without
        that a follower with records of a term between would not learn that they are to go."""
        log = self._log or self.log
        latest = log.epochs.latest_epoch
        if self.role is Role.LEADER and latest < epoch <= self.leader_epoch:
            found = epoch if latest < 0 or epoch == self.leader_epoch else latest
            return found, log.log_end_offset
        return log.end_offset_for_epoch(epoch)

    # As leader: followers -----------------------------------------------------------------------

    def fetched(
        self,
        broker_id: int,
        offset: int,
        broker_epoch: int,
        now_ms: int,
        flushed_offset: int = UNKNOWN,
        start_offset: int = UNKNOWN,
    ) -> None:
        """A follower, whose log begins at `start_offset`, asks for what begins at `offset`, and says
        what it has synced (UNKNOWN: nothing about that). ProtocolError if it is none, or none any more:
        its broker's next life has asked already, which may have less."""
        follower = self.followers.get(broker_id)
        if follower is None or UNKNOWN < broker_epoch < follower.broker_epoch:
            raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        log = self._log or self.log
        if start_offset != follower.start_offset:
            follower.start_offset = start_offset
            self.look_at_starts()
        if not log.log_start_offset <= offset <= log.log_end_offset:
            return  # the answer says so
        before, flushed_before = follower.end_offset, follower.flushed_offset
        fetched_end = follower.fetched_end
        follower.fetched(
            offset, broker_epoch, log.log_end_offset, now_ms, flushed_offset,
            flushed_counts=self._flushed_counts,
        )  # fmt: skip
        if offset != before or follower.flushed_offset != flushed_before:
            follower.repeats = 0
            self.advance()
        elif offset < fetched_end:
            follower.repeats += 1
            if follower.repeats % SUSPICIOUS_REPEATS == 0:
                self._owner.suspected(self, offset)
        if broker_id not in self.isr and self.wanted_isr is None:
            self._maybe_join(broker_id, follower, log.high_watermark)

    @property
    def low_watermark(self) -> int:
        """Where the logs of all replicas begin whose brokers are alive; UNKNOWN if that is not known of
        one of them. What is before it is deleted."""
        low = (self._log or self.log).log_start_offset
        for broker_id, follower in self.followers.items():
            if follower.start_offset < low and self._owner.is_alive(broker_id):
                low = follower.start_offset
        return low

    def delete_before(self, offset: int) -> None:
        """Delete the records below `offset` (DeleteRecords); followers learn of it at once."""
        self.log.advance_start(offset)
        if self.replica_waiters:
            self._owner.appended(self, 1 << 62)

    def when_deleted(self, offset: int, reached: Reached) -> OffsetWaiter:
        """Have `reached` called once the low watermark is at `offset`, or can no longer get there."""
        self._make_room()
        return self._awaiting_deletion.add(offset, reached)

    def look_at_starts(self) -> None:
        """Release who waits for the low watermark: a replica's log start, or which brokers are alive,
        has changed."""
        if self._awaiting_deletion.waiting:
            self._awaiting_deletion.advance(self.low_watermark)

    def _maybe_join(self, broker_id: int, follower: Follower, high_watermark: int) -> None:
        has = follower.flushed_offset if self._flushed_counts else follower.end_offset
        if (
            has >= high_watermark
            and has >= self.epoch_start_offset >= 0
            and self.broker_id in self.isr
            and self._owner.may_be_in_sync(broker_id, follower.broker_epoch)
        ):
            self._want_isr([*self.isr, broker_id])

    def drop_lagging(self, now_ms: int, longest_lag_ms: int, most_records: int = 0) -> None:
        """Members of the in-sync set that are behind for too long (or, if `most_records` is not 0, by
        too many records) are to leave it."""
        if self.role is not Role.LEADER or self.wanted_isr is not None:
            return
        if self.is_offline:
            # They cannot get on; the one that lags is this leader.
            self.resign()
            return
        log = self._log
        if log is None:
            return
        end = log.log_end_offset
        kept = []
        for member in self.isr:
            follower = self.followers.get(member)
            if follower is not None and (
                follower.end_offset != end
                or (self._flushed_counts and follower.flushed_offset != end)
            ):
                if now_ms - follower.caught_up_ms > longest_lag_ms:
                    continue
                behind = end - max(follower.end_offset, 0)
                if most_records and behind > most_records and follower.end_offset != UNKNOWN:
                    continue
            kept.append(member)
        if len(kept) < len(self.isr):
            self._want_isr(kept)

    def _want_isr(self, members: list[int]) -> None:
        self.wanted_isr = {
            each: self.followers[each].broker_epoch if each in self.followers else UNKNOWN
            for each in members
        }
        self._settle()
        self._owner.isr_wanted(self)

    def resign(self) -> None:
        """Ask for another in-sync replica to lead, if there is one: the log here has failed or is full.
        Not while another change of the set is under way: those whom that may have taken in count."""
        others = [each for each in self.isr if each != self.broker_id]
        if self.role is Role.LEADER and others and self.wanted_isr is None:
            self._want_isr(others)

    def isr_confirmed(self, state: PartitionState, now_ms: int) -> None:
        """Take over the in-sync set that the controller has set. One that grows counts at once. A
        smaller one counts when the image has it, for with that comes the `min.insync.replicas` by which
        it was decided: who left may be elected (KIP-966) as long as nothing was committed below that
        minimum."""
        if state.leader == self.broker_id and not set(self.isr) <= set(state.isr):
            return
        if state.partition_epoch > self.partition_epoch:
            # Otherwise an image was quicker, which knows more than an answer does.
            self.update(state, now_ms)

    def isr_refused(self, code: ErrorCode) -> None:
        """Take note that the controller did not change the set by that request. INELIGIBLE_REPLICA: nor
        by an earlier one of the same, so the set is what it was. Any other error says that the partition
        is no longer as this leader knows it, perhaps by that very request, whose answer was lost: the
        larger set counts until a newer state comes, for somebody may have been elected from it."""
        if code is not ErrorCode.INELIGIBLE_REPLICA:
            return
        self.wanted_isr = None
        self._settle()
        self.advance()

    # As follower --------------------------------------------------------------------------------

    @property
    def is_unflushed(self) -> bool:
        """Whether what was taken does not count yet, because it is not synced."""
        log = self._log
        return (
            self._flushed_counts
            and log is not None
            and log.offline is None
            and log.recovery_point < log.log_end_offset
        )

    def take(self, batches: memoryview | bytes, high_watermark: int, now_ms: int) -> int:
        """Append what the leader sent (whole batches), and learn what is committed; the new end."""
        log = self._log or self.log
        if batches:
            append_copied(log, batches, now_ms)
        self._learn(log, high_watermark, len(batches))
        return log.log_end_offset

    def take_in_steps(self, batches: memoryview, high_watermark: int, now_ms: int) -> Steps:
        """Does what `take` does, in steps, for a disk that is slow."""
        log = self._log or self.log
        try:
            placed = log.check_replicated(batches)
        except UnexpectedOffset as error:
            if not _begins_inside(log, error.first_offset):
                raise
            yield from log.new_start_at(error.first_offset, now_ms)
            placed = log.check_replicated(batches)
        while placed:
            append = log.prepare_replicated(batches, placed, now_ms)
            log.hand_out(append)
            yield partial(log.write, append)
            log.check_online()  # it may have been deleted meanwhile
            log.commit(append)
            placed = placed[len(append.batches) :]
        self._learn(log, high_watermark, len(batches))

    def _learn(self, log: Log, high_watermark: int, size: int) -> None:
        before = log.high_watermark
        log.advance_high_watermark(high_watermark)
        if self.waiters and log.high_watermark > before:
            self._owner.advanced(self, max(size, 1))

    @property
    def is_being_cut(self) -> bool:
        """Whether a truncation is under way, so that the log is not to be read."""
        return self._log is not None and self._log.truncation is not None

    # Reading ------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Wake all who wait to read, after something other than an append."""
        if self.waiters:
            self._owner.advanced(self, 1 << 62)
        if self.replica_waiters:
            self._owner.appended(self, 1 << 62)

    def readable_end(self, isolation: int) -> int:
        """The offset before which a consumer may read."""
        log = self._log or self.log
        return log.last_stable_offset if isolation == READ_COMMITTED else log.high_watermark
