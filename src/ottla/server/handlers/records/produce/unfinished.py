"""A Produce request whose answer has to wait: for a lane, for replicas, for a flush.

Each partition that waits has its place among the pieces of the response, which is filled when it is
decided; the last one sends the response. An append with acks=all that is not on all in-sync replicas
when the request's timeout has passed is answered with REQUEST_TIMED_OUT: it is in the leader's log,
and may be committed later. A flush that is waited for is no matter of that time, as in Kafka.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode
from ottla.server.handlers.records.produce.answer import success_piece
from ottla.server.handlers.records.produce.checks import ALL_ACKS, LEADER_ACKS, NO_ACKS

if TYPE_CHECKING:
    import asyncio

    from ottla.replication.partition import Appended, Partition
    from ottla.replication.waiters import OffsetWaiter
    from ottla.server.delayed import Deadline, Deadlines
    from ottla.server.disk.lanes import Lanes, Transform
    from ottla.server.handlers.records.produce.response import Response
    from ottla.server.network.slots import HeldBytes


def must_wait(target: Partition, end_offset: int, acks: int) -> bool:
    """Whether an append may not be acknowledged yet."""
    if acks == ALL_ACKS:
        return not target.is_committed(end_offset)
    return acks != NO_ACKS and not target.is_flushed(end_offset)


class Unfinished:
    """The partitions of one request that wait, each at its place in the response."""

    __slots__ = (
        "_deadlines",
        "_lanes",
        "_open",
        "_response",
        "_timed_out",
        "_timeout_ms",
        "_timer",
        "_waiting",
    )

    def __init__(
        self, lanes: Lanes, deadlines: Deadlines, response: Response, timeout_ms: int
    ) -> None:
        self._lanes = lanes
        self._deadlines = deadlines
        self._response = response
        self._timeout_ms = timeout_ms
        # What is not decided yet, and the walk over the request's partitions.
        self._open = 1
        # Place in the response → index of the partition, the partition, who waits there.
        self._waiting: dict[int, tuple[int, Partition, OffsetWaiter]] = {}
        self._timer: Deadline | asyncio.TimerHandle | None = None
        self._timed_out = False

    def append_through_lane(
        self, target: Partition, index: int, records: memoryview, transform: Transform | None
    ) -> None:
        """The next partition of the response is appended to when its turn has come."""
        response = self._response
        place = len(response.pieces)
        response.pieces.append(b"")
        self._open += 1
        kept = response.connection.keep(records)
        done = partial(self._appended, target, index, place, kept)
        self._lanes.append(target, kept.data, done, transform)

    def _appended(
        self,
        target: Partition,
        index: int,
        place: int,
        kept: HeldBytes,
        result: Appended | Exception,
    ) -> None:
        # Where it failed, a thread may have been left behind.
        kept.release(reusable=not isinstance(result, Exception))
        response = self._response
        if isinstance(result, Exception):
            response.refuse_for(place, index, result, target)
        else:
            base_offset, append_time, log_start_offset, end_offset, _ = result
            response.pieces[place] = success_piece(
                response.version, index, base_offset, append_time, log_start_offset
            )
            if response.acks == LEADER_ACKS and target.followers:
                response.alone[place] = (index, target, target.leader_epoch)
            self.wait_for(target, index, place, end_offset)
        self._partition_done()

    def wait_for(self, target: Partition, index: int, place: int, end_offset: int) -> None:
        """Hold the response back until this append may be acknowledged; at once, if it may be."""
        acks = self._response.acks
        if not must_wait(target, end_offset, acks):
            return
        when = target.when_flushed
        if acks == ALL_ACKS:
            if self._timed_out and not target.is_replicated(end_offset):
                self._response.refuse(place, index, ErrorCode.REQUEST_TIMED_OUT, None, target)
                return
            when = target.when_committed
        self._open += 1
        waiter = when(end_offset, partial(self._reached, place))
        self._waiting[place] = (index, target, waiter)

    def _reached(self, place: int, code: ErrorCode) -> None:
        index, target, _ = self._waiting.pop(place)
        if not code and target.under_min_isr and self._response.acks == ALL_ACKS:
            # It was replicated, and a flush was waited for. Too few of those who have it are left.
            code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        if code:
            self._response.refuse(place, index, code, None, target)
        self._partition_done()

    def all_begun(self) -> None:
        """The walk over the partitions is at its end: from now on the request waits."""
        self._open -= 1
        response = self._response
        if not self._open:
            response.send()
            return
        if response.slot is None:
            # Also where no answer is wanted: unfinished requests are counted by their slots.
            response.slot = response.connection.reserve()
        if response.acks == ALL_ACKS:
            self._timer = self._deadlines.after(max(0, self._timeout_ms), self._time_out)

    def _time_out(self) -> None:
        self._timed_out = True
        late = [
            (place, index, target, waiter)
            for place, (index, target, waiter) in self._waiting.items()
            if not target.is_replicated(waiter.end_offset)
        ]
        for place, index, target, waiter in late:
            target.stop_waiting(waiter)
            del self._waiting[place]
            self._response.refuse(place, index, ErrorCode.REQUEST_TIMED_OUT, None, target)
            self._partition_done()

    def _partition_done(self) -> None:
        self._open -= 1
        if not self._open:
            if self._timer is not None:
                self._timer.cancel()
            self._response.send()
