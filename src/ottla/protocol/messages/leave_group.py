"""LeaveGroup: end the membership of one or more members of a classic group."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Int16,
    Int32,
    Message,
    Part,
    String,
    field,
)


class MemberIdentity(Part):
    member_id: String = ""
    group_instance_id: String | None = None
    reason: String | None = field(default=None, since=5, ignorable=True)


class LeaveGroupRequest(Message, api_key=ApiKey.LEAVE_GROUP, versions=(0, 5), flexible_since=4):
    group_id: String = ""
    member_id: String = field(default="", until=2)
    members: list[MemberIdentity] = field(default=EMPTY, since=3)


class MemberResponse(Part):
    member_id: String = ""
    group_instance_id: String | None = ""
    error_code: Int16 = 0


class LeaveGroupResponse(Message, api_key=ApiKey.LEAVE_GROUP, versions=(0, 5), flexible_since=4):
    throttle_time_ms: Int32 = field(default=0, since=1, ignorable=True)
    error_code: Int16 = 0
    members: list[MemberResponse] = field(default=EMPTY, since=3)
