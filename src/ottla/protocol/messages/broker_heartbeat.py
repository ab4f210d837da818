"""BrokerHeartbeat: a broker tells the controller of itself, and asks to stop in good order."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Bool,
    Int16,
    Int32,
    Int64,
    Message,
    Uuid,
    field,
)


class BrokerHeartbeatRequest(
    Message, api_key=ApiKey.BROKER_HEARTBEAT, versions=(0, 2), flexible_since=0
):
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    current_metadata_offset: Int64 = 0
    want_fence: Bool = False
    want_shut_down: Bool = False
    offline_log_dirs: list[Uuid] = field(default=EMPTY, since=1, tag=0)
    cordoned_log_dirs: list[Uuid] | None = field(default=None, since=2, tag=1)


class BrokerHeartbeatResponse(
    Message, api_key=ApiKey.BROKER_HEARTBEAT, versions=(0, 2), flexible_since=0
):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    is_caught_up: Bool = False
    is_fenced: Bool = True
    should_shut_down: Bool = False
