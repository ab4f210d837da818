"""DescribeAcls: the access control entries that match a filter."""

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


class DescribeAclsRequest(Message, api_key=ApiKey.DESCRIBE_ACLS, versions=(0, 3), flexible_since=2):
    resource_type_filter: Int8 = 0
    resource_name_filter: String | None = ""
    pattern_type_filter: Int8 = field(default=3, since=1)
    principal_filter: String | None = ""
    host_filter: String | None = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class AclDescription(Part):
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class DescribeAclsResource(Part):
    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Int8 = field(default=3, since=1)
    acls: list[AclDescription] = EMPTY


class DescribeAclsResponse(
    Message, api_key=ApiKey.DESCRIBE_ACLS, versions=(0, 3), flexible_since=2
):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    resources: list[DescribeAclsResource] = EMPTY
