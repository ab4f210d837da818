"""Levels of features: raised by command alone, and never above what every broker supports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ottla.cluster import layout
from ottla.cluster.controller import Controller, UnsupportedFeature
from ottla.cluster.decisions.brokers import fence, take_in, unregister_broker
from ottla.cluster.decisions.elections import ElectionPolicy
from ottla.cluster.decisions.features import (
    OTTLA_VERSION,
    FeatureRange,
    FeatureUpdate,
    UpgradeType,
    registered_ranges,
    update_features,
)
from ottla.cluster.draft import Draft
from ottla.cluster.embedded.store import EmbeddedStore
from ottla.cluster.membership.membership import Membership
from ottla.cluster.metadata import ClusterImage, RegisteredBroker
from ottla.cluster.store import Node
from ottla.protocol.errors import ErrorCode, ProtocolError

BrokerOf = Callable[..., RegisteredBroker]
OLD = {OTTLA_VERSION: FeatureRange(0, 1, 1)}
NEW = {OTTLA_VERSION: FeatureRange(1, 2, 2)}


def policy_of(_: str) -> ElectionPolicy:
    return ElectionPolicy()


def cluster_at(level: int, *brokers: RegisteredBroker) -> Draft:
    levels = {OTTLA_VERSION: level} if level else {}
    known = {each.id: each for each in brokers}
    return Draft(ClusterImage("some cluster", brokers=known, features=levels, version=0))


def test_a_registration_tells_the_levels(broker: BrokerOf) -> None:
    registered = replace(broker(1), features=registered_ranges(NEW))
    node = Node(layout.encode_broker(registered), 0, 7, 0)
    found, _ = layout.decode_broker(1, node)
    assert found == replace(registered, epoch=7)
    again, _ = layout.decode_registration(1, layout.encode_registration(found, fenced=False))
    assert again.features == ((OTTLA_VERSION, 1, 2),)
    # One of before does not.
    assert layout.decode_broker(1, Node(layout.encode_broker(broker(1)), 0, 7, 0))[0].features == ()


def test_no_level_is_raised_above_a_broker(broker: BrokerOf) -> None:
    new = replace(broker(1), features=registered_ranges(NEW))
    old = replace(broker(2), features=registered_ranges(OLD))
    draft = cluster_at(1, new, old)
    wanted = [FeatureUpdate(OTTLA_VERSION, 2)]
    with pytest.raises(ProtocolError, match="broker 2 supports levels 0 to 1") as refused:
        update_features(draft, wanted, NEW)
    assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION
    assert not draft.is_changed
    # One that is away may come back.
    fence(draft, 2, policy_of=policy_of)
    with pytest.raises(ProtocolError, match=r"broker 2 .* \(it is away: .* unregister it\)"):
        update_features(draft, wanted, NEW)
    unregister_broker(draft, 2)
    update_features(draft, wanted, NEW)
    assert draft.features == {OTTLA_VERSION: 2}


def test_brokers_that_tell_nothing_hold_the_first_level_back(broker: BrokerOf) -> None:
    supported = {**OLD, "group.version": FeatureRange(0, 1, 1)}
    draft = cluster_at(0, broker(1))
    # Other features were there before brokers told.
    update_features(draft, [FeatureUpdate("group.version", 1)], supported)
    with pytest.raises(ProtocolError, match="broker 1 does not know the feature"):
        update_features(draft, [FeatureUpdate(OTTLA_VERSION, 1)], supported)


def test_a_level_can_be_lowered_to_one_that_all_support(broker: BrokerOf) -> None:
    draft = cluster_at(2, replace(broker(1), features=registered_ranges(NEW)))
    for level, kind in ((0, UpgradeType.SAFE_DOWNGRADE), (3, UpgradeType.UPGRADE)):
        with pytest.raises(ProtocolError, match="supports levels 1 to 2"):
            update_features(draft, [FeatureUpdate(OTTLA_VERSION, level, kind)], NEW)
    update_features(draft, [FeatureUpdate(OTTLA_VERSION, 1, UpgradeType.SAFE_DOWNGRADE)], NEW)
    assert draft.features == {OTTLA_VERSION: 1}


@pytest.mark.parametrize(
    ("level", "features", "fault"),
    [
        (0, (), None),
        (0, registered_ranges(OLD), None),
        (1, registered_ranges(OLD), None),
        (1, (), "version of Ottla that does not know it"),
        (2, registered_ranges(OLD), "at level 2, and broker 2 supports levels 0 to 1"),
        (1, (("group.version", 0, 1),), "which broker 2 does not know"),
    ],
)
def test_who_is_taken_in(
    broker: BrokerOf, level: int, features: tuple[tuple[str, int, int], ...], fault: str | None
) -> None:
    draft = cluster_at(level, replace(broker(1), features=registered_ranges(NEW)))
    coming = replace(broker(2), epoch=5, features=features)
    if fault is None:
        take_in(draft, coming, lost_data=False, policy_of=policy_of)
        assert draft.brokers[2].features == features
        return
    with pytest.raises(ProtocolError, match=fault) as refused:
        take_in(draft, coming, lost_data=False, policy_of=policy_of)
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
    assert 2 not in draft.brokers


def test_a_member_of_another_version(tmp_path: Path, broker: BrokerOf, rules: Any) -> None:
    """It is told why it cannot join, before it registers and also when the level is raised meanwhile."""

    async def use() -> None:
        own = EmbeddedStore(tmp_path / "metadata.db")
        await own.start()

        def member(number: int, supported: dict[str, FeatureRange]) -> Membership:
            def make(store: Any) -> Controller:
                return Controller(store, number, rules, supported, random=Random(1))

            return Membership(number, own.join, make, reconnects=True)

        first, second = member(1, NEW), member(2, OLD)
        await first.open()
        await first.join(replace(broker(1), folder_id="1", features=registered_ranges(NEW)), False)
        assert first.image.features == {OTTLA_VERSION: 2}
        await second.open()
        coming = replace(broker(2), folder_id="2", features=registered_ranges(OLD))
        with pytest.raises(UnsupportedFeature, match="broker 2 supports levels 0 to 1"):
            await second.join(coming, False)
        assert await own.get(layout.broker_path(2)) is None
        # It looks in a moment in which the level is still the lower one.
        assert first.controller is not None
        lower = FeatureUpdate(OTTLA_VERSION, 1, UpgradeType.SAFE_DOWNGRADE)
        await first.controller.update_features([lower])
        await second.until(lambda: second.image.features == {OTTLA_VERSION: 1})
        registered = asyncio.Event()
        register = second._register

        async def register_late(*registration: Any) -> int:
            assert first.controller is not None
            await first.controller.update_features([FeatureUpdate(OTTLA_VERSION, 2)])
            registered.set()
            return await register(*registration)

        second._register = register_late  # type: ignore[method-assign]
        with pytest.raises(UnsupportedFeature, match="broker 2 supports levels 0 to 1"):
            await second.join(coming, False)
        assert registered.is_set()
        assert 2 not in first.image.brokers
        for each in (second, first):
            await each.close()
        await own.close()

    asyncio.run(asyncio.wait_for(use(), 20))
