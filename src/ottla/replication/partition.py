"""One partition as this broker holds it: its log, its leadership and who waits for it to move.

With a single replica the high watermark follows the end of the log at once. The follower's side and
the in-sync set of several brokers join here later; the server only ever asks this class how far
readers may see, and whether an append may be acknowledged:

- committed (acks=all): every in-sync replica has it, and it is flushed;
- flushed (acks=1): it is on disk, if it is one of those that `flush.messages` asks to be. An append
  that does not reach that number is flushed in the background and counts as flushed at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ottla.protocol.errors import ErrorCode
from ottla.record.validation.findings import Rules
from ottla.replication.waiters import OffsetWaiter, OffsetWaiters, Reached
from ottla.storage.config import LogConfig
from ottla.storage.errors import LogOffline
from ottla.storage.producer_state import Origin

if TYPE_CHECKING:
    from ottla.cluster.metadata import Partition as PartitionState
    from ottla.record.batch import HeaderFields
    from ottla.storage.append import Append
    from ottla.storage.log import Log

READ_UNCOMMITTED = 0
READ_COMMITTED = 1

# What is told of an append: base offset, append time (-1: the producer's times count), where the log
# starts, the offset after its last record, and whether it is known to be committed and flushed already
# (if not, `is_committed` and `is_flushed` tell).
Appended: TypeAlias = tuple[int, int, int, int, bool]


class Waiter(Protocol):
    """Somebody who waits for more to read."""

    def progressed(self, partition: Partition, appended_bytes: int) -> None: ...


class Partition:
    __slots__ = (
        "_alone",
        "_awaiting_commit",
        "_awaiting_flush",
        "_broken",
        "_load",
        "_log",
        "_moved",
        "config",
        "index",
        "internal",
        "is_new",
        "isr",
        "lane",
        "leader",
        "leader_epoch",
        "open_to_clients",
        "record_rules",
        "replicas",
        "topic",
        "topic_id",
        "under_min_isr",
        "waiters",
    )

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        state: PartitionState,
        load: Callable[[Partition], Log],
        moved: Callable[[Partition, int], None],
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = state.index
        self.waiters: set[Waiter] = set()
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
        self._awaiting_commit = OffsetWaiters()
        self._awaiting_flush = OffsetWaiters()
        self.leader = state.leader
        self._load = load
        self._moved = moved
        # Opened on first use: of thousands of partitions most are asleep.
        self._log: Log | None = None
        self._broken = False
        self.update(state)

    def update(self, state: PartitionState) -> None:
        """Take over what the cluster has decided about this partition."""
        has_moved = state.leader != self.leader
        self.replicas = state.replicas
        self.isr = state.isr
        self.leader = state.leader
        self.leader_epoch = state.leader_epoch
        self._alone = len(state.isr) == 1
        self._count_in_sync()
        if has_moved:
            self.fail_waiters(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def configure(self, config: LogConfig) -> None:
        """The topic's settings are these from now on."""
        self.config = config
        self._count_in_sync()
        log = self._log
        if log is not None:
            log.reconfigure(config)
            self._release_waiters(log)

    def _count_in_sync(self) -> None:
        # A topic with fewer replicas than it wants in sync is content with those it has, as in Kafka.
        wanted = min(self.config.min_insync_replicas, len(self.replicas))
        self.under_min_isr = len(self.isr) < wanted

    @property
    def log(self) -> Log:
        log = self._log
        if log is None:
            try:
                log = self._log = self._load(self)
                self._broken = False
            except LogOffline:
                self._broken = True
                raise
            # Nobody else holds a copy that could be shorter.
            if self._alone:
                log.advance_high_watermark(log.log_end_offset)
        return log

    @property
    def opened(self) -> Log | None:
        """The log, if somebody has used it since the start."""
        return self._log

    # Appending

    def append(
        self,
        buffer: bytearray | memoryview,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        checked: HeaderFields | None = None,
    ) -> Appended:
        """Append batches at once. `checked`: the header, if the buffer is one batch that has passed
        `check_produced`."""
        log = self._log or self.log
        if checked is not None:
            base_offset = log.append_simple(buffer, checked, self.leader_epoch, now_ms)
            if base_offset >= 0:
                end_offset = log.log_end_offset
                is_settled = False
                if self._alone:
                    # As `_advance`, on the way that nearly all batches go.
                    is_settled = end_offset < log.flush_at_offset
                    log.advance_high_watermark(end_offset)
                    if self._awaiting_commit.waiting:
                        self._release_waiters(log)
                    if self.waiters:
                        self._moved(self, len(buffer))
                return base_offset, -1, log.log_start_offset, end_offset, is_settled
        append = log.append(buffer, self.leader_epoch, now_ms, origin, checked)
        return self._appended(log, append)

    def prepare(self, buffer: bytearray | memoryview, now_ms: int, origin: Origin) -> Append:
        """The first of the steps of an append whose write is done elsewhere (a lane): see
        Log.prepare. The last is `commit`."""
        return self.log.prepare(buffer, self.leader_epoch, now_ms, origin)

    def commit(self, append: Append) -> Appended:
        """Make an append that was written part of the log; of a duplicate, its original is told."""
        log = self.log
        if not append.duplicate:
            log.commit(append)
        return self._appended(log, append)

    def _appended(self, log: Log, append: Append) -> Appended:
        if self._alone and not append.duplicate:
            self._advance(log, log.log_end_offset, append.size)
        return (
            append.base_offset,
            append.log_append_time,
            append.log_start_offset,
            append.last_offset + 1,
            self.is_committed(append.last_offset + 1),
        )

    # Committing

    def _advance(self, log: Log, offset: int, size: int) -> None:
        """Every in-sync replica has what is below `offset`; `size` bytes are new to readers."""
        log.advance_high_watermark(offset)
        if self._awaiting_commit.waiting:
            self._release_waiters(log)
        if self.waiters:
            self._moved(self, size)

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
        return self._awaiting_commit.add(end_offset, reached)

    def when_flushed(self, end_offset: int, reached: Reached) -> OffsetWaiter:
        """The same for `is_flushed(end_offset)`."""
        return self._awaiting_flush.add(end_offset, reached)

    def stop_waiting(self, waiter: OffsetWaiter) -> None:
        """Whoever waits has lost patience and is not called."""
        self._awaiting_commit.remove(waiter)
        self._awaiting_flush.remove(waiter)

    def flushed(self) -> None:
        """A flush of the log came to its end."""
        if self._log is not None:
            self._release_waiters(self._log)

    def fail_waiters(self, code: ErrorCode) -> None:
        """Nobody will commit here what is waited for: another broker leads, the topic is deleted, or
        the disk failed."""
        self._awaiting_commit.fail(code)
        self._awaiting_flush.fail(code)

    def _release_waiters(self, log: Log) -> None:
        if log.offline is not None:
            self.fail_waiters(ErrorCode.KAFKA_STORAGE_ERROR)
            return
        flushed = log.flush_at_offset - 1
        self._awaiting_flush.advance(flushed)
        self._awaiting_commit.advance(min(log.high_watermark, flushed))

    def wake(self) -> None:
        """Something other than an append changed what waiters would get."""
        if self.waiters:
            self._moved(self, 1 << 62)

    def readable_end(self, isolation: int) -> int:
        """The offset before which a consumer may read."""
        log = self._log or self.log
        return log.last_stable_offset if isolation == READ_COMMITTED else log.high_watermark

    @property
    def is_offline(self) -> bool:
        """Whether the disk under the log is known to have failed."""
        return self._broken or (self._log is not None and self._log.offline is not None)
