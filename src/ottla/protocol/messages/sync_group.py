"""SyncGroup: hand out the leader's assignment to the members of a classic group."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Bytes,
    Int16,
    Int32,
    Message,
    Part,
    String,
    field,
)


class SyncGroupRequestAssignment(Part):
    member_id: String = ""
    assignment: Bytes = b""


class SyncGroupRequest(Message, api_key=ApiKey.SYNC_GROUP, versions=(0, 5), flexible_since=4):
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: String | None = field(default=None, since=3)
    protocol_type: String | None = field(default=None, since=5, ignorable=True)
    protocol_name: String | None = field(default=None, since=5, ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = EMPTY


class SyncGroupResponse(Message, api_key=ApiKey.SYNC_GROUP, versions=(0, 5), flexible_since=4):
    throttle_time_ms: Int32 = field(default=0, since=1, ignorable=True)
    error_code: Int16 = 0
    protocol_type: String | None = field(default=None, since=5, ignorable=True)
    protocol_name: String | None = field(default=None, since=5, ignorable=True)
    assignment: Bytes = b""
