"""DescribeConfigs: settings of topics, brokers, groups and the like."""

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
    field,
)


class DescribeConfigsResource(Part):
    resource_type: Int8 = 0
    resource_name: String = ""
    configuration_keys: list[String] | None = EMPTY


class DescribeConfigsRequest(
    Message, api_key=ApiKey.DESCRIBE_CONFIGS, versions=(0, 4), flexible_since=4
):
    resources: list[DescribeConfigsResource] = EMPTY
    include_synonyms: Bool = field(default=False, since=1)
    include_documentation: Bool = field(default=False, since=3)


class DescribeConfigsSynonym(Part):
    name: String = ""
    value: String | None = ""
    source: Int8 = 0


class DescribeConfigsResourceResult(Part):
    name: String = ""
    value: String | None = ""
    read_only: Bool = False
    is_default: Bool = field(default=False, until=0)
    config_source: Int8 = field(default=-1, since=1, ignorable=True)
    is_sensitive: Bool = False
    synonyms: list[DescribeConfigsSynonym] = field(default=EMPTY, since=1, ignorable=True)
    config_type: Int8 = field(default=0, since=3, ignorable=True)
    documentation: String | None = field(default="", since=3, ignorable=True)


class DescribeConfigsResult(Part):
    error_code: Int16 = 0
    error_message: String | None = ""
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[DescribeConfigsResourceResult] = EMPTY


class DescribeConfigsResponse(
    Message, api_key=ApiKey.DESCRIBE_CONFIGS, versions=(0, 4), flexible_since=4
):
    throttle_time_ms: Int32 = 0
    results: list[DescribeConfigsResult] = EMPTY
