"""Finalized features: the levels at which the whole cluster works, and how they change.

All updates of a request are made or none is; the error is INVALID_UPDATE_VERSION.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from ottla.cluster.draft import Draft
from ottla.protocol.errors import ErrorCode, ProtocolError


class UpgradeType(IntEnum):
    """How a level may change; numbers as on the wire."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True)
class FeatureRange:
    """The levels of a feature that this broker supports, and the one a new cluster begins with."""

    minimum: int
    maximum: int
    initial: int
    only_up: bool = False  # a lower level could not read what a higher one wrote


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    """A feature and the level it is to have; `upgrade_type` is a number off the wire."""

    name: str
    level: int
    upgrade_type: int = UpgradeType.UPGRADE


def initial_features(supported: Mapping[str, FeatureRange]) -> dict[str, int]:
    """The finalized features of a new cluster."""
    return {name: known.initial for name, known in supported.items() if known.initial > 0}


def fault_of_levels(levels: Mapping[str, int], supported: Mapping[str, FeatureRange]) -> str | None:
    """Why a broker with this support cannot work in a cluster at these levels, or None."""
    for name, level in levels.items():
        known = supported.get(name)
        if known is None:
            return f"the cluster uses feature '{name}', which this version of Ottla does not know"
        if not known.minimum <= level <= known.maximum:
            return (
                f"the cluster has feature '{name}' at level {level}, and this version of Ottla "
                f"supports levels {known.minimum} to {known.maximum}"
            )
    return None


def update_features(
    draft: Draft, updates: Sequence[FeatureUpdate], supported: Mapping[str, FeatureRange]
) -> None:
    """Makes all updates, in order. Raises the first error, with nothing done."""
    levels = dict(draft.features)
    for update in updates:
        fault = _fault_of(update, levels.get(update.name, 0), supported.get(update.name))
        if fault is not None:
            raise ProtocolError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"No feature was changed: '{update.name}' cannot be set to level {update.level}: "
                f"{fault}",
            )
        levels[update.name] = update.level
    for name, level in levels.items():
        if draft.features.get(name, 0) != level:
            draft.set_feature(name, level)


def _fault_of(update: FeatureUpdate, current: int, known: FeatureRange | None) -> str | None:
    """What is wrong with an update, or None."""
    if update.upgrade_type not in tuple(UpgradeType):
        return f"there is no upgrade type {update.upgrade_type}."
    if update.level < 0:
        return "a level cannot be negative."
    if known is None:
        return "this broker does not know the feature."
    if not known.minimum <= update.level <= known.maximum:
        return f"this broker supports levels {known.minimum} to {known.maximum}."
    is_upgrade = update.upgrade_type == UpgradeType.UPGRADE
    if update.level < current and is_upgrade:
        return f"it is at level {current}, and the request does not allow a downgrade."
    if update.level > current and not is_upgrade:
        return f"it is at level {current}, and the request asks for a downgrade."
    if update.level < current and known.only_up:
        return f"it is at level {current} and can only go up, or metadata could be lost."
    return None
