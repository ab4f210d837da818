"""ExpireDelegationToken: bring a token's expiry forward."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    Bytes,
    Int16,
    Int32,
    Int64,
    Message,
)


class ExpireDelegationTokenRequest(
    Message, api_key=ApiKey.EXPIRE_DELEGATION_TOKEN, versions=(0, 2), flexible_since=2
):
    hmac: Bytes = b""
    expiry_time_period_ms: Int64 = 0


class ExpireDelegationTokenResponse(
    Message, api_key=ApiKey.EXPIRE_DELEGATION_TOKEN, versions=(0, 2), flexible_since=2
):
    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = 0
    throttle_time_ms: Int32 = 0
