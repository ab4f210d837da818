"""OffsetDelete: forget a group's offsets of some partitions.

- Not of topics that the group subscribes to; and of a group with members that are no consumers,
  nothing at all.

Versions: only v0
"""

from __future__ import annotations

import asyncio
from functools import partial

from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ottla.server.api import Answer, Outcome, Request, handles
from ottla.server.coordination.reduced_topics import ReducedTopics, completed, is_long
from ottla.server.turns import Steps


@handles(OffsetDeleteRequest, versions=(0, 0))
def offset_delete(request: Request[OffsetDeleteRequest]) -> Answer:
    message = request.message
    return _delete_many(request) if is_long(message.topics) else _delete(request, message)


def _delete(
    request: Request[OffsetDeleteRequest], message: OffsetDeleteRequest
) -> Message | asyncio.Future[Message]:
    return request.broker.groups.submit(
        message.group_id,
        lambda shard, ticket, now: shard.offset_delete(ticket, message, now),
        lambda code: OffsetDeleteResponse(error_code=code),
    )


def _delete_many(request: Request[OffsetDeleteRequest]) -> Steps[Outcome]:
    by_name = request.broker.partitions.by_name
    reduced = ReducedTopics(
        request.message.topics, lambda topic: (topic.name, len(by_name.get(topic.name, ())))
    )
    yield from reduced.reduce()
    message = OffsetDeleteRequest(
        group_id=request.message.group_id,
        topics=reduced.topics(
            lambda topic, partitions: OffsetDeleteRequestTopic(
                name=topic.name, partitions=partitions
            )
        ),
    )
    return (yield from completed(_delete(request, message), partial(_whole, reduced)))


def _whole(reduced: ReducedTopics[OffsetDeleteRequestTopic], answer: Message) -> Steps[Message]:
    assert isinstance(answer, OffsetDeleteResponse)
    if answer.error_code != ErrorCode.NONE:
        return answer
    topics = yield from reduced.whole(
        answer.topics,
        lambda asked: OffsetDeleteResponseTopic(name=asked.name),
        OffsetDeleteResponsePartition,
    )
    return OffsetDeleteResponse(topics=topics)
