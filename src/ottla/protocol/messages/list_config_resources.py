"""ListConfigResources: the resources that have settings."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Int8,
    Int16,
    Int32,
    Message,
    Part,
    String,
    field,
)


class ListConfigResourcesRequest(
    Message, api_key=ApiKey.LIST_CONFIG_RESOURCES, versions=(0, 1), flexible_since=0
):
    resource_types: list[Int8] = field(default=EMPTY, since=1)


class ConfigResource(Part):
    resource_name: String = ""
    resource_type: Int8 = field(default=16, since=1, ignorable=True)


class ListConfigResourcesResponse(
    Message, api_key=ApiKey.LIST_CONFIG_RESOURCES, versions=(0, 1), flexible_since=0
):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: list[ConfigResource] = EMPTY
