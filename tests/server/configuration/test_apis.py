"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import (
    Topic,
    batch_of,
    create_topic,
    fill,
    fresh_name,
    produce,
    versions_of,
)
from server_kit.wire import Wire

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import alter_configs as full
from ottla.protocol.messages import incremental_alter_configs as incremental
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from ottla.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.server.broker import Broker

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT = range(1, 6)


def me(wire: Wire) -> str:
    return str(wire.call(MetadataRequest(topics=[]), MetadataResponse, 1).brokers[0].node_id)


def describe(
    wire: Wire,
    kind: int,
    name: str,
    keys: list[str] | None = None,
    *,
    version: int = 4,
    synonyms: bool = False,
    documentation: bool = False,
) -> DescribeConfigsResult:
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
        ],
        include_synonyms=synonyms,
        include_documentation=documentation,
    )
    (result,) = wire.call(request, DescribeConfigsResponse, version).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def settings(wire: Wire, kind: int, name: str) -> dict[str, DescribeConfigsResourceResult]:
    result = describe(wire, kind, name, synonyms=True)
    assert result.error_code == 0
    return {each.name: each for each in result.configs}


def value(wire: Wire, topic: str, key: str) -> str | None:
    return settings(wire, TOPIC, topic)[key].value


def alter(
    wire: Wire,
    kind: int,
    name: str,
    *changes: tuple[str, int, str | None],
    version: int = 1,
    validate_only: bool = False,
) -> ErrorCode:
    request = incremental.IncrementalAlterConfigsRequest(
        resources=[
            incremental.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    incremental.AlterableConfig(name=key, config_operation=operation, value=text)
                    for key, operation, text in changes
                ],
            )
        ],
        validate_only=validate_only,
    )
    response = wire.call(request, incremental.IncrementalAlterConfigsResponse, version)
    (answer,) = response.responses
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    assert bool(answer.error_message) == bool(answer.error_code)
    return ErrorCode(answer.error_code)


def replace(
    wire: Wire,
    kind: int,
    name: str,
    *entries: tuple[str, str | None],
    version: int = 2,
    validate_only: bool = False,
) -> ErrorCode:
    request = full.AlterConfigsRequest(
        resources=[
            full.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[full.AlterableConfig(name=key, value=text) for key, text in entries],
            )
        ],
        validate_only=validate_only,
    )
    (answer,) = wire.call(request, full.AlterConfigsResponse, version).responses
    return ErrorCode(answer.error_code)


def settle(wire: Wire, topic: str, key: str, expected: str | None) -> None:
    """Wait until a change is seen: at once in Ottla, soon in Kafka."""
    while value(wire, topic, key) != expected:
        assert wire.is_elsewhere


# Describing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(DescribeConfigsRequest, first=1))
def test_describe_topic(wire: Wire, version: int) -> None:
    topic = create_topic(wire, retention_ms="777")
    result = describe(wire, TOPIC, topic.name, version=version, synonyms=True)
    assert result.error_code == 0
    told = {each.name: each for each in result.configs}
    assert told["retention.ms"].value == "777"
    assert told["retention.ms"].config_source == DYNAMIC_TOPIC
    assert not told["retention.ms"].read_only
    assert not told["retention.ms"].is_sensitive
    first = told["retention.ms"].synonyms[0]
    assert (first.name, first.value, first.source) == ("retention.ms", "777", DYNAMIC_TOPIC)
    assert told["max.message.bytes"].value == "1048588"
    assert told["max.message.bytes"].config_source == DEFAULT
    assert [each.name for each in told["max.message.bytes"].synonyms] == ["message.max.bytes"]
    if version >= 3:
        assert told["retention.ms"].config_type == 5  # LONG
        assert told["cleanup.policy"].config_type == 7  # LIST


def test_describe_in_version_0(inside: BrokerThread, wire: Wire) -> None:
    topic = create_topic(wire, retention_ms="777")
    result = describe(wire, TOPIC, topic.name, version=0)
    told = {each.name: each for each in result.configs}
    assert not told["retention.ms"].is_default
    assert told["segment.bytes"].is_default


