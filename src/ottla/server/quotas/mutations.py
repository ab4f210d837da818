"""The quota of changes: how many partitions a client may have made and deleted.

The controller counts, for all brokers: requests that are passed on to it say whose they are. Clients
that know of the quota (CreateTopics 6, DeleteTopics 5, CreatePartitions 3) get an error for each topic
and a throttle time; for older ones the request is done, and their connection muted. Topics that are made
because a client asked for their metadata are counted, too: beyond the quota they are not made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from ottla.cluster.decisions.topics import MOST_PARTITIONS_PER_REQUEST, NewTopic, TopicResult
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ProtocolError
from ottla.protocol.message import Message
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from ottla.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from ottla.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsResponse
from ottla.server.api import Answer, Outcome, Request
from ottla.server.failures import error_message
from ottla.server.quotas.usage import Quotas, is_broker, quota_client
from ottla.server.replication.changes import Client, client_of, is_forwarded
from ottla.server.security.guards.tools import Finish, Guarded, listed, then
from ottla.server.turns import Steps, emptied

if TYPE_CHECKING:
    from ottla.cluster.controller import Controller
    from ottla.server.broker import Broker

# From which version on clients understand the refusal.
STRICT: Final = {ApiKey.CREATE_TOPICS: 6, ApiKey.DELETE_TOPICS: 5, ApiKey.CREATE_PARTITIONS: 3}
_DELETED_BY_STATE: Final = 6
# Where the results are in the responses.
_RESULTS: Final = {
    ApiKey.CREATE_TOPICS: "topics",
    ApiKey.DELETE_TOPICS: "responses",
    ApiKey.CREATE_PARTITIONS: "results",
}


def limited(
    key: ApiKey, function: Callable[[Request[Any]], Answer]
) -> Callable[[Request[Any]], Answer]:
    """The handler of one of these APIs, within the quota of its client."""

    def handle(request: Request[Any]) -> Answer:
        broker, connection = request.broker, request.connection
        quotas = broker.quotas
        if quotas is None or getattr(request.message, "validate_only", False):
            return function(request)
        if broker.passes_on(connection):
            return then(function(request), _muting(key, request))
        # Anybody may call itself so: it must be a broker, too.
        forwarded = is_forwarded(connection.client_id) and is_broker(broker, connection)
        client = client_of(connection.client_id) if forwarded else quota_client(connection)
        if client is None:
            return function(request)  # what a broker wants for itself
        if request.version >= STRICT[key]:
            try:
                quotas.check_mutations(client)
            except ProtocolError as error:
                return _refusal(key, request, error, quotas.mutated(client, 0))
        # Of one that was passed on, the broker that did has the client's connection.
        mute = None if forwarded else _muting(key, request)
        return _counted(key, function, quotas, client, request, mute)

    return handle


async def created_within_quota(
    broker: Broker, controller: Controller, topics: Sequence[NewTopic], client: Client
) -> list[TopicResult]:
    """Topics that are made for a client by its asking for them; this broker is the controller."""
    quotas = broker.quotas
    assert quotas is not None
    try:
        quotas.check_mutations(client)
    except ProtocolError as error:
        return [TopicResult(each.name, error=error) for each in topics]
    # Counted before they are made, or all that a client asks for at the same time would be.
    wanted = len(topics) * broker.config.num_partitions
    quotas.mutated(client, wanted)  # a Metadata request makes no more than one of CreateTopics
    made = 0
    try:
        results = await controller.create_topics(topics)
        made = sum(
            len(each.topic.partitions)
            for each in results
            if each.error is None and each.topic is not None
        )
        return results
    finally:
        quotas.mutated(client, made - wanted)


def _muting(key: ApiKey, request: Request[Any]) -> Finish:
    """Mutes the client, if the answer says for how long and it does not understand that."""

    def finish(response: Any) -> Steps[Message]:
        if response.throttle_time_ms and request.version < STRICT[key]:
            request.connection.mute(response.throttle_time_ms / 1000)
        yield
        message: Message = response
        return message

    return finish


def _counted(
    key: ApiKey,
    function: Callable[[Request[Any]], Answer],
    quotas: Quotas,
    client: Client,
    request: Request[Any],
    mute: Finish | None,
) -> Guarded:
    """Do it, and count what was done; until that is known, what was asked for, or all that a client
    asks for at the same time would be done."""
    asked: dict[str, int] = {}
    wanted = 0
    for name, partitions in _asked(key, request):
        asked[name] = partitions
        wanted += partitions
        yield
    wanted = min(wanted, MOST_PARTITIONS_PER_REQUEST)
    quotas.mutated(client, wanted)

    def finish(response: Any) -> Steps[Message]:
        count = 0
        for each in getattr(response, _RESULTS[key]):
            if not each.error_code:
                count += asked.get(each.name, 0)
            yield
        throttle = quotas.mutated(client, count - wanted)
        if throttle:
            response.throttle_time_ms = throttle
        if mute is not None:
            yield from mute(response)
        yield from emptied(asked)
        message: Message = response
        return message

    return (yield from then(function(request), finish))


def _asked(key: ApiKey, request: Request[Any]) -> Iterator[tuple[str, int]]:
    """How many partitions the request is about, by topic."""
    message, image = request.message, request.broker.image
    if key is ApiKey.CREATE_TOPICS:
        default = request.broker.config.num_partitions
        for each in message.topics:
            wanted = each.num_partitions if each.num_partitions > 0 else default
            yield each.name, len(each.assignments) or wanted
    elif key is ApiKey.CREATE_PARTITIONS:
        for each in message.topics:
            topic = image.topics.get(each.name)
            if topic is not None:
                yield each.name, max(0, each.count - len(topic.partitions))
    else:
        for name in message.topic_names:
            if name in image.topics:
                yield name, len(image.topics[name].partitions)
        for each in message.topics if request.version >= _DELETED_BY_STATE else ():
            topic = image.topics_by_id.get(each.topic_id) or image.topics.get(each.name)
            if topic is not None:
                yield topic.name, len(topic.partitions)


def _refusal(
    key: ApiKey, request: Request[Any], error: ProtocolError, throttle: int
) -> Steps[Outcome]:
    message = request.message
    why: dict[str, Any] = {"error_code": error.code, "error_message": error_message(error)}
    if key is ApiKey.CREATE_TOPICS:
        topics = yield from listed(
            message.topics, lambda each: CreatableTopicResult(name=each.name, **why)
        )
        return CreateTopicsResponse(throttle_time_ms=throttle, topics=topics)
    if key is ApiKey.CREATE_PARTITIONS:
        results = yield from listed(
            message.topics, lambda each: CreatePartitionsTopicResult(name=each.name, **why)
        )
        return CreatePartitionsResponse(throttle_time_ms=throttle, results=results)
    if request.version >= _DELETED_BY_STATE:
        refused = yield from listed(
            message.topics,
            lambda each: DeletableTopicResult(name=each.name, topic_id=each.topic_id, **why),
        )
    else:
        refused = yield from listed(
            message.topic_names, lambda name: DeletableTopicResult(name=name, **why)
        )
    return DeleteTopicsResponse(throttle_time_ms=throttle, responses=refused)
