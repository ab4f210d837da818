"""The quota of changes: how many partitions a client may have made and deleted.

It is checked at the broker that a client talks to, before the request is passed on to the controller.
Clients that know of it (CreateTopics 6, DeleteTopics 5, CreatePartitions 3) get an error for each topic
and a throttle time; for older ones the request is done, and their connection muted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ProtocolError
from ottla.protocol.message import Message
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from ottla.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from ottla.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsResponse
from ottla.server.api import Answer, Request
from ottla.server.failures import error_message
from ottla.server.quotas import is_broker
from ottla.server.replication.changes import is_forwarded
from ottla.server.security.guards.tools import then

# From which version on clients understand the refusal.
STRICT: Final = {ApiKey.CREATE_TOPICS: 6, ApiKey.DELETE_TOPICS: 5, ApiKey.CREATE_PARTITIONS: 3}
_DELETED_BY_STATE: Final = 6


def limited(
    key: ApiKey, function: Callable[[Request[Any]], Answer]
) -> Callable[[Request[Any]], Answer]:
    """The handler of one of these APIs, within the quota of its client."""

    def handle(request: Request[Any]) -> Answer:
        quotas, connection = request.broker.quotas, request.connection
        if (
            quotas is None
            or (is_forwarded(connection.client_id) and is_broker(request.broker, connection))
            or getattr(request.message, "validate_only", False)
        ):
            return function(request)
        asked = _asked(key, request)
        if request.version >= STRICT[key]:
            try:
                quotas.check_mutations(connection)
            except ProtocolError as error:
                return _refusal(key, request, error, quotas.mutated(connection, 0))

        def finish(response: Any) -> Message:
            count = sum(asked.get(name, 0) for name in _done(key, response))
            throttle = quotas.mutated(connection, count)
            if throttle:
                response.throttle_time_ms = throttle
                if request.version < STRICT[key]:
                    connection.mute(throttle / 1000)
            message: Message = response
            return message

        return then(function(request), finish)

    return handle


def _asked(key: ApiKey, request: Request[Any]) -> dict[str, int]:
    """How many partitions the request is about, by topic."""
    message, image = request.message, request.broker.image
    if key is ApiKey.CREATE_TOPICS:
        default = request.broker.config.num_partitions
        return {
            each.name: len(each.assignments)
            or (each.num_partitions if each.num_partitions > 0 else default)
            for each in message.topics
        }
    if key is ApiKey.CREATE_PARTITIONS:
        return {
            each.name: max(0, each.count - len(image.topics[each.name].partitions))
            for each in message.topics
            if each.name in image.topics
        }
    names = list(message.topic_names)
    if request.version >= _DELETED_BY_STATE:
        for each in message.topics:
            topic = image.topics_by_id.get(each.topic_id)
            names.append(each.name if topic is None else topic.name)
    return {name: len(image.topics[name].partitions) for name in names if name in image.topics}


def _done(key: ApiKey, response: Any) -> list[str]:
    """The topics of a response for which it was done."""
    results = {
        ApiKey.CREATE_TOPICS: "topics",
        ApiKey.DELETE_TOPICS: "responses",
        ApiKey.CREATE_PARTITIONS: "results",
    }[key]
    return [each.name for each in getattr(response, results) if not each.error_code]


def _refusal(key: ApiKey, request: Request[Any], error: ProtocolError, throttle: int) -> Message:
    message = request.message
    why: dict[str, Any] = {"error_code": error.code, "error_message": error_message(error)}
    if key is ApiKey.CREATE_TOPICS:
        return CreateTopicsResponse(
            throttle_time_ms=throttle,
            topics=[CreatableTopicResult(name=each.name, **why) for each in message.topics],
        )
    if key is ApiKey.CREATE_PARTITIONS:
        return CreatePartitionsResponse(
            throttle_time_ms=throttle,
            results=[CreatePartitionsTopicResult(name=each.name, **why) for each in message.topics],
        )
    if request.version >= _DELETED_BY_STATE:
        refused = [
            DeletableTopicResult(name=each.name, topic_id=each.topic_id, **why)
            for each in message.topics
        ]
    else:
        refused = [DeletableTopicResult(name=name, **why) for name in message.topic_names]
    return DeleteTopicsResponse(throttle_time_ms=throttle, responses=refused)
