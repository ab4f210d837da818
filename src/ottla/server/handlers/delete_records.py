"""DeleteRecords: everything before an offset goes; the partition starts there from now on.

- The offset -1 stands for the high watermark: everything that is there.
- Whole segments below the new start are dropped in the background; a segment that the start lies in
  stays, and its records before it are not served any more.
- The start survives a crash before it is answered for.
- Of a partition that is named twice, the last offset counts; it is answered once.

Versions: v1 as v0; v2 flexible
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from ottla.server.api import Request, handles
from ottla.server.failures import error_code
from ottla.server.turns import Steps, in_turns
from ottla.storage.errors import StorageError

_HIGH_WATERMARK = -1


@handles(DeleteRecordsRequest, versions=(0, 2))
async def delete_records(request: Request[DeleteRecordsRequest]) -> DeleteRecordsResponse:
    response = await in_turns(_advanced(request))
    if await request.broker.periodic_work.checkpoint() is not None:
        await in_turns(_failed(response))
    return response


def _advanced(request: Request[DeleteRecordsRequest]) -> Steps[DeleteRecordsResponse]:
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
            answers.partitions.append(_advance(request, name, each))
            yield
        yield
    return response


def _failed(response: DeleteRecordsResponse) -> Steps[None]:
    for topic in response.topics:
        for partition in topic.partitions:
            partition.error_code = partition.error_code or ErrorCode.KAFKA_STORAGE_ERROR
            yield


def _advance(
    request: Request[DeleteRecordsRequest], topic: str, wanted: DeleteRecordsPartition
) -> DeleteRecordsPartitionResult:
    answer = DeleteRecordsPartitionResult(partition_index=wanted.partition_index, low_watermark=-1)
    try:
        partition = request.broker.leader_of(topic, wanted.partition_index, -1)
        log = partition.log
        if not log.config.deletes:
            raise ProtocolError(ErrorCode.POLICY_VIOLATION)
        if wanted.offset < _HIGH_WATERMARK:
            raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE)
        offset = log.high_watermark if wanted.offset == _HIGH_WATERMARK else wanted.offset
        if offset > log.high_watermark:
            raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE)
        log.advance_start(offset)
        answer.low_watermark = log.log_start_offset
    except (ProtocolError, StorageError) as error:
        answer.error_code = error_code(error)
    return answer
