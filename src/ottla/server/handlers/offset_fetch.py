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

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from ottla.server.api import Outcome, Request, handles
from ottla.server.combined_answers import Part, gathered

_GROUPS_SINCE = 8
_TOPIC_IDS_SINCE = 10
# Until the first of these, an error stands in each partition; from the second on, -1 is no error.
_ERROR_OF_THE_WHOLE_SINCE = 2
_NO_OFFSET_IS_NO_ERROR_SINCE = 1


@handles(OffsetFetchRequest, versions=(0, 10))
def offset_fetch(request: Request[OffsetFetchRequest]) -> Outcome:
    if request.version >= _GROUPS_SINCE:
        parts = [_fetch(request, wanted) for wanted in request.message.groups]
        return gathered(
            OffsetFetchResponse,
            parts,
            lambda answers: OffsetFetchResponse(
                groups=[group for answer in answers for group in answer.groups]
            ),
        )
    wanted = _one_group(request.message)
    return gathered(
        OffsetFetchResponse,
        [_fetch(request, wanted)],
        lambda answers: _as_before(answers[0].groups[0], wanted, request.version),
    )


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
) -> OffsetFetchResponse:
    """An answer of the new form in the old one."""
    if group.error_code and version < _ERROR_OF_THE_WHOLE_SINCE:
        return OffsetFetchResponse(
            topics=[
                OffsetFetchResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetFetchResponsePartition(
                            partition_index=index, committed_offset=-1, error_code=group.error_code
                        )
                        for index in topic.partition_indexes
                    ],
                )
                for topic in wanted.topics or ()
            ]
        )
    response = OffsetFetchResponse(error_code=group.error_code)
    for topic in group.topics:
        partitions = [
            OffsetFetchResponsePartition(
                partition_index=part.partition_index,
                committed_offset=part.committed_offset,
                committed_leader_epoch=part.committed_leader_epoch,
                metadata=part.metadata,
                error_code=part.error_code,
            )
            for part in topic.partitions
        ]
        if version < _NO_OFFSET_IS_NO_ERROR_SINCE:
            for part in partitions:
                if part.committed_offset < 0 and not part.error_code:
                    part.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        response.topics.append(OffsetFetchResponseTopic(name=topic.name, partitions=partitions))
    return response
