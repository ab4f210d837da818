"""DescribeDelegationToken: the tokens of some owners."""

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


class DescribeDelegationTokenOwner(Part):
    principal_type: String = ""
    principal_name: String = ""


class DescribeDelegationTokenRequest(
    Message, api_key=ApiKey.DESCRIBE_DELEGATION_TOKEN, versions=(0, 3), flexible_since=2
):
    owners: list[DescribeDelegationTokenOwner] | None = EMPTY


class DescribedDelegationTokenRenewer(Part):
    principal_type: String = ""
    principal_name: String = ""


class DescribedDelegationToken(Part):
    principal_type: String = ""
    principal_name: String = ""
    token_requester_principal_type: String = field(default="", since=3)
    token_requester_principal_name: String = field(default="", since=3)
    issue_timestamp: Int64 = 0
    expiry_timestamp: Int64 = 0
    max_timestamp: Int64 = 0
    token_id: String = ""
    hmac: Bytes = b""
    renewers: list[DescribedDelegationTokenRenewer] = EMPTY


class DescribeDelegationTokenResponse(
    Message, api_key=ApiKey.DESCRIBE_DELEGATION_TOKEN, versions=(0, 3), flexible_since=2
):
    error_code: Int16 = 0
    tokens: list[DescribedDelegationToken] = EMPTY
    throttle_time_ms: Int32 = 0
