"""Finalized features: the levels at which the whole cluster works, and how they change.

All updates of a request are made or none is; the error is INVALID_UPDATE_VERSION. A level changes only
by such a request, and only to one that every registered broker supports, those too that are away: a
rolling upgrade ends with it, and until then brokers of the version before can come back.

`ottla.version` is the level of what brokers write for each other to read, in metadata, in logs and
between them, beyond what clients see:

    0  clusters of before there was this feature
    1  every broker tells at its registration which levels it supports, and one that does not, or that
       does not support those of the cluster, is not taken in
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from ottla.cluster.draft import Draft
from ottla.cluster.metadata import RegisteredBroker
from ottla.protocol.errors import ErrorCode, ProtocolError

OTTLA_VERSION: Final = "ottla.version"
# From this level on brokers that tell no levels are not taken in.
_REGISTERED_LEVELS: Final = 1


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


def registered_ranges(supported: Mapping[str, FeatureRange]) -> tuple[tuple[str, int, int], ...]:
    """The levels that a broker supports, as it registers them: name, lowest, highest."""
    return tuple((name, known.minimum, known.maximum) for name, known in supported.items())


def fault_of_broker(levels: Mapping[str, int], broker: RegisteredBroker) -> str | None:
    """Why a broker, by what it registered, cannot work in a cluster at these levels, or None."""
    if not broker.features:
        if levels.get(OTTLA_VERSION, 0) >= _REGISTERED_LEVELS:
            return (
                f"the cluster has feature '{OTTLA_VERSION}' at level {levels[OTTLA_VERSION]}, and "
                f"broker {broker.id} is of a version of Ottla that does not know it"
            )
        return None
    ranges = {name: (lowest, highest) for name, lowest, highest in broker.features}
    for name, level in levels.items():
        known = ranges.get(name)
        if known is None:
            return f"the cluster uses feature '{name}', which broker {broker.id} does not know"
        if not known[0] <= level <= known[1]:
            return (
                f"the cluster has feature '{name}' at level {level}, and broker {broker.id} supports "
                f"levels {known[0]} to {known[1]}"
            )
    return None


def update_features(
    draft: Draft, updates: Sequence[FeatureUpdate], supported: Mapping[str, FeatureRange]
) -> None:
    """Makes all updates, in order. Raises the first error, with nothing done."""
    levels = dict(draft.features)
    for update in updates:
        fault = _fault_of(update, levels.get(update.name, 0), supported.get(update.name))
        fault = fault or _fault_among(draft, update)
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


def _fault_among(draft: Draft, update: FeatureUpdate) -> str | None:
    """Which broker of the cluster cannot work at the new level, or None. One that is away counts, too:
    it may come back, unless it is unregistered."""
    if update.level == draft.features.get(update.name, 0) or update.level == 0:
        return None
    for broker in (*draft.brokers.values(), *draft.fenced.values()):
        fault = fault_of_broker({update.name: update.level}, broker)
        if fault is None:
            continue
        ranges = {name: (lowest, highest) for name, lowest, highest in broker.features}
        away = " (it is away: bring it up to date, or unregister it)"
        known = ranges.get(update.name)
        supports = (
            "does not know the feature"
            if known is None
            else f"supports levels {known[0]} to {known[1]}"
        )
        return f"broker {broker.id} {supports}{away if broker.id in draft.fenced else ''}."
    return None
