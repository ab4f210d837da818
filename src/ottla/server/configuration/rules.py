"""What may be configured: the settings tables, asked by the controller before a change is made."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from ottla.cluster.metadata import CLUSTER_DEFAULT, Resource, ResourceType
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.server.configuration.broker_config import BrokerConfig, check_dynamic
from ottla.server.configuration.broker_settings import BROKER_SETTINGS
from ottla.server.configuration.group_settings import GROUP_SETTINGS, check_group_settings
from ottla.settings import InvalidSetting, SettingTable, SettingType
from ottla.storage import config as topic_config
from ottla.storage.config import TOPIC_SETTINGS

_TABLES: dict[ResourceType, SettingTable] = {
    ResourceType.TOPIC: TOPIC_SETTINGS,
    ResourceType.BROKER: BROKER_SETTINGS,
    ResourceType.GROUP: GROUP_SETTINGS,
}


class Rules:
    """Answers for all of them; `current` gives the broker's configuration of the moment."""

    def __init__(self, current: Callable[[], BrokerConfig]) -> None:
        self._current = current

    def check(
        self, resource: Resource, config: Mapping[str, str], altered: Collection[str]
    ) -> None:
        kind, name = resource
        try:
            if kind is ResourceType.TOPIC:
                topic_config.parse(config, self._current().log_defaults)
            elif kind is ResourceType.BROKER:
                self._check_broker(name, config, altered)
            elif kind is ResourceType.GROUP:
                check_group_settings(config, self._current())
            else:
                raise ProtocolError(
                    ErrorCode.INVALID_REQUEST, f"{kind.name.lower()} settings are not served yet"
                )
        except InvalidSetting as error:
            code = (
                ErrorCode.INVALID_CONFIG
                if kind in (ResourceType.TOPIC, ResourceType.GROUP)
                else ErrorCode.INVALID_REQUEST
            )
            raise ProtocolError(code, str(error)) from None

    def _check_broker(self, name: str, config: Mapping[str, str], altered: Collection[str]) -> None:
        cluster_wide = name == CLUSTER_DEFAULT
        for each in altered:
            if each in config:
                check_dynamic(each, config[each], cluster_wide=cluster_wide)
        if cluster_wide:
            self._current().with_dynamic(default=config)
        else:
            self._current().with_dynamic(broker=config)

    def is_list(self, resource_type: ResourceType, name: str) -> bool:
        table = _TABLES.get(resource_type)
        setting = table.get(name) if table is not None else None
        return setting is not None and setting.type is SettingType.LIST

    def list_default(self, resource_type: ResourceType, name: str) -> str | None:
        table = _TABLES.get(resource_type)
        if table is None or name not in table:
            return None
        setting = table[name]
        if resource_type is ResourceType.TOPIC:
            value = getattr(self._current().log_defaults, setting.attribute)
            return setting.render(value)
        return setting.render(setting.default)
