"""Settings of topics, brokers, groups and the whole cluster: describe and alter."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ottla.client.admin.base import AdminPart
from ottla.client.cluster import ANY, CONTROLLER, OneBroker, Route
from ottla.client.naming import Names, names_of, several_of
from ottla.client.spreading import Outcomes, Verdict
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


class ResourceKind(enum.IntEnum):
    """What has settings; the number is the protocol's."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class SettingSource(enum.IntEnum):
    """Where a setting's value comes from; the number is the protocol's."""

    UNKNOWN = 0
    TOPIC = 1
    BROKER = 2  # changed for this broker while it runs
    CLUSTER = 3  # changed for all brokers while they run
    FILE = 4  # what the broker was started with
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class _Operation(enum.IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class Resource:
    """Something that has settings."""

    kind: ResourceKind
    name: str  # a broker's is its number; the empty name of BROKER stands for all of them

    @classmethod
    def topic(cls, name: str) -> Resource:
        return cls(ResourceKind.TOPIC, name)

    @classmethod
    def broker(cls, number: int) -> Resource:
        return cls(ResourceKind.BROKER, str(number))

    @classmethod
    def cluster(cls) -> Resource:
        """The defaults of all brokers."""
        return cls(ResourceKind.BROKER, "")

    @classmethod
    def group(cls, name: str) -> Resource:
        return cls(ResourceKind.GROUP, name)

    def __str__(self) -> str:
        if self.kind is ResourceKind.BROKER:
            return f"broker {self.name}" if self.name else "the cluster's defaults"
        return f"{self.kind.name.lower().replace('_', ' ')} '{self.name}'"

    @property
    def _route(self) -> Route:
        """A broker answers for itself, anyone for the rest."""
        of_one = self.kind in (ResourceKind.BROKER, ResourceKind.BROKER_LOGGER) and self.name
        return OneBroker(int(self.name)) if of_one else ANY


@dataclass(frozen=True, slots=True)
class Synonym:
    """A value that the setting would have, were it not for those before it."""

    name: str
    value: str | None
    source: SettingSource


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting and its value; None where the value is secret."""

    name: str
    value: str | None
    source: SettingSource
    read_only: bool = False
    sensitive: bool = False
    synonyms: tuple[Synonym, ...] = ()
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        return self.source is SettingSource.DEFAULT


class ConfigsAdmin(AdminPart):
    """The calls about settings."""

    async def describe_configs(
        self,
        resources: Resource | Iterable[Resource],
        *,
        names: Names | None = None,
        synonyms: bool = False,
        documentation: bool = False,
        timeout: float | None = None,
    ) -> dict[Resource, dict[str, Setting]]:
        """All settings (or those of the given names) of resources, by name. TopicNotFound."""
        asked = several_of(resources, Resource, "resources: Resource.topic(…) and its like")
        keys = None if names is None else names_of(names, "names")
        outcomes: Outcomes[Resource, dict[str, Setting]] = Outcomes()
        for route, some in _by_route(dict.fromkeys(asked)).items():
            request = DescribeConfigsRequest(
                resources=[
                    DescribeConfigsResource(
                        resource_type=each.kind,
                        resource_name=each.name,
                        configuration_keys=keys,
                    )
                    for each in some
                ],
                include_synonyms=synonyms,
                include_documentation=documentation,
            )
            answered = await self._ask(
                request,
                DescribeConfigsResponse,
                read=_read_described,
                about=str,
                at=route,
                timeout=timeout,
            )
            outcomes.results.update(answered.results)
            outcomes.errors.update(answered.errors)
        return outcomes.all()

    async def alter_configs(
        self,
        resource: Resource,
        *,
        assign: Mapping[str, str] | None = None,
        unset: Names = (),
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Change single settings; the others stay.

        `unset` gives settings their default back; `append` and `subtract` change what is a list.
        InvalidSetting if the broker refuses one; TopicNotFound.
        """
        changes = [
            AlterableConfig(name=name, config_operation=operation, value=value)
            for operation, values in (
                (_Operation.SET, assign or {}),
                (_Operation.DELETE, dict.fromkeys(names_of(unset, "unset"))),
                (_Operation.APPEND, append or {}),
                (_Operation.SUBTRACT, subtract or {}),
            )
            for name, value in values.items()
        ]
        request = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=resource.kind, resource_name=resource.name, configs=changes
                )
            ],
            validate_only=validate_only,
        )

        def read(answer: IncrementalAlterConfigsResponse) -> Iterable[Verdict[Resource, None]]:
            for each in answer.responses:
                yield Verdict(_resource(each), each.error_code, None, each.error_message)

        route = resource._route
        altered = await self._ask(
            request,
            IncrementalAlterConfigsResponse,
            read=read,
            about=str,
            at=CONTROLLER if route is ANY else route,
            timeout=timeout,
        )
        altered.all()


def _by_route(resources: Iterable[Resource]) -> dict[Route, list[Resource]]:
    grouped: dict[Route, list[Resource]] = {}
    for resource in resources:
        grouped.setdefault(resource._route, []).append(resource)
    return grouped


def _resource(each: object) -> Resource:
    kind: int = getattr(each, "resource_type", 0)
    return Resource(ResourceKind(kind), getattr(each, "resource_name", ""))


def _read_described(
    answer: DescribeConfigsResponse,
) -> Iterable[Verdict[Resource, dict[str, Setting]]]:
    for each in answer.results:
        settings = {setting.name: _setting(setting) for setting in each.configs}
        yield Verdict(_resource(each), each.error_code, settings, each.error_message)


def _setting(entry: DescribeConfigsResourceResult) -> Setting:
    return Setting(
        entry.name,
        entry.value,
        _source(entry.config_source),
        entry.read_only,
        entry.is_sensitive,
        tuple(Synonym(each.name, each.value, _source(each.source)) for each in entry.synonyms),
        entry.documentation or None,
    )


def _source(number: int) -> SettingSource:
    try:
        return SettingSource(number)
    except ValueError:
        return SettingSource.UNKNOWN
