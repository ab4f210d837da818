"""Settings of single groups (resources of type GROUP), and the feature `group.version`."""

from __future__ import annotations

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import fresh_name

from ottla.coordinator.groups.settings import GroupSettings
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

GROUP = 32
DYNAMIC_GROUP, DEFAULT = 8, 5


def alter(broker: BrokerThread, group: str, name: str, value: str) -> int:
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=GROUP,
                resource_name=group,
                configs=[AlterableConfig(name=name, config_operation=0, value=value)],
            )
        ]
    )
    with broker.wire() as wire:
        (result,) = wire.call(request, IncrementalAlterConfigsResponse, 1).responses
    return result.error_code


def described(broker: BrokerThread, group: str) -> dict[str, tuple[str | None, int]]:
    request = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=GROUP, resource_name=group)]
    )
    with broker.wire() as wire:
        (result,) = wire.call(request, DescribeConfigsResponse, 4).results
    assert result.error_code == 0
    return {each.name: (each.value, each.config_source) for each in result.configs}


def join(broker: BrokerThread, group: str) -> ConsumerGroupHeartbeatResponse:
    with broker.wire() as wire:
        # Has the offsets topic made.
        while wire.call(FindCoordinatorRequest(key=group), FindCoordinatorResponse, 2).error_code:
            pass
        return wire.call(
            ConsumerGroupHeartbeatRequest(
                group_id=group,
                member_id="m",
                rebalance_timeout_ms=1000,
                subscribed_topic_names=["t"],
                topic_partitions=[],
            ),
            ConsumerGroupHeartbeatResponse,
            1,
        )


def test_a_group_has_settings_of_its_own(broker: BrokerThread) -> None:
    group = fresh_name("group")
    assert described(broker, group) == {
        "consumer.assignment.interval.ms": ("1000", DEFAULT),
        "consumer.heartbeat.interval.ms": ("5000", DEFAULT),
        "consumer.session.timeout.ms": ("45000", DEFAULT),
    }
    assert alter(broker, group, "consumer.heartbeat.interval.ms", "7000") == ErrorCode.NONE
    assert described(broker, group)["consumer.heartbeat.interval.ms"] == ("7000", DYNAMIC_GROUP)
    assert join(broker, group).heartbeat_interval_ms == 7000
    assert join(broker, fresh_name("group")).heartbeat_interval_ms == 5000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("consumer.heartbeat.interval.ms", "4999"),
        ("consumer.heartbeat.interval.ms", "15001"),
        ("consumer.session.timeout.ms", "44999"),
        ("consumer.session.timeout.ms", "60001"),
        ("consumer.assignment.interval.ms", "-1"),
        ("consumer.assignment.interval.ms", "15001"),
        ("consumer.session.timeout.ms", "long"),
        ("consumer.unknown", "1"),
    ],
)
def test_the_broker_sets_limits(broker: BrokerThread, name: str, value: str) -> None:
    group = fresh_name("group")
    before = described(broker, group)
    assert alter(broker, group, name, value) == ErrorCode.INVALID_CONFIG
    assert described(broker, group) == before


def test_limits_that_changed_since_count() -> None:
    own = {"consumer.session.timeout.ms": "60000", "consumer.heartbeat.interval.ms": "5000"}
    settings = GroupSettings(
        group_consumer_max_session_timeout_ms=50_000, group_consumer_min_heartbeat_interval_ms=6_000
    )
    assert settings.consumer_times(own) == (50_000, 6_000, 1_000)
    assert settings.consumer_times({}) == (45_000, 5_000, 1_000)


def test_the_feature_switches_the_protocol(broker: BrokerThread) -> None:
    def level(to: int) -> None:
        update = FeatureUpdateKey(
            feature="group.version", max_version_level=to, upgrade_type=2 if to == 0 else 1
        )
        with broker.wire() as wire:
            answer = wire.call(
                UpdateFeaturesRequest(feature_updates=[update]), UpdateFeaturesResponse, 1
            )
        assert answer.error_code == 0

    with broker.wire() as wire:
        answer = wire.call(
            ApiVersionsRequest(client_software_name="a", client_software_version="1"),
            ApiVersionsResponse,
            4,
        )
    supported = {each.name: each.max_version for each in answer.supported_features}
    finalized = {each.name: each.max_version_level for each in answer.finalized_features}
    assert supported["group.version"] == finalized["group.version"] == 1
    group = fresh_name("group")
    assert join(broker, group).error_code == ErrorCode.NONE
    level(0)
    try:
        assert join(broker, group).error_code == ErrorCode.UNSUPPORTED_VERSION
    finally:
        level(1)
    assert join(broker, group).error_code == ErrorCode.NONE
