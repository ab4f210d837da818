"""AlterConfigs: replace all settings of a resource."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Bool,
    Int8,
    Int16,
    Int32,
    Message,
    Part,
    String,
)


class AlterableConfig(Part):
    name: String = ""
    value: String | None = ""


class AlterConfigsResource(Part):
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[AlterableConfig] = EMPTY


class AlterConfigsRequest(Message, api_key=ApiKey.ALTER_CONFIGS, versions=(0, 2), flexible_since=2):
    resources: list[AlterConfigsResource] = EMPTY
    validate_only: Bool = False


class AlterConfigsResourceResponse(Part):
    error_code: Int16 = 0
    error_message: String | None = ""
    resource_type: Int8 = 0
    resource_name: String = ""


class AlterConfigsResponse(
    Message, api_key=ApiKey.ALTER_CONFIGS, versions=(0, 2), flexible_since=2
):
    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = EMPTY