@pytest.mark.parametrize("version", versions_of(DescribeConfigsRequest, first=1))
def test_describe_some_settings(wire: Wire, topic: Topic, version: int) -> None:
    keys = ["retention.ms", "no.such.setting", "cleanup.policy"]
    result = describe(wire, TOPIC, topic.name, keys, version=version)
    assert result.error_code == 0
    assert {each.name for each in result.configs} == {"retention.ms", "cleanup.policy"}
    assert all(each.synonyms == [] for each in result.configs)


@pytest.mark.parametrize("version", [3, 4])
def test_documentation(wire: Wire, topic: Topic, version: int) -> None:
    with_words = describe(
        wire, TOPIC, topic.name, ["retention.ms"], version=version, documentation=True
    )
    assert with_words.configs[0].documentation
    without = describe(wire, TOPIC, topic.name, ["retention.ms"], version=version)
    assert without.configs[0].documentation is None


@pytest.mark.parametrize("version", versions_of(DescribeConfigsRequest, first=1))
def test_describe_broker(wire: Wire, version: int) -> None:
    result = describe(wire, BROKER, me(wire), version=version)
    assert result.error_code == 0
    told = {each.name: each for each in result.configs}
    assert told["num.partitions"].value == "1"
    assert told["log.dirs"].value
    assert told["listeners"].config_source == STATIC
    default = describe(wire, BROKER, "", version=version)
    # What was set for all brokers: nothing, but for one that Kafka sets by itself.
    assert default.error_code == 0
    assert {each.name for each in default.configs} <= {"min.insync.replicas"}


@pytest.mark.parametrize("version", versions_of(DescribeConfigsRequest, first=1))
def test_describe_what_is_not_there(wire: Wire, version: int) -> None:
    result = describe(wire, TOPIC, fresh_name("missing"), version=version)
    assert result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert describe(wire, TOPIC, "bad name", version=version).error_code == (
        ErrorCode.INVALID_TOPIC_EXCEPTION
    )
    for name in ("4711", "abc", "-1"):
        result = describe(wire, BROKER, name, version=version)
        assert result.error_code == ErrorCode.INVALID_REQUEST
    for kind in (0, 1, 3, 99, -1):
        result = describe(wire, kind, "x", version=version)
        assert result.error_code == ErrorCode.INVALID_REQUEST


# Changing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
def test_incremental_changes(wire: Wire, topic: Topic, version: int) -> None:
    name = topic.name
    assert alter(
        wire, TOPIC, name, ("retention.ms", SET, "99"), ("segment.ms", SET, "5000"), version=version
    ) == ErrorCode.NONE  # fmt: skip
    settle(wire, name, "segment.ms", "5000")
    assert value(wire, name, "retention.ms") == "99"
    assert alter(wire, TOPIC, name, ("retention.ms", DELETE, None), version=version) == 0
    settle(wire, name, "retention.ms", "604800000")
    assert value(wire, name, "segment.ms") == "5000"
    assert alter(wire, TOPIC, name, ("cleanup.policy", APPEND, "compact"), version=version) == 0
    settle(wire, name, "cleanup.policy", "delete,compact")
    assert alter(wire, TOPIC, name, ("cleanup.policy", SUBTRACT, "delete"), version=version) == 0
    settle(wire, name, "cleanup.policy", "compact")


