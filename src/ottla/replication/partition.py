"""One partition as this broker holds it: its log, its leadership and who waits for it to move.

With a single replica the high watermark follows the end of the log at once. The follower's side and
the in-sync set of several brokers join here later; the server only ever asks this class how far
readers may see and whether an append counts as committed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ottla.storage.errors import LogOffline
from ottla.storage.producer_state import Origin

if TYPE_CHECKING:
    from ottla.cluster.metadata import Partition as PartitionState
    from ottla.storage.append import Append
    from ottla.storage.log import Log

READ_UNCOMMITTED = 0
READ_COMMITTED = 1


class Waiter(Protocol):
    """Somebody who waits for more to read."""

    def progressed(self, partition: Partition, appended_bytes: int) -> None: ...


class Partition:
    __slots__ = (
        "_alone",
        "_broken",
        "_load",
        "_log",
        "_moved",
        "index",
        "internal",
        "is_new",
        "isr",
        "lane",
        "leader",
        "leader_epoch",
        "plain",
        "replicas",
        "topic",
        "topic_id",
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
        # Nothing about an append to this partition needs a closer look: led here, no other replica
        # to wait for, batches kept as producers compressed them. The server keeps it up to date.
        self.plain = False
        self._load = load
        self._moved = moved
        # Opened on first use: of thousands of partitions most are asleep.
        self._log: Log | None = None
        self._broken = False
        self.update(state)

    def update(self, state: PartitionState) -> None:
        """Take over what the cluster has decided about this partition."""
        self.replicas = state.replicas
        self.isr = state.isr
        self.leader = state.leader
        self.leader_epoch = state.leader_epoch
        self._alone = len(state.isr) == 1

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

    def append(
        self, buffer: bytearray | memoryview, now_ms: int, origin: Origin = Origin.CLIENT
    ) -> Append:
        """Append batches; they are committed when every in-sync replica has them."""
        log = self._log or self.log
        appended = log.append(buffer, self.leader_epoch, now_ms, origin)
        if self._alone:
            log.advance_high_watermark(log.log_end_offset)
            if self.waiters:
                self._moved(self, appended.size)
        return appended

    def append_simple(self, batch: memoryview, now_ms: int) -> tuple[int, int, int] | None:
        """The base offset, -1 (no append time: the producer's times count), and where the log starts.
        None if `append` should have a look at it: see Log.append_simple."""
        log = self._log
        if log is None or not self._alone:
            return None
        base_offset = log.append_simple(batch, self.leader_epoch, now_ms)
        if base_offset < 0:
            return None
        log.advance_high_watermark(log.log_end_offset)
        if self.waiters:
            self._moved(self, len(batch))
        return base_offset, -1, log.log_start_offset

    def committed(self, appended: Append) -> None:
        """What `append` does after a write that was done in steps elsewhere (a lane)."""
        log = self.log
        if self._alone:
            log.advance_high_watermark(log.log_end_offset)
            if self.waiters:
                self._moved(self, appended.size)

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
