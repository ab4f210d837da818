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
from ottla.server.portions import one_by_one, portions
from ottla.server.turns import Steps, Turns, in_turns
from ottla.storage.config import describe_topic

# A name that no topic can have.
_EXCESS = "/"


@handles(CreateTopicsRequest, versions=(0, 7), by_controller=True)
async def create_topics(request: Request[CreateTopicsRequest]) -> CreateTopicsResponse:
    response = CreateTopicsResponse()
    # Most topics of a request have the same settings.
    described: dict[frozenset[tuple[str, str | None]], list[CreatableTopicConfigs]] = {}
    found, is_excessive = await in_turns(_portions(request))
    turns = Turns()
    for some in one_by_one(found):
        wanted = await in_turns(_new_topics(some))
        if is_excessive:
            # Each portion has to be refused for what is wrong with the whole.
            wanted.append(NewTopic(_EXCESS, MOST_PARTITIONS_PER_REQUEST + 1))
        try:
            results = await request.broker.controller.create_topics(
                wanted, validate_only=request.message.validate_only
            )
        except ProtocolError as error:
            refusal = error.with_traceback(None)
            results = [TopicResult(name=topic.name, error=refusal) for topic in wanted]
        await in_turns(_answer_all(request, wanted, results, described, response))
        await turns.pause()
    return response


def _portions(
    request: Request[CreateTopicsRequest],
) -> Steps[tuple[list[Sequence[CreatableTopic]], bool]]:
    """How the topics go to the controller, and whether they want too many partitions in all, which it
    finds out before it looks at them."""
    default = request.broker.config.num_partitions
    asked = request.message.topics

    def weight(topic: CreatableTopic) -> int:
        return _partitions_of(topic, default)

    found = yield from portions(asked, lambda topic: topic.name, weight=weight)
    if len(found) == 1:
        return found, False
    total = 0
    for topic in asked:
        total += weight(topic)
        yield
    return found, total > MOST_PARTITIONS_PER_REQUEST


def _partitions_of(topic: CreatableTopic, default: int) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return default if topic.num_partitions == USE_DEFAULT else max(topic.num_partitions, 0)


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


def _answer_all(
    request: Request[CreateTopicsRequest],
    wanted: list[NewTopic],
    results: list[TopicResult],
    described: dict[frozenset[tuple[str, str | None]], list[CreatableTopicConfigs]],
    response: CreateTopicsResponse,
) -> Steps[None]:
    overrides = {topic.name: topic.configs for topic in wanted}
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
