"""What a single group may be configured with (resources of type GROUP).

A group's own value comes before the broker's, within the limits that the broker sets. The settings of
share groups will stand here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ottla.coordinator.groups.settings import (
    ASSIGNMENT_INTERVAL,
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
)
from ottla.settings import (
    Described,
    InvalidSetting,
    Scope,
    Setting,
    SettingTable,
    SettingType,
    Source,
    Synonym,
    SynonymValue,
    at_least,
)

if TYPE_CHECKING:
    from ottla.server.configuration.broker_config import BrokerConfig

GROUP_SETTINGS = SettingTable(
    "group",
    (
        Setting(
            ASSIGNMENT_INTERVAL,
            SettingType.INT,
            1000,
            at_least(0),
            "The shortest time from one assignment of the group to the next.",
            (Synonym("group.consumer.assignment.interval.ms"),),
            Scope.CLUSTER_WIDE,
        ),
        Setting(
            HEARTBEAT_INTERVAL,
            SettingType.INT,
            5000,
            at_least(1),
            "The heartbeat interval that the members are told.",
            (Synonym("group.consumer.heartbeat.interval.ms"),),
            Scope.CLUSTER_WIDE,
        ),
        Setting(
            SESSION_TIMEOUT,
            SettingType.INT,
            45_000,
            at_least(1),
            "How long a member may be silent before it is counted as gone.",
            (Synonym("group.consumer.session.timeout.ms"),),
            Scope.CLUSTER_WIDE,
        ),
    ),
)


def check_group_settings(settings: Mapping[str, str], config: BrokerConfig) -> None:
    """Raises InvalidSetting: unknown, not a number, or outside of what the broker allows."""
    values: dict[str, int] = {}
    for name, text in settings.items():
        value = GROUP_SETTINGS.parse(name, text)
        assert isinstance(value, int)
        values[name] = value
        for limit, holds in _limits(name, value, config):
            if not holds:
                raise GROUP_SETTINGS[name].invalid(text, f"must be within {limit}")
    beat = values.get(HEARTBEAT_INTERVAL, config.group_consumer_heartbeat_interval_ms)
    session = values.get(SESSION_TIMEOUT, config.group_consumer_session_timeout_ms)
    if session <= beat:
        name = SESSION_TIMEOUT if SESSION_TIMEOUT in values else HEARTBEAT_INTERVAL
        raise InvalidSetting(
            name,
            settings.get(name),
            f"the session timeout ({session}) must be longer than the heartbeat interval ({beat})",
        )


def _limits(name: str, value: int, config: BrokerConfig) -> Iterable[tuple[str, bool]]:
    rest = name.removeprefix("consumer.")
    for bound in ("min", "max"):
        setting = f"group.consumer.{bound}.{rest}"
        limit: int = getattr(config, setting.replace(".", "_"))
        yield f"{setting} ({limit})", value >= limit if bound == "min" else value <= limit


def describe_group(
    settings: Mapping[str, str], config: BrokerConfig, names: Iterable[str] | None
) -> list[Described]:
    """What DescribeConfigs answers for a group."""
    wanted = None if names is None else frozenset(names)
    return [
        _describe(setting, settings, config)
        for setting in GROUP_SETTINGS
        if wanted is None or setting.name in wanted
    ]


def _describe(setting: Setting, settings: Mapping[str, str], config: BrokerConfig) -> Described:
    (broker,) = config.describe([setting.synonyms[0].name])
    value, source = broker.value, broker.source
    synonyms = broker.synonyms
    if setting.name in settings:
        value, source = settings[setting.name], Source.DYNAMIC_GROUP_CONFIG
        synonyms = (SynonymValue(setting.name, value, source), *synonyms)
    return Described(setting.name, value, source, setting.type, False, False, synonyms, setting.doc)
