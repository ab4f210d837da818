"""CreateTopics: new topics, by counts or by an explicit assignment of replicas.

- Each topic succeeds or fails by itself. The change is durable before it is answered.
- Counts of -1 stand for the broker's defaults (`num.partitions`, `default.replication.factor`).
- With `validate_only` everything is checked and nothing is done.

Versions:
  v1  validate only, error messages
  v2  throttle time
  v4  counts of -1
  v5  flexible; the answer tells the counts and the settings in force
  v7  the topic's id
"""

from __future__ import annotations

from ottla.cluster.decisions.topics import NewTopic, TopicResult
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
from ottla.storage.config import describe_topic


@handles(CreateTopicsRequest, versions=(0, 7), by_controller=True)
async def create_topics(request: Request[CreateTopicsRequest]) -> CreateTopicsResponse:
    message = request.message
    wanted = [_new_topic(topic, request.version) for topic in message.topics]
    try:
        results = await request.broker.controller.create_topics(
            wanted, validate_only=message.validate_only
        )
    except ProtocolError as error:
        results = [TopicResult(name=topic.name, error=error) for topic in message.topics]
    overrides = {topic.name: topic.configs for topic in wanted}
    return CreateTopicsResponse(
        topics=[_answer(request, each, overrides.get(each.name or "", {})) for each in results]
    )


def _new_topic(topic: CreatableTopic, version: int) -> NewTopic:
    partitions, factor = topic.num_partitions, topic.replication_factor
    if version < 4 and not topic.assignments:
        # Older versions had no way to ask for the defaults: -1 is a mistake there.
        partitions = 0 if partitions < 0 else partitions
        factor = 0 if factor < 0 else factor
    return NewTopic(
        name=topic.name,
        partitions=partitions,
        replication_factor=factor,
        assignments=[(each.partition_index, each.broker_ids) for each in topic.assignments],
        configs={each.name: each.value for each in topic.configs},
    )


def _answer(
    request: Request[CreateTopicsRequest],
    result: TopicResult,
    overrides: dict[str, str | None] | object,
) -> CreatableTopicResult:
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
    if request.version >= 5:
        assert isinstance(overrides, dict)
        given = {key: value for key, value in overrides.items() if value is not None}
        answer.configs = [
            CreatableTopicConfigs(
                name=each.name,
                value=each.value,
                read_only=each.read_only,
                config_source=each.source,
                is_sensitive=each.sensitive,
            )
            for each in describe_topic(given, request.broker.config.layers)
        ]
    answer.error_code = ErrorCode.NONE
    return answer
