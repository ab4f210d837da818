"""The levels of features at which a broker works, and those at which it does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from server_kit.broker_thread import BrokerThread

from ottla.cluster.decisions.features import OTTLA_VERSION
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.server.broker import SUPPORTED_FEATURES, Broker


def test_a_new_broker_tells_its_levels_and_works_at_the_highest(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "data") as thread:
        with thread.wire() as wire:
            asked = ApiVersionsRequest(client_software_name="a", client_software_version="1")
            answer = wire.call(asked, ApiVersionsResponse, 4)
        node = thread.run(lambda broker: broker.image.brokers[broker.id])
    supported = {
        each.name: (each.min_version, each.max_version) for each in answer.supported_features
    }
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    assert supported[OTTLA_VERSION] == (0, 1)
    assert levels[OTTLA_VERSION] == 1
    assert {name: (low, high) for name, low, high in node.features} == supported
    assert set(supported) == set(SUPPORTED_FEATURES)


@pytest.mark.complains
def test_a_level_that_it_does_not_support_stops_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def raise_level(broker: Broker) -> bool:
        image = broker.image
        levels = {**image.features, OTTLA_VERSION: 99}
        broker.membership.follower.publish(
            replace(image, version=image.version + 1, features=levels)
        )
        return broker.lost.is_set()

    with BrokerThread(tmp_path / "data") as thread:
        assert thread.run(raise_level)
    assert "the cluster has feature 'ottla.version' at level 99, and this version" in caplog.text
