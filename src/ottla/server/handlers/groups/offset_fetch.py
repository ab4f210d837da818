"""OffsetFetch: how far groups have read.

- A partition without an offset is answered with -1, and so is a group that does not exist.
- With "require stable", an offset that an open transaction may change is UNSTABLE_OFFSET_COMMIT: the
  client asks again.

Versions:
  v0  a partition without an offset is UNKNOWN_TOPIC_OR_PARTITION, as it was with ZooKeeper
  v1  -1 instead
  v2  null asks for all topics; an error of the whole
  v3  throttle time
  v5  leader epochs
  v6  flexible
  v7  require stable
  v8  several groups
  v9  member id and epoch of consumer groups
  v10 topics by id
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from ottla.server.api import Outcome, Request, handles
from ottla.server.combined_answers import Part
from ottla.server.turns import Steps, in_turns

_GROUPS_SINCE = 8
_TOPIC_IDS_SINCE = 10
# Until the first of these, an error stands in each partition; from the second on, -1 is no error.
_ERROR_OF_THE_WHOLE_SINCE = 2
_NO_OFFSET_IS_NO_ERROR_SINCE = 1
# Partitions that are looked up before the loop may have its turn.
PARTITIONS_AT_ONCE = 25


@handles(OffsetFetchRequest, versions=(0, 10))
def offset_fetch(request: Request[OffsetFetchRequest]) -> Steps[Outcome]:
    if request.version >= _GROUPS_SINCE:
        wanted = request.message.groups
    else:
        wanted = [_one_group(request.message)]
    # Each group with the parts of what is wanted of it.
    asked: list[tuple[OffsetFetchRequestGroup, list[Part]]] = []
    is_ready = True
    for group in wanted:
        parts: list[Part] = []
        asked.append((group, parts))
        for portion in _portions(group):
            part = _fetch(request, portion)
            is_ready = is_ready and isinstance(part, Message)
            parts.append(part)
            yield
    if not is_ready:
        return _await(request, asked)
    return (yield from _response(request, asked))


def _portions(wanted: OffsetFetchRequestGroup) -> Iterator[OffsetFetchRequestGroup]:
    """Requests for some partitions each, for the group's shard answers in one go."""
    if wanted.topics is None or not wanted.topics:
        yield wanted
        return

    def of(topics: list[OffsetFetchRequestTopics]) -> OffsetFetchRequestGroup:
        return OffsetFetchRequestGroup(
            group_id=wanted.group_id,
            member_id=wanted.member_id,
            member_epoch=wanted.member_epoch,
            topics=topics,
        )

    topics: list[OffsetFetchRequestTopics] = []
    size = 0
    for topic in wanted.topics:
        indexes = topic.partition_indexes
        for first in range(0, max(1, len(indexes)), PARTITIONS_AT_ONCE):
            some = indexes[first : first + PARTITIONS_AT_ONCE]
            topics.append(
                OffsetFetchRequestTopics(
                    name=topic.name, topic_id=topic.topic_id, partition_indexes=some
                )
            )
            size += 1 + len(some)
            if size >= PARTITIONS_AT_ONCE:
                yield of(topics)
                topics, size = [], 0
    if topics:
        yield of(topics)


async def _await(
    request: Request[OffsetFetchRequest], asked: list[tuple[OffsetFetchRequestGroup, list[Part]]]
) -> Message:
    for _, parts in asked:
        for at, part in enumerate(parts):
            if not isinstance(part, Message):
                parts[at] = await part
    return await in_turns(_response(request, asked))


def _response(
    request: Request[OffsetFetchRequest], asked: list[tuple[OffsetFetchRequestGroup, list[Part]]]
) -> Steps[OffsetFetchResponse]:
    response = OffsetFetchResponse()
    for wanted, parts in asked:
        group = OffsetFetchResponseGroup(group_id=wanted.group_id)
        for part in parts:
            assert isinstance(part, OffsetFetchResponse)
            (answer,) = part.groups
            if answer.error_code:
                group = answer
                break
            _join(group.topics, answer.topics)
            yield
        if request.version < _GROUPS_SINCE:
            return (yield from _as_before(group, wanted, request.version))
        response.groups.append(group)
    return response


def _join(topics: list[OffsetFetchResponseTopics], others: list[OffsetFetchResponseTopics]) -> None:
    """Add the topics of a portion; one that a portion ended in goes on."""
    if topics and others and len(topics[-1].partitions) >= PARTITIONS_AT_ONCE:
        last, first = topics[-1], others[0]
        if (last.name, last.topic_id) == (first.name, first.topic_id):
            last.partitions += first.partitions
            others = others[1:]
    topics += others


def _fetch(request: Request[OffsetFetchRequest], wanted: OffsetFetchRequestGroup) -> Part:
    require_stable = request.message.require_stable
    by_id = request.version >= _TOPIC_IDS_SINCE
    return request.broker.groups.submit(
        wanted.group_id,
        lambda shard, ticket, now: shard.offset_fetch(
            ticket, wanted, now, require_stable=require_stable, by_id=by_id
        ),
        lambda code: OffsetFetchResponse(
            groups=[OffsetFetchResponseGroup(group_id=wanted.group_id, error_code=code)]
        ),
    )


def _one_group(message: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    """A request of the old form in the new one."""
    topics = None
    if message.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in message.topics
        ]
    return OffsetFetchRequestGroup(group_id=message.group_id, topics=topics)


def _as_before(
    group: OffsetFetchResponseGroup, wanted: OffsetFetchRequestGroup, version: int
) -> Steps[OffsetFetchResponse]:
    """An answer of the new form in the old one."""
    if group.error_code and version < _ERROR_OF_THE_WHOLE_SINCE:
        response = OffsetFetchResponse()
        for topic in wanted.topics or ():
            refused = OffsetFetchResponseTopic(name=topic.name)
            response.topics.append(refused)
            for index in topic.partition_indexes:
                refused.partitions.append(
                    OffsetFetchResponsePartition(
                        partition_index=index, committed_offset=-1, error_code=group.error_code
                    )
                )
                yield
        return response
    response = OffsetFetchResponse(error_code=group.error_code)
    for answer in group.topics:
        before = OffsetFetchResponseTopic(name=answer.name)
        response.topics.append(before)
        for part in answer.partitions:
            code = part.error_code
            if version < _NO_OFFSET_IS_NO_ERROR_SINCE and part.committed_offset < 0 and not code:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            before.partitions.append(
                OffsetFetchResponsePartition(
                    partition_index=part.partition_index,
                    committed_offset=part.committed_offset,
                    committed_leader_epoch=part.committed_leader_epoch,
                    metadata=part.metadata,
                    error_code=code,
                )
            )
            yield
    return response
