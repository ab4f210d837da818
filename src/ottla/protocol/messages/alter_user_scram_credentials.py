"""AlterUserScramCredentials: set and remove SCRAM credentials."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Bytes,
    Int8,
    Int16,
    Int32,
    Message,
    Part,
    String,
)


class ScramCredentialDeletion(Part):
    name: String = ""
    mechanism: Int8 = 0


class ScramCredentialUpsertion(Part):
    name: String = ""
    mechanism: Int8 = 0
    iterations: Int32 = 0
    salt: Bytes = b""
    salted_password: Bytes = b""


class AlterUserScramCredentialsRequest(
    Message, api_key=ApiKey.ALTER_USER_SCRAM_CREDENTIALS, versions=(0, 0), flexible_since=0
):
    deletions: list[ScramCredentialDeletion] = EMPTY
    upsertions: list[ScramCredentialUpsertion] = EMPTY


class AlterUserScramCredentialsResult(Part):
    user: String = ""
    error_code: Int16 = 0
    error_message: String | None = ""


class AlterUserScramCredentialsResponse(
    Message, api_key=ApiKey.ALTER_USER_SCRAM_CREDENTIALS, versions=(0, 0), flexible_since=0
):
    throttle_time_ms: Int32 = 0
    results: list[AlterUserScramCredentialsResult] = EMPTY
