"""OffsetCommit: store how far a group has read.

- A member names its generation (or epoch); a consumer that is in no group leaves it out, and may
  commit as long as the group has no members. Its first commit makes the group.
- Each partition has an answer of its own: topics and partitions must exist, and the metadata string is
  limited by `offset.metadata.max.bytes`.
- All offsets of a request are written as one batch, with those of other requests to the same shard
  that arrive at the same moment.

Versions:
  v0  no generation (Kafka stored these in ZooKeeper; here they are commits like any other)
  v1  generation and member id; a timestamp for each partition (gone in v2)
  v2  a retention time (gone in v5)
  v3  throttle time
  v6  leader epochs
  v7  group.instance.id
  v8  flexible
  v9  member epochs of consumer groups; GROUP_ID_NOT_FOUND
  v10 topics by id
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.server.api import Later, Request, handles


@handles(OffsetCommitRequest, versions=(0, 10))
def offset_commit(request: Request[OffsetCommitRequest]) -> Message | Later:
    message, version = request.message, request.version
    return request.broker.groups.submit_gathered(
        message.group_id,
        lambda shard, ticket, now: shard.offset_commit(ticket, message, now, version),
        lambda code: _refused(message, code),
    )


def _refused(message: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=each.partition_index, error_code=code
                    )
                    for each in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )
