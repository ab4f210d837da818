"""OffsetForLeaderEpoch: where the records of a leader epoch end.

A consumer that comes back after a change of leader asks where the epoch it last read from ended; an
end before its position means that records it has seen were cut off.

Versions:
  v1  the epoch that the end belongs to
  v2  the reader's own knowledge of the current epoch, throttle time
  v3  the replica's id
  v4  flexible
"""

from __future__ import annotations

from ottla.protocol.errors import ProtocolError
from ottla.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from ottla.server.api import Outcome, Request, handles
from ottla.server.failures import error_code
from ottla.server.turns import Steps
from ottla.storage.errors import StorageError


@handles(OffsetForLeaderEpochRequest, versions=(0, 4))
def offset_for_leader_epoch(
    request: Request[OffsetForLeaderEpochRequest],
) -> Steps[Outcome]:
    response = OffsetForLeaderEpochResponse()
    for topic in request.message.topics:
        answers = OffsetForLeaderTopicResult(topic=topic.topic)
        response.topics.append(answers)
        for wanted in topic.partitions:
            answers.partitions.append(_answer(request, topic.topic, wanted))
            yield
        yield
    return response


def _answer(
    request: Request[OffsetForLeaderEpochRequest], topic: str, wanted: OffsetForLeaderPartition
) -> EpochEndOffset:
    answer = EpochEndOffset(partition=wanted.partition)
    try:
        partition = request.broker.leader_of(topic, wanted.partition, wanted.current_leader_epoch)
        if wanted.leader_epoch == partition.leader_epoch:
            # The running epoch ends where readers may read to; for replicas, where the log does.
            log = partition.log
            answer.leader_epoch = partition.leader_epoch
            is_replica = request.message.replica_id in partition.followers
            answer.end_offset = log.log_end_offset if is_replica else log.high_watermark
        else:
            answer.leader_epoch, answer.end_offset = partition.end_offset_for_epoch(
                wanted.leader_epoch
            )
    except (ProtocolError, StorageError) as error:
        answer.error_code = error_code(error)
    return answer
