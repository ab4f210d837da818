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

from typing import TYPE_CHECKING, NamedTuple

from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.server.api import Answer, Outcome, Request, handles
from ottla.server.disk import time_search as times
from ottla.server.failures import error_code
from ottla.server.turns import Steps, Turns
from ottla.storage.errors import StorageError

if TYPE_CHECKING:
    from ottla.replication.partition import Partition
    from ottla.storage.segments.segments import TimedOffset

# So many partitions are dealt with at once.
AT_ONCE = 4
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
def list_offsets(request: Request[ListOffsetsRequest]) -> Answer:
    steps = _in_steps(request)
    topics = request.message.topics
    if len(topics) > 1 or sum(len(topic.partitions) for topic in topics) > AT_ONCE:
        return steps
    # What is asked for most, one partition or two, without the ceremony.
    try:
        while True:
            next(steps)
    except StopIteration as done:
        outcome: Outcome = done.value
        return outcome


def _in_steps(request: Request[ListOffsetsRequest]) -> Steps[Outcome]:
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
    if len(to_search) <= AT_ONCE:
        to_search = [each for each in to_search if not _search_at_once(request, each)]
    return _search(request, response, to_search) if to_search else response


class _Search(NamedTuple):
    topic: str
    wanted: ListOffsetsPartition
    answer: ListOffsetsPartitionResponse


def _is_searched_for(wanted: ListOffsetsPartition) -> bool:
    """Whether records have to be looked at for the answer."""
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
            if request.message.replica_id in partition.followers:
                return -1, log.log_end_offset, partition.leader_epoch
            check_settled(request, partition)
            end = partition.readable_end(request.message.isolation_level)
            return -1, end, partition.leader_epoch
        case -2 | -4:
            start = log.log_start_offset
            return -1, start, log.epochs.epoch_for_offset(start)
        case -5 | -6:
            return -1, -1, -1
    return None


def check_settled(request: Request[ListOffsetsRequest], partition: Partition) -> None:
    """ProtocolError from a new leader that does not know yet what was committed before its term: an end
    that it named might be before one that consumers have seen (KIP-207)."""
    if not partition.has_caught_up:
        raise ProtocolError(
            ErrorCode.OFFSET_NOT_AVAILABLE
            if request.version >= 5
            else ErrorCode.LEADER_NOT_AVAILABLE
        )


def _search_at_once(request: Request[ListOffsetsRequest], search: _Search) -> bool:
    """Fills in what can be found without waiting for anything; whether it could."""
    topic, wanted, answer = search
    if request.version == 0 or wanted.timestamp < 0:
        return False
    broker = request.broker
    try:
        partition = broker.leader_of(topic, wanted.partition_index, wanted.current_leader_epoch)
        check_settled(request, partition)
        found = times.offset_for_time_at_once(broker, partition.log, wanted.timestamp)
    except times.NotAtOnce:
        return False
    except (ProtocolError, StorageError, OSError) as error:
        answer.error_code = error_code(error)
        return True
    _fill_found(request, partition, answer, found)
    return True


def _fill_found(
    request: Request[ListOffsetsRequest],
    partition: Partition,
    answer: ListOffsetsPartitionResponse,
    found: TimedOffset | None,
) -> None:
    """Fill the answer with what was found; with nothing if the reader may not see it yet."""
    end = partition.readable_end(request.message.isolation_level)
    hidden = found is None or found.offset >= end
    _fill(answer, request.version, (-1, -1, -1) if hidden or found is None else found)


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
    check_settled(request, partition)
    if wanted.timestamp == MAX_TIMESTAMP:
        found = await times.offset_of_max_timestamp(broker, partition.log)
    else:
        found = await times.offset_for_time(broker, partition.log, wanted.timestamp)
    _fill_found(request, partition, answer, found)


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
