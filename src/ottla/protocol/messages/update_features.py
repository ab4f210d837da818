"""UpdateFeatures: raise or lower the level of cluster features."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Bool,
    Int8,
    Int16,
    Int32,
    Message,
    Part,
    String,
    field,
)


class FeatureUpdateKey(Part):
    feature: String = ""
    max_version_level: Int16 = 0
    allow_downgrade: Bool = field(default=False, until=0)
    upgrade_type: Int8 = field(default=1, since=1)


class UpdateFeaturesRequest(
    Message, api_key=ApiKey.UPDATE_FEATURES, versions=(0, 2), flexible_since=0
):
    timeout_ms: Int32 = 60000
    feature_updates: list[FeatureUpdateKey] = EMPTY
    validate_only: Bool = field(default=False, since=1)


class UpdatableFeatureResult(Part):
    feature: String = ""
    error_code: Int16 = 0
    error_message: String | None = ""


class UpdateFeaturesResponse(
    Message, api_key=ApiKey.UPDATE_FEATURES, versions=(0, 2), flexible_since=0
):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    results: list[UpdatableFeatureResult] = field(default=EMPTY, until=1, ignorable=True)
