"""PushTelemetry: metrics that a client pushes."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    ZERO_UUID,
    Bool,
    Bytes,
    Int8,
    Int16,
    Int32,
    Message,
    Uuid,
)


class PushTelemetryRequest(
    Message, api_key=ApiKey.PUSH_TELEMETRY, versions=(0, 0), flexible_since=0
):
    client_instance_id: Uuid = ZERO_UUID
    subscription_id: Int32 = 0
    terminating: Bool = False
    compression_type: Int8 = 0
    metrics: Bytes = b""


class PushTelemetryResponse(
    Message, api_key=ApiKey.PUSH_TELEMETRY, versions=(0, 0), flexible_since=0
):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
