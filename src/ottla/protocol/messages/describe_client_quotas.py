"""DescribeClientQuotas: the quotas that match a filter."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Bool,
    Float64,
    Int8,
    Int16,
    Int32,
    Message,
    Part,
    String,
)


class ComponentData(Part):
    entity_type: String = ""
    match_type: Int8 = 0
    match: String | None = ""


class DescribeClientQuotasRequest(
    Message, api_key=ApiKey.DESCRIBE_CLIENT_QUOTAS, versions=(0, 1), flexible_since=1
):
    components: list[ComponentData] = EMPTY
    strict: Bool = False


class EntityData(Part):
    entity_type: String = ""
    entity_name: String | None = ""


class ValueData(Part):
    key: String = ""
    value: Float64 = 0.0


class EntryData(Part):
    entity: list[EntityData] = EMPTY
    values: list[ValueData] = EMPTY


class DescribeClientQuotasResponse(
    Message, api_key=ApiKey.DESCRIBE_CLIENT_QUOTAS, versions=(0, 1), flexible_since=1
):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    entries: list[EntryData] | None = EMPTY
