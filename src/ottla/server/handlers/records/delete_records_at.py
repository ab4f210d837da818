"""DeleteRecordsAt: single records go, by their offsets; all others stay where they are. Ottla's own API.

- A control batch in the partition's log marks the offsets (`ottla.record.deletion`). It hides them from
  its append on; the answer comes once it is committed, as with acks=all.
- A partition is answered alone. If one of its offsets cannot be deleted (it is out of range, at or above
  the last stable offset, in an aborted transaction, no record or deleted already), nothing is marked
  there and the error names it. `skip_deleted` passes over what is deleted already, so that a request
  whose answer was lost may be sent again.
- Many offsets go into few marks: ranges, several hundred in one.
- `validate_only` looks at the offsets in the same way and marks none: whoever has more of them than go
  into one request learns first whether all of them can be deleted.
- Internal topics are the broker's own.

Versions:
  v1  validate_only; topic ids, so that a request which is sent again, after a topic was deleted and
      created again, deletes nothing of the new one
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from ottla.logfiles.walk import HEADER_CHUNK
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.message import ZERO_UUID
from ottla.protocol.messages.delete_records_at import (
    DeletedRange,
    DeleteRecordsAtPartitionResult,
    DeleteRecordsAtRequest,
    DeleteRecordsAtResponse,
    DeleteRecordsAtTopicResult,
)
from ottla.record.deletion import LARGEST_RANGE, MARK_OVERHEAD, build_mark
from ottla.record.errors import InvalidBatch
from ottla.replication.partition import Role
from ottla.server.api import Request, handles
from ottla.server.failures import error_code, error_message
from ottla.server.turns import Steps, Turns, emptied, in_order, in_turns
from ottla.storage.errors import NotInMemory, StorageError
from ottla.storage.log.producer_state import Origin
from ottla.storage.log.targets import check_bounds, check_records, not_deleted

if TYPE_CHECKING:
    from ottla.record.offset_set import OffsetRange
    from ottla.replication.partition import Appended, Partition
    from ottla.replication.waiters import OffsetWaiter
    from ottla.server.broker import Broker
    from ottla.server.disk.lanes import Batches

# A mark that is no larger is made, taken in and read in a millisecond or two, and costs a tenth more
# bytes than one of any size.
RANGES_IN_A_MARK = 512
# Partitions that are looked at, and marked, at the same time: each may use up a slice in a turn of the
# loop.
_AT_ONCE = 8

# Held by the request that marks records of a partition: by broker, topic and number. A lock that nobody
# holds or waits for is gone.
_under_way: WeakValueDictionary[tuple[int, str, int], asyncio.Lock] = WeakValueDictionary()


@handles(DeleteRecordsAtRequest, versions=(0, 1))
async def delete_records_at(
    request: Request[DeleteRecordsAtRequest],
) -> DeleteRecordsAtResponse:
    message, loop = request.message, request.broker.loop
    deadline = loop.time() + message.timeout_ms / 1000
    response = DeleteRecordsAtResponse(topics=[])
    turns = Turns()
    wanted: dict[tuple[str, bytes, int], list[DeletedRange]] = {}
    for topic in message.topics:
        for each in topic.partitions:
            key = topic.name, topic.topic_id, each.partition_index
            wanted.setdefault(key, []).extend(each.ranges)
            await turns.pause()
        await turns.pause()
    answers: dict[str, DeleteRecordsAtTopicResult] = {}
    work: list[tuple[_Deletion, str, list[DeletedRange]]] = []
    for (name, topic_id, index), ranges in wanted.items():
        topic_answer = answers.get(name)
        if topic_answer is None:
            topic_answer = answers[name] = DeleteRecordsAtTopicResult(name=name, partitions=[])
            response.topics.append(topic_answer)
        answer = DeleteRecordsAtPartitionResult(partition_index=index)
        topic_answer.partitions.append(answer)
        deletion = _Deletion(request.broker, topic_id, message.skip_deleted, answer)
        work.append((deletion, name, ranges))
        await turns.pause()
    await _work_on(work, message.validate_only)
    unfinished: list[_Deletion] = []
    for deletion, _, _ in work:
        if deletion.committed is not None:
            unfinished.append(deletion)
        await turns.pause()
    if unfinished:
        waiting = [each.committed for each in unfinished if each.committed is not None]
        await asyncio.wait(waiting, timeout=max(0.0, deadline - loop.time()))
        for deletion in unfinished:
            deletion.conclude()
            await turns.pause()
    await in_turns(emptied(work))
    await in_turns(emptied(wanted))
    return response


async def _work_on(
    work: Sequence[tuple[_Deletion, str, list[DeletedRange]]], validate_only: bool
) -> None:
    """Do what is asked of each partition, some at the same time: one may wait for a slow disk."""
    left = iter(work)
    # Many partitions are over within a slice.
    turns = Turns()

    async def work_on_some() -> None:
        for deletion, topic, ranges in left:
            if validate_only:
                await deletion.validate(topic, ranges, turns)
            else:
                await deletion.mark(topic, ranges, turns)
            await turns.pause()

    await asyncio.gather(*(work_on_some() for _ in range(min(_AT_ONCE, len(work)))))


class _Deletion:
    """What a request asks of one partition."""

    __slots__ = ("_answer", "_broker", "_skip_deleted", "_topic_id", "_waits_on", "committed")

    def __init__(
        self,
        broker: Broker,
        topic_id: bytes,
        skip_deleted: bool,
        answer: DeleteRecordsAtPartitionResult,
    ) -> None:
        self._broker = broker
        self._topic_id = topic_id
        self._skip_deleted = skip_deleted
        self._answer = answer
        # Done when what was marked is on all in-sync replicas, or will not be; None: not waited for.
        self.committed: asyncio.Future[ErrorCode] | None = None
        self._waits_on: tuple[Partition, OffsetWaiter] | None = None

    async def validate(self, topic: str, wanted: Sequence[DeletedRange], turns: Turns) -> None:
        answer = self._answer
        try:
            partition = self._partition(topic)
            answer.deleted = sum(b - a for a, b in await self._checked(partition, wanted, turns))
        except (ProtocolError, StorageError, InvalidBatch, OSError) as error:
            answer.error_code = error_code(error)
            answer.error_message = error_message(error)

    async def mark(self, topic: str, wanted: Sequence[DeletedRange], turns: Turns) -> None:
        """Append the marks. Whether they are committed is waited for until `conclude`."""
        answer = self._answer
        try:
            partition = self._partition(topic)
            term = partition.leader_epoch
            # One request after the other: what was found undeleted is so until it is marked.
            key = id(self._broker), topic, answer.partition_index
            async with _under_way.setdefault(key, asyncio.Lock()):
                end_offset = await self._mark_all(partition, wanted, turns)
            if partition.role is not Role.LEADER or partition.leader_epoch != term:
                # Others may have been elected meanwhile, who do not have the marks.
                raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            deletions = partition.log.deletions
            if self._skip_deleted and deletions is not None:
                # What was passed over is deleted for good no earlier than its marks are committed.
                uncommitted = deletions.uncommitted_end(partition.log.high_watermark)
                end_offset = max(end_offset, uncommitted)
            if end_offset >= 0:
                self._wait(partition, end_offset)
        except (ProtocolError, StorageError, InvalidBatch, OSError) as error:
            answer.error_code = error_code(error)
            answer.error_message = error_message(error)

    def _partition(self, topic: str) -> Partition:
        partition = self._broker.leader_of(topic, self._answer.partition_index, -1)
        if self._topic_id not in (ZERO_UUID, partition.topic_id):
            raise ProtocolError(
                ErrorCode.UNKNOWN_TOPIC_ID, "the topic was deleted and created again meanwhile"
            )
        if partition.internal:
            raise ProtocolError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, "internal topics are the broker's own"
            )
        if partition.under_min_isr:
            raise ProtocolError(ErrorCode.NOT_ENOUGH_REPLICAS)
        if not partition.has_caught_up:
            # Committed records would be refused as if they were not: a new leader does not know yet.
            raise ProtocolError(ErrorCode.OFFSET_NOT_AVAILABLE)
        return partition

    async def _mark_all(
        self, partition: Partition, wanted: Sequence[DeletedRange], turns: Turns
    ) -> int:
        """Append the marks, once all that is wanted was looked at; where the last ends, -1 if there was
        nothing to mark."""
        ranges = await self._checked(partition, wanted, turns)
        end_offset = -1
        largest = min(partition.config.max_message_bytes, partition.config.segment_bytes)
        at_once = max(1, min(RANGES_IN_A_MARK, (largest - MARK_OVERHEAD) // LARGEST_RANGE))
        for first in range(0, len(ranges), at_once):
            await turns.pause()
            appended = await self._mark(partition, ranges[first : first + at_once])
            end_offset = max(end_offset, appended)
        return end_offset

    async def _checked(
        self, partition: Partition, wanted: Sequence[DeletedRange], turns: Turns
    ) -> list[OffsetRange]:
        """The ranges to mark, in order, without those that overlap; nothing has changed so far."""
        log = partition.log
        log.check_online()
        ranges: list[OffsetRange] = []
        known = -1  # records are there up to this offset, of those that were looked at last
        for start, end in await in_turns(_sorted(wanted)):
            await turns.pause()
            check_bounds(log, start, end)
            if ranges and start < ranges[-1][1]:
                start = ranges[-1][1]
                if start >= end:
                    continue
            for low, high in not_deleted(log, start, end, self._skip_deleted):
                at = max(low, min(known, high))
                while at < high:
                    try:
                        at, known = check_records(log, at, high)
                    except NotInMemory as missing:
                        await self._broker.reads.load(missing, HEADER_CHUNK)
                    await turns.pause()
                if ranges and ranges[-1][1] == low:
                    low = ranges.pop()[0]
                ranges.append((low, high))
        return ranges

    async def _mark(self, partition: Partition, ranges: list[OffsetRange]) -> int:
        """Append a mark, after what queues up for the partition; where it ends, -1 if there was nothing
        left to mark."""
        broker = self._broker
        marked = 0

        def build() -> bytearray:
            # Right before the append: what was marked or truncated meanwhile counts.
            nonlocal marked
            fresh: list[OffsetRange] = []
            log = partition.log
            for start, end in ranges:
                check_bounds(log, start, end)
            if log.deletions is None or not log.deletions.invisible.ranges_in(
                ranges[0][0], ranges[-1][1]
            ):
                fresh = ranges
            else:
                for start, end in ranges:
                    fresh += not_deleted(log, start, end, self._skip_deleted)
            marked = sum(end - start for start, end in fresh)
            if not fresh:
                raise _NothingLeft
            return bytearray(build_mark(fresh))

        async def built(_: Batches) -> Batches:
            return build()

        finished: asyncio.Future[Appended] = broker.loop.create_future()

        def done(result: Appended | Exception) -> None:
            if finished.done():
                return
            if isinstance(result, Exception):
                finished.set_exception(result)
            else:
                finished.set_result(result)

        try:
            if partition.lane is not None or broker.lanes.is_slow(partition.log.folder):
                broker.lanes.append(partition, bytearray(), done, built, Origin.COORDINATOR)
                result = await finished
            else:
                now = time.time_ns() // 1_000_000
                result = partition.append(build(), now, Origin.COORDINATOR)
        except _NothingLeft:
            return -1
        self._answer.deleted += marked
        _, _, _, end_offset, _ = result
        return end_offset

    def _wait(self, partition: Partition, end_offset: int) -> None:
        """From now on, until what is below `end_offset` is on all in-sync replicas."""
        if partition.is_committed(end_offset):
            return
        committed: asyncio.Future[ErrorCode] = self._broker.loop.create_future()

        def on_committed(code: ErrorCode) -> None:
            if not committed.done():
                committed.set_result(code)

        self.committed = committed
        self._waits_on = partition, partition.when_committed(end_offset, on_committed)

    def conclude(self) -> None:
        """Answer with what the wait has ended with, or that it took too long."""
        assert self.committed is not None
        assert self._waits_on is not None
        if self.committed.done():
            code = self.committed.result()
        else:
            partition, waiter = self._waits_on
            partition.stop_waiting(waiter)
            code = ErrorCode.REQUEST_TIMED_OUT
        if code:
            self._answer.error_code = code
            self._answer.error_message = "the deletion is not known to be on all in-sync replicas"


def _sorted(wanted: Sequence[DeletedRange]) -> Steps[Iterator[OffsetRange]]:
    ranges: list[OffsetRange] = []
    for each in wanted:
        ranges.append((each.first_offset, each.last_offset + 1))
        yield
    return (yield from in_order(ranges))


class _NothingLeft(ValueError):
    """All that was to be marked is marked already."""
