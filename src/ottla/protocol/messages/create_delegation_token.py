"""CreateDelegationToken: a token that stands for its owner."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Bytes,
    Int16,
    Int32,
    Int64,
    Message,
    Part,
    String,
    field,
)


class CreatableRenewers(Part):
    principal_type: String = ""
    principal_name: String = ""


class CreateDelegationTokenRequest(
    Message, api_key=ApiKey.CREATE_DELEGATION_TOKEN, versions=(0, 3), flexible_since=2
):
    owner_principal_type: String | None = field(default="", since=3)
    owner_principal_name: String | None = field(default="", since=3)
    renewers: list[CreatableRenewers] = EMPTY
    max_lifetime_ms: Int64 = 0


class CreateDelegationTokenResponse(
    Message, api_key=ApiKey.CREATE_DELEGATION_TOKEN, versions=(0, 3), flexible_since=2
):
    error_code: Int16 = 0
    principal_type: String = ""
    principal_name: String = ""
    token_requester_principal_type: String = field(default="", since=3)
    token_requester_principal_name: String = field(default="", since=3)
    issue_timestamp_ms: Int64 = 0
    expiry_timestamp_ms: Int64 = 0
    max_timestamp_ms: Int64 = 0
    token_id: String = ""
    hmac: Bytes = b""
    throttle_time_ms: Int32 = 0
