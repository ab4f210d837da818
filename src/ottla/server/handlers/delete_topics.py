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

from ottla.cluster.decisions.topics import DeadTopic, TopicResult
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from ottla.server.api import Request, handles
from ottla.server.failures import error_message


@handles(DeleteTopicsRequest, versions=(0, 6), by_controller=True)
async def delete_topics(request: Request[DeleteTopicsRequest]) -> DeleteTopicsResponse:
    message = request.message
    if request.version >= 6:
        wanted = [DeadTopic(each.name, each.topic_id) for each in message.topics]
    else:
        wanted = [DeadTopic(name) for name in message.topic_names]
    try:
        if not request.broker.config.delete_topic_enable:
            # Before v3 there was no code for it.
            raise ProtocolError(
                ErrorCode.TOPIC_DELETION_DISABLED
                if request.version >= 3
                else ErrorCode.INVALID_REQUEST
            )
        results = await request.broker.controller.delete_topics(wanted)
    except ProtocolError as error:
        results = [TopicResult(each.name, each.topic_id, error) for each in wanted]
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(
                name=each.name,
                topic_id=each.topic_id,
                error_code=ErrorCode.NONE if each.error is None else each.error.code,
                error_message=error_message(each.error),
            )
            for each in results
        ]
    )
