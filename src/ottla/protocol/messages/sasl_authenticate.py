"""SaslAuthenticate: one step of the agreed SASL mechanism."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    Bytes,
    Int16,
    Int64,
    Message,
    String,
    field,
)


class SaslAuthenticateRequest(
    Message, api_key=ApiKey.SASL_AUTHENTICATE, versions=(0, 2), flexible_since=2
):
    auth_bytes: Bytes = b""


class SaslAuthenticateResponse(
    Message, api_key=ApiKey.SASL_AUTHENTICATE, versions=(0, 2), flexible_since=2
):
    error_code: Int16 = 0
    error_message: String | None = ""
    auth_bytes: Bytes = b""
    session_lifetime_ms: Int64 = field(default=0, since=1, ignorable=True)