@pytest.mark.differs("Kafka answers UNKNOWN_SERVER_ERROR to an operation that it does not know")
@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("retention.ms", SET, "soon"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", SET, None), ErrorCode.INVALID_REQUEST),
        (("no.such.setting", SET, "1"), ErrorCode.INVALID_CONFIG),
        (("cleanup.policy", SET, "burn"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", 9, "1"), ErrorCode.INVALID_REQUEST),
        (("retention.ms", -1, "1"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_bad_changes(
    wire: Wire, topic: Topic, version: int, change: tuple[str, int, str | None], code: ErrorCode
) -> None:
    """All changes of a resource are made, or none of them."""
    good = ("segment.ms", SET, "5000")
    assert alter(wire, TOPIC, topic.name, good, change, version=version) == code
    assert value(wire, topic.name, "segment.ms") == "604800000"


def test_change_of_what_is_not_there(wire: Wire) -> None:
    change = ("retention.ms", SET, "1")
    assert alter(wire, TOPIC, fresh_name("missing"), change) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    assert alter(wire, TOPIC, "bad name", change) == ErrorCode.INVALID_TOPIC_EXCEPTION
    for kind in (0, 1, 99):
        assert alter(wire, kind, "x", change) == ErrorCode.INVALID_REQUEST
    assert alter(wire, BROKER, "4711", ("num.partitions", SET, "2")) == ErrorCode.INVALID_REQUEST


def test_the_same_setting_twice(wire: Wire, topic: Topic) -> None:
    changes = (("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
    assert alter(wire, TOPIC, topic.name, *changes) == ErrorCode.INVALID_REQUEST


def test_validate_only(wire: Wire, topic: Topic) -> None:
    change = ("retention.ms", SET, "99")
    assert alter(wire, TOPIC, topic.name, change, validate_only=True) == 0
    bad = ("retention.ms", SET, "x")
    assert alter(wire, TOPIC, topic.name, bad, validate_only=True) == ErrorCode.INVALID_CONFIG
    assert replace(wire, TOPIC, topic.name, ("retention.ms", "99"), validate_only=True) == 0
    assert value(wire, topic.name, "retention.ms") == "604800000"


@pytest.mark.parametrize("version", [0, 1, 2])
def test_full_replacement(wire: Wire, version: int) -> None:
    topic = create_topic(wire, retention_ms="1000", segment_ms="2000")
    entries = (("segment.ms", "3000"), ("max.message.bytes", "5000"))
    assert replace(wire, TOPIC, topic.name, *entries, version=version) == 0
    settle(wire, topic.name, "segment.ms", "3000")
    assert value(wire, topic.name, "max.message.bytes") == "5000"
    assert value(wire, topic.name, "retention.ms") == "604800000"
    assert replace(wire, TOPIC, topic.name, ("a", "b"), version=version) == ErrorCode.INVALID_CONFIG
    assert replace(wire, TOPIC, topic.name, version=version) == 0
    settle(wire, topic.name, "segment.ms", "604800000")


def test_takes_effect_at_once(inside: BrokerThread, wire: Wire, topic: Topic) -> None:
    batch = batch_of(b"x" * 500)
    assert produce(wire, topic, batch).error_code == 0
    alter(wire, TOPIC, topic.name, ("max.message.bytes", SET, "100"))
    assert produce(wire, topic, batch).error_code == ErrorCode.MESSAGE_TOO_LARGE
    alter(wire, TOPIC, topic.name, ("max.message.bytes", DELETE, None))
    assert produce(wire, topic, batch).error_code == 0


def test_brokers_own_settings(start_broker: Callable[..., BrokerThread]) -> None:
    """Of all brokers, of this one; each above the other; followed by topics and lasting."""
    broker = start_broker()
    with broker.wire() as wire:
        topic = create_topic(wire)
        batch = batch_of(b"x" * 500)
        assert alter(wire, BROKER, "", ("message.max.bytes", SET, "100")) == 0
        assert produce(wire, topic, batch).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert settings(wire, TOPIC, topic.name)["max.message.bytes"].config_source == (
            DYNAMIC_DEFAULT
        )
        assert alter(wire, BROKER, me(wire), ("message.max.bytes", SET, "10000")) == 0
        assert produce(wire, topic, batch).error_code == 0
        told = settings(wire, BROKER, me(wire))["message.max.bytes"]
        assert (told.value, told.config_source) == ("10000", DYNAMIC_BROKER)
        assert [(each.value, each.source) for each in told.synonyms] == [
            ("10000", DYNAMIC_BROKER), ("100", DYNAMIC_DEFAULT), ("1048588", DEFAULT),
        ]  # fmt: skip
    broker.restart()
    with broker.wire() as wire:
        assert settings(wire, BROKER, me(wire))["message.max.bytes"].value == "10000"
        assert alter(wire, BROKER, me(wire), ("message.max.bytes", DELETE, None)) == 0
        assert produce(wire, topic, batch).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert alter(wire, BROKER, "", ("message.max.bytes", DELETE, None)) == 0
        assert produce(wire, topic, batch).error_code == 0


def test_settings_reach_those_who_live_by_them(start_broker: Callable[..., BrokerThread]) -> None:
    running = start_broker(settings={"log.flush.offset.checkpoint.interval.ms": "1234"})
    assert running.run(lambda broker: broker.logs.checkpoint_interval_ms) == 1234
    with running.wire() as wire:
        fill(wire, create_topic(wire), batch_of(b"x"))
        # Makes the topic of the groups' shards.
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=["group"])
        wire.call(request, FindCoordinatorResponse, 4)
        running.run(lambda broker: broker.groups.load_all())
        changes = (
            ("producer.id.expiration.ms", SET, "7777"),
            ("group.consumer.assignment.interval.ms", SET, "2222"),
        )
        assert alter(wire, BROKER, "", *changes) == 0

    def seen(broker: Broker) -> set[int]:
        return {
            broker.logs.producer_expiration_ms,
            *(each.producers.expiration_ms for each in broker.logs.loaded()),
        }

    assert running.run(seen) == {7777}
    intervals = running.run(
        lambda broker: {
            held.shard.settings.group_consumer_assignment_interval_ms
            for held in broker.groups._held.values()
        }
    )
    assert intervals == {2222}


@pytest.mark.parametrize(
    ("key", "text"),
    [("node.id", "5"), ("log.dirs", "/tmp/x"), ("message.max.bytes", "much")],
)
def test_broker_settings_that_cannot_be_changed(wire: Wire, key: str, text: str) -> None:
    assert alter(wire, BROKER, me(wire), (key, SET, text)) in (
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_CONFIG,
    )


@pytest.mark.differs("Kafka has other codes for some of these")
def test_very_long_things(wire: Wire, topic: Topic) -> None:
    long = "x" * 32767
    for version in (0, 1):
        assert alter(wire, TOPIC, topic.name, (long, SET, long), version=version) == (
            ErrorCode.INVALID_CONFIG
        )
        assert alter(wire, TOPIC, long, (long, SET, long), version=version) == (
            ErrorCode.INVALID_TOPIC_EXCEPTION
        )
        assert alter(wire, BROKER, long, (long, SET, long), version=version) == (
            ErrorCode.INVALID_REQUEST
        )
    for version in range(5):
        assert describe(wire, BROKER, long, version=version).error_code
        assert describe(wire, TOPIC, long, version=version).error_code


# Listing ----------------------------------------------------------------------------------------


def listed(wire: Wire, *kinds: int, version: int = 1) -> ListConfigResourcesResponse:
    request = ListConfigResourcesRequest(resource_types=list(kinds))
    return wire.call(request, ListConfigResourcesResponse, version)


def test_list_resources(wire: Wire, topic: Topic) -> None:
    response = listed(wire, TOPIC)
    assert response.error_code == 0
    assert (topic.name, TOPIC) in {
        (each.resource_name, each.resource_type) for each in response.config_resources
    }
    everything = {
        (each.resource_name, each.resource_type) for each in listed(wire).config_resources
    }
    assert {(topic.name, TOPIC), (me(wire), BROKER), (me(wire), LOGGER)} <= everything
    assert listed(wire, CLIENT_METRICS).config_resources == []
    assert listed(wire, version=0).config_resources == []


@pytest.mark.parametrize("kind", [0, 1, 3, 99, -1])
def test_list_strange_resources(wire: Wire, kind: int) -> None:
    assert listed(wire, TOPIC, kind).error_code == ErrorCode.UNSUPPORTED_VERSION
