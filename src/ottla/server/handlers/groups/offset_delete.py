"""OffsetDelete: forget a group's offsets of some partitions.

- Not of topics that the group subscribes to; and of a group with members that are no consumers,
  nothing at all.
- Very many are forgotten in portions, as if each portion were a request.

Versions: only v0
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ottla.server.api import Answer, Request, handles
from ottla.server.coordination.reduced_topics import ReducedTopics, is_long
from ottla.server.turns import Steps, in_turns


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


async def _delete_many(request: Request[OffsetDeleteRequest]) -> Message:
    by_name = request.broker.partitions.by_name
    reduced = ReducedTopics(
        request.message.topics, lambda topic: (topic.name, len(by_name.get(topic.name, ())))
    )
    await in_turns(reduced.reduce())
    portions = await in_turns(
        reduced.portions(
            lambda topic, partitions: OffsetDeleteRequestTopic(
                name=topic.name, partitions=partitions
            )
        )
    )
    answers: list[Message] = []
    for topics in portions:
        message = OffsetDeleteRequest(group_id=request.message.group_id, topics=topics)
        answer = _delete(request, message)
        answers.append(answer if isinstance(answer, Message) else await answer)
        await asyncio.sleep(0)  # the loop's turn
    return await in_turns(_whole(reduced, answers))


def _whole(
    reduced: ReducedTopics[OffsetDeleteRequestTopic], answers: Sequence[Message]
) -> Steps[Message]:
    answered: list[OffsetDeleteResponseTopic] = []
    for answer in answers:
        assert isinstance(answer, OffsetDeleteResponse)
        if answer.error_code != ErrorCode.NONE:
            return answer
        answered += answer.topics
        yield
    topics = yield from reduced.whole(
        answered,
        lambda asked: OffsetDeleteResponseTopic(name=asked.name),
        OffsetDeleteResponsePartition,
    )
    return OffsetDeleteResponse(topics=topics)
