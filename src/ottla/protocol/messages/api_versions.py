"""ApiVersions: what a broker can do, in which versions."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Bool,
    Int16,
    Int32,
    Int64,
    Message,
    Part,
    String,
    field,
)


class ApiVersionsRequest(Message, api_key=ApiKey.API_VERSIONS, versions=(0, 4), flexible_since=3):
    client_software_name: String = field(default="", since=3, ignorable=True)
    client_software_version: String = field(default="", since=3, ignorable=True)


class ApiVersion(Part):
    api_key: Int16 = 0
    min_version: Int16 = 0
    max_version: Int16 = 0


class SupportedFeatureKey(Part):
    name: String = ""
    min_version: Int16 = 0
    max_version: Int16 = 0


class FinalizedFeatureKey(Part):
    name: String = ""
    max_version_level: Int16 = 0
    min_version_level: Int16 = 0


class ApiVersionsResponse(Message, api_key=ApiKey.API_VERSIONS, versions=(0, 4), flexible_since=3):
    error_code: Int16 = 0
    api_keys: list[ApiVersion] = EMPTY
    throttle_time_ms: Int32 = field(default=0, since=1, ignorable=True)
    supported_features: list[SupportedFeatureKey] = field(
        default=EMPTY, since=3, tag=0, ignorable=True
    )
    finalized_features_epoch: Int64 = field(default=-1, since=3, tag=1, ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = field(
        default=EMPTY, since=3, tag=2, ignorable=True
    )
    zk_migration_ready: Bool = field(default=False, since=3, tag=3, ignorable=True)
