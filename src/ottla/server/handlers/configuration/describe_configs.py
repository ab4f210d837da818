"""DescribeConfigs: settings of topics, brokers and groups, with where each value comes from.

- A topic's values are its own, else those of the broker's dynamic or static settings, else Kafka's
  defaults; the synonyms show that chain.
- A broker resource without a name stands for the settings that hold for all brokers.
- A group's values are its own, else the broker's; the group need not exist.
- Sensitive values are never told.
- A resource that is named several times is looked up once and answered as often as it is named.

Versions:
  v1  sources and synonyms instead of "is default"
  v3  types and documentation
  v4  flexible
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.cluster.metadata import CLUSTER_DEFAULT, ResourceType
from ottla.cluster.names import check_topic_name
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from ottla.server.api import Outcome, Request, handles
from ottla.server.configuration.group_settings import describe_group
from ottla.server.failures import error_message
from ottla.server.turns import Steps, distinct
from ottla.settings import Described, Source
from ottla.storage.config import describe_topic


@handles(DescribeConfigsRequest, versions=(0, 4))
def describe_configs(
    request: Request[DescribeConfigsRequest],
) -> Steps[Outcome]:
    response = DescribeConfigsResponse()
    known: dict[tuple[int, str, frozenset[str] | None], DescribeConfigsResult] = {}
    for resource in request.message.resources:
        # No keys asks for all, as null does: old clients send an empty list.
        keys = resource.configuration_keys
        names = frozenset((yield from distinct(keys))) if keys else None
        key = (resource.resource_type, resource.resource_name, names)
        answer = known.get(key)
        if answer is None:
            answer = known[key] = yield from _answer(request, resource, names)
        response.results.append(answer)
        yield
    return response


def _answer(
    request: Request[DescribeConfigsRequest],
    resource: DescribeConfigsResource,
    names: frozenset[str] | None,
) -> Steps[DescribeConfigsResult]:
    answer = DescribeConfigsResult(
        error_message=None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
    try:
        settings = _settings(request, resource, names)
    except ProtocolError as error:
        answer.error_code = error.code
        answer.error_message = error_message(error)
        return answer
    for each in settings:
        answer.configs.append(_entry(request, each))
        yield
    return answer


def _settings(
    request: Request[DescribeConfigsRequest],
    resource: DescribeConfigsResource,
    names: frozenset[str] | None,
) -> Iterable[Described]:
    broker, name = request.broker, resource.resource_name
    match resource.resource_type:
        case ResourceType.TOPIC:
            check_topic_name(name)
            if name not in broker.image.topics:
                raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            overrides = broker.image.config(ResourceType.TOPIC, name)
            return describe_topic(overrides, broker.config.layers, names)
        case ResourceType.BROKER if name == CLUSTER_DEFAULT:
            return broker.config.describe_cluster_default(names)
        case ResourceType.BROKER:
            if name != str(broker.id):
                raise ProtocolError(
                    ErrorCode.INVALID_REQUEST,
                    f"this is broker {broker.id}; ask broker {name} for its own settings",
                )
            return broker.config.describe(names)
        case ResourceType.GROUP:
            if not name:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, "a group has a name")
            overrides = broker.image.config(ResourceType.GROUP, name)
            return describe_group(overrides, broker.config, names)
    raise ProtocolError(
        ErrorCode.INVALID_REQUEST,
        f"resources of type {resource.resource_type} have no settings here",
    )


def _entry(
    request: Request[DescribeConfigsRequest], setting: Described
) -> DescribeConfigsResourceResult:
    message = request.message
    return DescribeConfigsResourceResult(
        name=setting.name,
        value=setting.value,
        read_only=setting.read_only,
        is_default=setting.source is Source.DEFAULT_CONFIG if request.version == 0 else False,
        config_source=setting.source,
        is_sensitive=setting.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source)
            for each in (setting.synonyms if message.include_synonyms else ())
        ],
        config_type=setting.type,
        documentation=setting.documentation if message.include_documentation else None,
    )
