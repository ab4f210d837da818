"""DeleteRecords: everything before an offset goes; the partition starts there from now on.

- The offset -1 stands for the high watermark: everything that is there.
- Whole segments below the new start are dropped in the background; a segment that the start lies in
  stays, and its records before it are not served any more.
- The start survives a crash before it is answered for.
- It is answered once the logs of all replicas whose brokers are alive begin there, with the low
  watermark over all of them; REQUEST_TIMED_OUT if that takes longer than the request allows, and the
  records are gone all the same.
- Internal topics are the broker's own, whatever their settings: coordinators read them from the start.
- Of a partition that is named twice, the last offset counts; it is answered once.

Versions: v1 as v0; v2 flexible
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from ottla.replication.partition import Role
from ottla.server.api import Request, handles
from ottla.server.failures import error_code
from ottla.server.turns import Steps, in_turns
from ottla.storage.errors import StorageError

if TYPE_CHECKING:
    from ottla.replication.partition import Partition
    from ottla.replication.waiters import OffsetWaiter

_HIGH_WATERMARK = -1


@handles(DeleteRecordsRequest, versions=(0, 2))
async def delete_records(request: Request[DeleteRecordsRequest]) -> DeleteRecordsResponse:
    unfinished: list[_Unfinished] = []
    response = await in_turns(_advanced(request, unfinished))
    deadline = request.broker.loop.time() + max(0, request.message.timeout_ms) / 1000
    if await request.broker.periodic_work.checkpoint() is not None:
        await in_turns(_failed(response))
        return response
    waiting = [future for each in unfinished if (future := _wait(each)) is not None]
    if waiting:
        await asyncio.wait(waiting, timeout=max(0.0, deadline - request.broker.loop.time()))
        await in_turns(_concluded(unfinished))
    return response


class _Unfinished:
    """A deletion that replicas have to follow, and its place in the answer."""

    __slots__ = ("answer", "code", "offset", "partition", "waiter")

    def __init__(
        self, partition: Partition, offset: int, answer: DeleteRecordsPartitionResult
    ) -> None:
        self.partition = partition
        self.offset = offset
        self.answer = answer
        self.waiter: OffsetWaiter | None = None
        # What the wait ended with; None while it lasts.
        self.code: ErrorCode | None = None


def _wait(each: _Unfinished) -> asyncio.Future[None] | None:
    """Done when the replicas have followed; None if they have."""
    partition, offset = each.partition, each.offset
    if partition.role is not Role.LEADER:
        each.code = each.answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return None
    low_watermark = partition.low_watermark
    if low_watermark >= offset:
        each.code = ErrorCode.NONE
        each.answer.low_watermark = low_watermark
        return None
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def reached(code: ErrorCode) -> None:
        each.code = code
        if code is ErrorCode.NONE:
            each.answer.low_watermark = partition.low_watermark
        if not future.done():
            future.set_result(None)

    each.waiter = partition.when_deleted(offset, reached)
    return future


def _concluded(unfinished: list[_Unfinished]) -> Steps[None]:
    for each in unfinished:
        if each.code is None:
            assert each.waiter is not None
            each.partition.stop_waiting(each.waiter)
            each.code = ErrorCode.REQUEST_TIMED_OUT
        each.answer.error_code = each.code
        yield


def _advanced(
    request: Request[DeleteRecordsRequest], unfinished: list[_Unfinished]
) -> Steps[DeleteRecordsResponse]:
    wanted: dict[str, dict[int, DeleteRecordsPartition]] = {}
    for topic in request.message.topics:
        of_topic = wanted.setdefault(topic.name, {})
        for each in topic.partitions:
            of_topic[each.partition_index] = each
            yield
        yield
    response = DeleteRecordsResponse()
    for name, partitions in wanted.items():
        answers = DeleteRecordsTopicResult(name=name)
        response.topics.append(answers)
        for each in partitions.values():
            answers.partitions.append(_advance(request, name, each, unfinished))
            yield
        yield
    return response


def _failed(response: DeleteRecordsResponse) -> Steps[None]:
    for topic in response.topics:
        for partition in topic.partitions:
            partition.error_code = partition.error_code or ErrorCode.KAFKA_STORAGE_ERROR
            yield


def _advance(
    request: Request[DeleteRecordsRequest],
    topic: str,
    wanted: DeleteRecordsPartition,
    unfinished: list[_Unfinished],
) -> DeleteRecordsPartitionResult:
    answer = DeleteRecordsPartitionResult(partition_index=wanted.partition_index, low_watermark=-1)
    try:
        partition = request.broker.leader_of(topic, wanted.partition_index, -1)
        if partition.internal:
            raise ProtocolError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        log = partition.log
        if not log.config.deletes:
            raise ProtocolError(ErrorCode.POLICY_VIOLATION)
        if wanted.offset < _HIGH_WATERMARK:
            raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE)
        offset = log.high_watermark if wanted.offset == _HIGH_WATERMARK else wanted.offset
        if offset > log.high_watermark:
            raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE)
        partition.delete_before(offset)
        answer.low_watermark = partition.low_watermark
        if answer.low_watermark < offset:
            unfinished.append(_Unfinished(partition, offset, answer))
    except (ProtocolError, StorageError) as error:
        answer.error_code = error_code(error)
    return answer
