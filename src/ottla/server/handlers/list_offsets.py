"""ListOffsets: where a partition begins and ends, and which offset belongs to a time.

- Timestamps below 0 are positions: latest (-1; the last stable offset for read_committed), earliest
  (-2), the record with the largest timestamp (-3), earliest on local disk (-4), latest in tiered
  storage (-5) and earliest not yet there (-6). There is no tiered storage, so -4 is the earliest and
  -5 and -6 are unknown (-1).
- A time is answered with the first record at or after it, or -1 if there is none below what the
  reader may see.

Versions:
  v0  a list of offsets: segment starts before a time (clients of Kafka 0.8 and 0.9)
  v1  one offset and its timestamp
  v2  isolation level, throttle time
  v4  leader epochs
  v6  flexible
  v7  largest timestamp (-3); v8 earliest local (-4); v9 latest tiered (-5); v11 pending upload (-6)
  v10 a timeout for tiered storage
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.server.api import Request, handles
from ottla.server.failures import error_code
from ottla.storage.errors import StorageError

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
# The version in which each special position first appeared.
_SINCE = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


@handles(ListOffsetsRequest, versions=(0, 11))
def list_offsets(request: Request[ListOffsetsRequest]) -> ListOffsetsResponse:
    named: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    for topic in request.message.topics:
        for wanted in topic.partitions:
            key = (topic.name, wanted.partition_index)
            (twice if key in named else named).add(key)
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    _answer(request, topic.name, wanted, twice) for wanted in topic.partitions
                ],
            )
            for topic in request.message.topics
        ]
    )


def _answer(
    request: Request[ListOffsetsRequest],
    topic: str,
    wanted: ListOffsetsPartition,
    twice: set[tuple[str, int]],
) -> ListOffsetsPartitionResponse:
    answer = ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
    try:
        if (topic, wanted.partition_index) in twice:
            raise ProtocolError(ErrorCode.INVALID_REQUEST)
        if wanted.timestamp < 0 and _SINCE.get(wanted.timestamp, 1 << 15) > request.version:
            raise ProtocolError(ErrorCode.UNSUPPORTED_VERSION)
        if request.version == 0:
            answer.old_style_offsets = _old_offsets(request, topic, wanted)
        else:
            answer.timestamp, answer.offset, epoch = _position(request, topic, wanted)
            if request.version >= 4:
                answer.leader_epoch = epoch
    except (ProtocolError, StorageError, OSError) as error:
        answer.error_code = error_code(error)
    return answer


def _position(
    request: Request[ListOffsetsRequest], topic: str, wanted: ListOffsetsPartition
) -> tuple[int, int, int]:
    """Timestamp (-1 for positions), offset and leader epoch."""
    partition = request.broker.leader_of(topic, wanted.partition_index, wanted.current_leader_epoch)
    log = partition.log
    log.check_online()
    end = partition.readable_end(request.message.isolation_level)
    match wanted.timestamp:
        case -1:
            # The epoch of a position at the end is the current leader's.
            return -1, end, partition.leader_epoch
        case -2 | -4:
            start = log.log_start_offset
            return -1, start, log.epochs.epoch_for_offset(start)
        case -3:
            found = log.offset_of_max_timestamp()
        case -5 | -6:
            return -1, -1, -1
        case timestamp:
            found = log.offset_for_time(timestamp)
    if found is None or found[1] >= end:
        return -1, -1, -1
    return found


def _old_offsets(
    request: Request[ListOffsetsRequest], topic: str, wanted: ListOffsetsPartition
) -> list[int]:
    """Starts of the segments whose records are all older than the time, newest first."""
    partition = request.broker.leader_of(topic, wanted.partition_index, -1)
    log = partition.log
    log.check_online()
    starts = [max(segment.base_offset, log.log_start_offset) for segment in log.segments]
    match wanted.timestamp:
        case -1:
            offsets = [*starts, log.high_watermark]
        case -2:
            offsets = [log.log_start_offset]
        case timestamp:
            ages = [segment.max_timestamp for segment in log.segments]
            offsets = [start for start, age in zip(starts, ages, strict=True) if age <= timestamp]
    unique = sorted(set(offsets), reverse=True)
    return unique[: max(0, wanted.max_num_offsets)]
