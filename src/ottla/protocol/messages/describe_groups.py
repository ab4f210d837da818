"""DescribeGroups: state and members of classic groups."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Bool,
    Bytes,
    Int16,
    Int32,
    Message,
    Part,
    String,
    field,
)


class DescribeGroupsRequest(
    Message, api_key=ApiKey.DESCRIBE_GROUPS, versions=(0, 6), flexible_since=5
):
    groups: list[String] = EMPTY
    include_authorized_operations: Bool = field(default=False, since=3)


class DescribedGroupMember(Part):
    member_id: String = ""
    group_instance_id: String | None = field(default=None, since=4, ignorable=True)
    client_id: String = ""
    client_host: String = ""
    member_metadata: Bytes = b""
    member_assignment: Bytes = b""


class DescribedGroup(Part):
    error_code: Int16 = 0
    error_message: String | None = field(default=None, since=6)
    group_id: String = ""
    group_state: String = ""
    protocol_type: String = ""
    protocol_data: String = ""
    members: list[DescribedGroupMember] = EMPTY
    authorized_operations: Int32 = field(default=-2147483648, since=3)


class DescribeGroupsResponse(
    Message, api_key=ApiKey.DESCRIBE_GROUPS, versions=(0, 6), flexible_since=5
):
    throttle_time_ms: Int32 = field(default=0, since=1, ignorable=True)
    groups: list[DescribedGroup] = EMPTY
