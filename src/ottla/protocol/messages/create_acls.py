"""CreateAcls: add access control entries."""

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


class AclCreation(Part):
    resource_type: Int8 = 0
    resource_name: String = ""
    resource_pattern_type: Int8 = field(default=3, since=1)
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class CreateAclsRequest(Message, api_key=ApiKey.CREATE_ACLS, versions=(0, 3), flexible_since=2):
    creations: list[AclCreation] = EMPTY


class AclCreationResult(Part):
    error_code: Int16 = 0
    error_message: String | None = ""


class CreateAclsResponse(Message, api_key=ApiKey.CREATE_ACLS, versions=(0, 3), flexible_since=2):
    throttle_time_ms: Int32 = 0
    results: list[AclCreationResult] = EMPTY
