"""Heartbeat: stay a member of a classic group."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    Int16,
    Int32,
    Message,
    String,
    field,
)


class HeartbeatRequest(Message, api_key=ApiKey.HEARTBEAT, versions=(0, 4), flexible_since=4):
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: String | None = field(default=None, since=3)


class HeartbeatResponse(Message, api_key=ApiKey.HEARTBEAT, versions=(0, 4), flexible_since=4):
    throttle_time_ms: Int32 = field(default=0, since=1, ignorable=True)
    error_code: Int16 = 0
