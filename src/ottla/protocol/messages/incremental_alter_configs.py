"""IncrementalAlterConfigs: change single settings of a resource."""

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
    config_operation: Int8 = 0
    value: String | None = ""


class AlterConfigsResource(Part):
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[AlterableConfig] = EMPTY


class IncrementalAlterConfigsRequest(
    Message, api_key=ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=(0, 1), flexible_since=1
):
    resources: list[AlterConfigsResource] = EMPTY
    validate_only: Bool = False


class AlterConfigsResourceResponse(Part):
    error_code: Int16 = 0
    error_message: String | None = ""
    resource_type: Int8 = 0
    resource_name: String = ""


class IncrementalAlterConfigsResponse(
    Message, api_key=ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=(0, 1), flexible_since=1
):
    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = EMPTY
