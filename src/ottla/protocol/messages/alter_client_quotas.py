"""AlterClientQuotas: set and remove quotas."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Bool,
    Float64,
    Int16,
    Int32,
    Message,
    Part,
    String,
)


class EntityDataRequest(Part):
    entity_type: String = ""
    entity_name: String | None = ""


class OpData(Part):
    key: String = ""
    value: Float64 = 0.0
    remove: Bool = False


class EntryDataRequest(Part):
    entity: list[EntityDataRequest] = EMPTY
    ops: list[OpData] = EMPTY


class AlterClientQuotasRequest(
    Message, api_key=ApiKey.ALTER_CLIENT_QUOTAS, versions=(0, 1), flexible_since=1
):
    entries: list[EntryDataRequest] = EMPTY
    validate_only: Bool = False


class EntityDataResponse(Part):
    entity_type: String = ""
    entity_name: String | None = ""


class EntryDataResponse(Part):
    error_code: Int16 = 0
    error_message: String | None = ""
    entity: list[EntityDataResponse] = EMPTY


class AlterClientQuotasResponse(
    Message, api_key=ApiKey.ALTER_CLIENT_QUOTAS, versions=(0, 1), flexible_since=1
):
    throttle_time_ms: Int32 = 0
    entries: list[EntryDataResponse] = EMPTY
