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

from collections.abc import Hashable, Iterable, Sequence

from ottla.cluster.decisions.topics import DeadTopic, TopicResult
from ottla.cluster.metadata import Topic
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from ottla.server.api import Request, handles
from ottla.server.failures import error_message
from ottla.server.portions import one_by_one, portions
from ottla.server.turns import Steps, Turns, in_turns

# From which version on topics are named one way or the other.
_BY_STATE = 6


@handles(DeleteTopicsRequest, versions=(0, 6), by_controller=True)
async def delete_topics(request: Request[DeleteTopicsRequest]) -> DeleteTopicsResponse:
    broker = request.broker
    response = DeleteTopicsResponse()
    turns = Turns()
    for some in one_by_one(await in_turns(_portions(request))):
        doomed = [_dead_topic(each) for each in some]
        try:
            if not broker.config.delete_topic_enable:
                # Before v3 there was no code for it.
                raise ProtocolError(
                    ErrorCode.TOPIC_DELETION_DISABLED
                    if request.version >= 3
                    else ErrorCode.INVALID_REQUEST
                )
            results = await broker.controller.delete_topics(doomed)
        except ProtocolError as error:
            refusal = error.with_traceback(None)
            results = [TopicResult(each.name, each.topic_id, refusal) for each in doomed]
        _answer(results, response)
        # What was deleted is gone when that is said, also for one who starts the broker anew.
        await broker.doomed_logs.all_gone()
        await turns.pause()
    return response


def _dead_topic(wanted: str | DeleteTopicState) -> DeadTopic:
    if isinstance(wanted, str):
        return DeadTopic(wanted)
    return DeadTopic(wanted.name, wanted.topic_id)


def _portions(
    request: Request[DeleteTopicsRequest],
) -> Steps[list[Sequence[str | DeleteTopicState]]]:
    message, image = request.message, request.broker.image

    def known(wanted: str | DeleteTopicState) -> Topic | None:
        if isinstance(wanted, str):
            return image.topics.get(wanted)
        if wanted.name is not None:
            return image.topics.get(wanted.name)
        return image.topics_by_id.get(wanted.topic_id)

    def same(wanted: str | DeleteTopicState) -> Hashable:
        return wanted if isinstance(wanted, str) else (wanted.name, wanted.topic_id)

    def together(wanted: str | DeleteTopicState) -> Hashable:
        """The key of a topic, whether it is named or given by its id."""
        topic = known(wanted)
        return same(wanted) if topic is None else topic.topic_id

    def weight(wanted: str | DeleteTopicState) -> int:
        topic = known(wanted)
        return 1 if topic is None else len(topic.partitions)

    asked: Sequence[str | DeleteTopicState] = message.topic_names
    if request.version >= _BY_STATE:
        asked = message.topics
    return (yield from portions(asked, same, together, weight))


def _answer(results: Iterable[TopicResult], response: DeleteTopicsResponse) -> None:
    for each in results:
        response.responses.append(
            DeletableTopicResult(
                name=each.name,
                topic_id=each.topic_id,
                error_code=ErrorCode.NONE if each.error is None else each.error.code,
                error_message=error_message(each.error),
            )
        )
