"""CreateTopics: new topics, by counts or by an explicit assignment of replicas.

- Each topic succeeds or fails by itself. The change is durable before it is answered.
- Counts of -1 stand for the broker's defaults (`num.partitions`, `default.replication.factor`).
- With `validate_only` everything is checked and nothing is done.

Versions:
  v1  validate only, error messages
  v2  throttle time
  v4  counts of -1 (Kafka takes them in older versions, too, and clients send them)
  v5  flexible; the answer tells the counts and the settings in force
  v7  the topic's id
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla.cluster.decisions.topics import (
    MOST_PARTITIONS_PER_REQUEST,
    USE_DEFAULT,
    NewTopic,
    TopicResult,
)
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.server.api import Request, handles
from ottla.server.failures import error_message
from ottla.server.portions import portions
from ottla.server.turns import Steps, Turns, in_turns
from ottla.storage.config import describe_topic

# A name that no topic can have.
_EXCESS = "/"


@handles(CreateTopicsRequest, versions=(0, 7))
async def create_topics(request: Request[CreateTopicsRequest]) -> CreateTopicsResponse:
    message = request.message
    wanted = await in_turns(_new_topics(message.topics))
    results: list[TopicResult] = []
    turns = Turns()
    for some in await in_turns(_portions(request, wanted)):
        await turns.pause()
        try:
            results += await request.broker.controller.create_topics(
                some, validate_only=message.validate_only
            )
        except ProtocolError as error:
            results += [TopicResult(name=topic.name, error=error) for topic in some]
    return await in_turns(_response(request, wanted, results))


def _new_topics(topics: Sequence[CreatableTopic]) -> Steps[list[NewTopic]]:
    wanted: list[NewTopic] = []
    for topic in topics:
        assignments: list[tuple[int, Sequence[int]]] = []
        for assigned in topic.assignments:
            assignments.append((assigned.partition_index, assigned.broker_ids))
            yield
        configs: dict[str, str | None] = {}
        for config in topic.configs:
            configs[config.name] = config.value
            yield
        wanted.append(
            NewTopic(
                topic.name, topic.num_partitions, topic.replication_factor, assignments, configs
            )
        )
        yield
    return wanted


def _portions(
    request: Request[CreateTopicsRequest], wanted: list[NewTopic]
) -> Steps[list[Sequence[NewTopic]]]:
    """How the topics go to the controller: all of them together if they want too many partitions,
    which it finds out before it looks at them."""
    found = yield from portions(wanted, lambda topic: topic.name)
    if len(found) > 1:
        default = request.broker.config.num_partitions
        total = 0
        for topic in wanted:
            total += _partitions_of(topic, default)
            yield
        if total > MOST_PARTITIONS_PER_REQUEST:
            # Each portion has to be refused for what is wrong with the whole.
            excess = NewTopic(_EXCESS, MOST_PARTITIONS_PER_REQUEST + 1)
            return [[*some, excess] for some in found]
    return found


def _partitions_of(topic: NewTopic, default: int) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return default if topic.partitions == USE_DEFAULT else max(topic.partitions, 0)


def _response(
    request: Request[CreateTopicsRequest],
    wanted: list[NewTopic],
    results: list[TopicResult],
) -> Steps[CreateTopicsResponse]:
    overrides: dict[str, Mapping[str, str | None]] = {}
    for topic in wanted:
        overrides[topic.name] = topic.configs
        yield
    response = CreateTopicsResponse()
    # Most topics of a request have the same settings.
    described: dict[frozenset[tuple[str, str | None]], list[CreatableTopicConfigs]] = {}
    for result in results:
        if result.name == _EXCESS:
            continue
        given = overrides.get(result.name or "", {})
        answer = _answer(result)
        if not answer.error_code and request.version >= 5:
            key = frozenset(given.items())
            if key not in described:
                described[key] = _described(request, given)
            answer.configs = described[key]
        response.topics.append(answer)
        yield
    return response


def _answer(result: TopicResult) -> CreatableTopicResult:
    name = result.name or ""
    if result.error is not None:
        return CreatableTopicResult(
            name=name,
            error_code=result.error.code,
            error_message=error_message(result.error),
            configs=None,
        )
    answer = CreatableTopicResult(name=name, topic_id=result.topic_id, error_message=None)
    if result.topic is not None:
        answer.num_partitions = len(result.topic.partitions)
        answer.replication_factor = result.topic.replication_factor
    answer.error_code = ErrorCode.NONE
    return answer


def _described(
    request: Request[CreateTopicsRequest], overrides: Mapping[str, str | None]
) -> list[CreatableTopicConfigs]:
    given = {key: value for key, value in overrides.items() if value is not None}
    return [
        CreatableTopicConfigs(
            name=each.name,
            value=each.value,
            read_only=each.read_only,
            config_source=each.source,
            is_sensitive=each.sensitive,
        )
        for each in describe_topic(given, request.broker.config.layers)
    ]
