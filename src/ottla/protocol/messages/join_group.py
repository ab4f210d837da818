"""JoinGroup: become a member of a classic group and take part in a rebalance."""

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


class JoinGroupRequestProtocol(Part):
    name: String = ""
    metadata: Bytes = b""


class JoinGroupRequest(Message, api_key=ApiKey.JOIN_GROUP, versions=(0, 9), flexible_since=6):
    group_id: String = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Int32 = field(default=-1, since=1, ignorable=True)
    member_id: String = ""
    group_instance_id: String | None = field(default=None, since=5)
    protocol_type: String = ""
    protocols: list[JoinGroupRequestProtocol] = EMPTY
    reason: String | None = field(default=None, since=8, ignorable=True)


class JoinGroupResponseMember(Part):
    member_id: String = ""
    group_instance_id: String | None = field(default=None, since=5, ignorable=True)
    metadata: Bytes = b""


class JoinGroupResponse(Message, api_key=ApiKey.JOIN_GROUP, versions=(0, 9), flexible_since=6):
    throttle_time_ms: Int32 = field(default=0, since=2, ignorable=True)
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: String | None = field(default=None, since=7, ignorable=True)
    protocol_name: String | None = field(default="", nullable_since=7)
    leader: String = ""
    skip_assignment: Bool = field(default=False, since=9)
    member_id: String = ""
    members: list[JoinGroupResponseMember] = EMPTY
