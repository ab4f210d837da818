"""ListOffsets: where a partition begins and ends, and which offset belongs to a time.

- Timestamps below 0 are positions: latest (-1; the last stable offset for read_committed), earliest
  (-2), the record with the largest timestamp (-3), earliest on local disk (-4), latest in tiered
  storage (-5) and earliest not yet there (-6). There is no tiered storage, so -4 is the earliest and
  -5 and -6 are unknown (-1).
- A time is answered with the first record at or after it, or -1 if there is none below what the
  reader may see.
- A partition that is named twice is INVALID_REQUEST, answered once.

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

from typing import NamedTuple

from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.server.api import Outcome, Request, handles
from ottla.server.disk import time_search as times
from ottla.server.failures import error_code
from ottla.server.turns import Steps, Turns
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
def list_offsets(request: Request[ListOffsetsRequest]) -> Steps[Outcome]:
    named: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    for topic in request.message.topics:
        for wanted in topic.partitions:
            key = (topic.name, wanted.partition_index)
            (twice if key in named else named).add(key)
            yield
    topics: dict[str, ListOffsetsTopicResponse] = {}
    to_search: list[_Search] = []
    for topic in request.message.topics:
        answers = topics.get(topic.name)
        if answers is None:
            answers = topics[topic.name] = ListOffsetsTopicResponse(name=topic.name)
        for wanted in topic.partitions:
            key = (topic.name, wanted.partition_index)
            if key in named:
                named.discard(key)
                answer = _answer(request, topic.name, wanted, key in twice)
                answers.partitions.append(answer)
                if not answer.error_code and _is_searched_for(wanted):
                    to_search.append(_Search(topic.name, wanted, answer))
            yield
        yield
    response = ListOffsetsResponse(topics=list(topics.values()))
    return _search(request, response, to_search) if to_search else response


class _Search(NamedTuple):
    topic: str
    wanted: ListOffsetsPartition
    answer: ListOffsetsPartitionResponse


def _is_searched_for(wanted: ListOffsetsPartition) -> bool:
    """Records have to be looked at."""
    return wanted.timestamp >= 0 or wanted.timestamp == MAX_TIMESTAMP


def _answer(
    request: Request[ListOffsetsRequest],
    topic: str,
    wanted: ListOffsetsPartition,
    is_named_twice: bool,
) -> ListOffsetsPartitionResponse:
    """The answer if no record has to be read for it, or the error."""
    answer = ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
    try:
        if is_named_twice:
            raise ProtocolError(ErrorCode.INVALID_REQUEST)
        if wanted.timestamp < 0 and _SINCE.get(wanted.timestamp, 1 << 15) > request.version:
            raise ProtocolError(ErrorCode.UNSUPPORTED_VERSION)
        if request.version == 0:
            if wanted.timestamp < 0:
                answer.old_style_offsets = _old_offsets(request, topic, wanted)
        else:
            position = _position(request, topic, wanted)
            if position is not None:
                _fill(answer, request.version, position)
    except (ProtocolError, StorageError, OSError) as error:
        answer.error_code = error_code(error)
    return answer


def _fill(
    answer: ListOffsetsPartitionResponse, version: int, position: tuple[int, int, int]
) -> None:
    answer.timestamp, answer.offset, epoch = position
    if version >= 4:
        answer.leader_epoch = epoch


def _position(
    request: Request[ListOffsetsRequest], topic: str, wanted: ListOffsetsPartition
) -> tuple[int, int, int] | None:
    """Timestamp (-1 for positions), offset and leader epoch; None if it has to be searched for."""
    partition = request.broker.leader_of(topic, wanted.partition_index, wanted.current_leader_epoch)
    log = partition.log
    log.check_online()
    match wanted.timestamp:
        case -1:
            # The epoch of a position at the end is the current leader's.
            end = partition.readable_end(request.message.isolation_level)
            return -1, end, partition.leader_epoch
        case -2 | -4:
            start = log.log_start_offset
            return -1, start, log.epochs.epoch_for_offset(start)
        case -5 | -6:
            return -1, -1, -1
    return None


async def _search(
    request: Request[ListOffsetsRequest], response: ListOffsetsResponse, searches: list[_Search]
) -> ListOffsetsResponse:
    """Fills in what takes a look at records, one partition after the other."""
    turns = Turns()
    for topic, wanted, answer in searches:
        await turns.pause()
        try:
            await _search_one(request, topic, wanted, answer)
        except (ProtocolError, StorageError, OSError) as error:
            answer.error_code = error_code(error)
    return response


async def _search_one(
    request: Request[ListOffsetsRequest],
    topic: str,
    wanted: ListOffsetsPartition,
    answer: ListOffsetsPartitionResponse,
) -> None:
    broker = request.broker
    partition = broker.leader_of(topic, wanted.partition_index, wanted.current_leader_epoch)
    if request.version == 0:
        await times.load(broker, partition.log)
        answer.old_style_offsets = _old_offsets(request, topic, wanted)
        return
    end = partition.readable_end(request.message.isolation_level)
    if wanted.timestamp == MAX_TIMESTAMP:
        found = await times.offset_of_max_timestamp(broker, partition.log)
    else:
        found = await times.offset_for_time(broker, partition.log, wanted.timestamp)
    hidden = found is None or found.offset >= end
    _fill(answer, request.version, (-1, -1, -1) if hidden or found is None else found)


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
