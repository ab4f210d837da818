"""DeleteAcls: remove the access control entries that match filters."""

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


class DeleteAclsFilter(Part):
    resource_type_filter: Int8 = 0
    resource_name_filter: String | None = ""
    pattern_type_filter: Int8 = field(default=3, since=1)
    principal_filter: String | None = ""
    host_filter: String | None = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class DeleteAclsRequest(Message, api_key=ApiKey.DELETE_ACLS, versions=(0, 3), flexible_since=2):
    filters: list[DeleteAclsFilter] = EMPTY


class DeleteAclsMatchingAcl(Part):
    error_code: Int16 = 0
    error_message: String | None = ""
    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Int8 = field(default=3, since=1)
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class DeleteAclsFilterResult(Part):
    error_code: Int16 = 0
    error_message: String | None = ""
    matching_acls: list[DeleteAclsMatchingAcl] = EMPTY


class DeleteAclsResponse(Message, api_key=ApiKey.DELETE_ACLS, versions=(0, 3), flexible_since=2):
    throttle_time_ms: Int32 = 0
    filter_results: list[DeleteAclsFilterResult] = EMPTY
