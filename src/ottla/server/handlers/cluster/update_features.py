"""UpdateFeatures: raise or lower the level at which the cluster works.

Versions:
  v0  a flag allows downgrades; a result for each feature, or one error for all
  v1  the kind of change, validate only
  v2  one result for all: they are made together or not at all
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.cluster.decisions.features import FeatureUpdate, UpgradeType
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from ottla.server.api import Request, handles
from ottla.server.failures import error_message
from ottla.server.turns import Steps, in_turns


@handles(UpdateFeaturesRequest, versions=(0, 2), by_controller=True)
async def update_features(request: Request[UpdateFeaturesRequest]) -> UpdateFeaturesResponse:
    message = request.message
    response = UpdateFeaturesResponse(error_message=None)
    updates = await in_turns(_updates(message, request.version))
    try:
        await request.broker.controller.update_features(
            updates, validate_only=message.validate_only
        )
    except ProtocolError as error:
        response.error_code = error.code
        response.error_message = error_message(error)
    if request.version < 2 and response.error_code == ErrorCode.NONE:
        response.results = [
            UpdatableFeatureResult(feature=each.feature, error_message=None)
            for each in message.feature_updates
        ]
    return response


def _updates(message: UpdateFeaturesRequest, version: int) -> Steps[Sequence[FeatureUpdate]]:
    """In the order of the request; what is the same as something before it changes nothing."""
    found: dict[FeatureUpdate, None] = {}
    for each in message.feature_updates:
        update = FeatureUpdate(each.feature, each.max_version_level, _kind(each, version))
        found.pop(update, None)
        found[update] = None
        yield
    return list(found)


def _kind(update: FeatureUpdateKey, version: int) -> int:
    if version == 0:
        return UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE
    return update.upgrade_type
