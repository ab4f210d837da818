"""DeleteTopics: topics go, with their records and their configuration.

- The folders are renamed at once and removed in the background, so a new topic of the same name may
  follow immediately.
- `delete.topic.enable=false` refuses.

Versions:
  v1  throttle time
  v3  TOPIC_DELETION_DISABLED
  v4  flexible
  v5  error messages
  v6  topics by id as well as by name
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.cluster.decisions.topics import DeadTopic, TopicResult
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from ottla.server.api import Request, handles
from ottla.server.failures import error_message
from ottla.server.portions import portions
from ottla.server.turns import Steps, Turns, in_turns


@handles(DeleteTopicsRequest, versions=(0, 6))
async def delete_topics(request: Request[DeleteTopicsRequest]) -> DeleteTopicsResponse:
    results: list[TopicResult] = []
    turns = Turns()
    for some in await in_turns(_portions(request)):
        await turns.pause()
        try:
            if not request.broker.config.delete_topic_enable:
                # Before v3 there was no code for it.
                raise ProtocolError(
                    ErrorCode.TOPIC_DELETION_DISABLED
                    if request.version >= 3
                    else ErrorCode.INVALID_REQUEST
                )
            results += await request.broker.controller.delete_topics(some)
        except ProtocolError as error:
            results += [TopicResult(each.name, each.topic_id, error) for each in some]
    return await in_turns(_response(results))


def _portions(request: Request[DeleteTopicsRequest]) -> Steps[list[Sequence[DeadTopic]]]:
    message, image = request.message, request.broker.image
    wanted: list[DeadTopic] = []
    if request.version >= 6:
        for each in message.topics:
            wanted.append(DeadTopic(each.name, each.topic_id))
            yield
    else:
        for name in message.topic_names:
            wanted.append(DeadTopic(name))
            yield

    def topic_of(dead: DeadTopic) -> str | bytes:
        """By name and by id it is the same topic."""
        topic = image.topics.get(dead.name) if dead.name is not None else None
        return topic.topic_id if topic is not None else dead.name or dead.topic_id

    return (yield from portions(wanted, lambda dead: (dead.name, dead.topic_id), topic_of))


def _response(results: list[TopicResult]) -> Steps[DeleteTopicsResponse]:
    response = DeleteTopicsResponse()
    for each in results:
        response.responses.append(
            DeletableTopicResult(
                name=each.name,
                topic_id=each.topic_id,
                error_code=ErrorCode.NONE if each.error is None else each.error.code,
                error_message=error_message(each.error),
            )
        )
        yield
    return response
