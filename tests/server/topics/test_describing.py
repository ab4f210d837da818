"""OffsetForLeaderEpoch, DescribeTopicPartitions, DescribeCluster, DescribeLogDirs, UpdateFeatures,
FindCoordinator."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from server_kit.broker_thread import BrokerElsewhere, BrokerThread
from server_kit.calls import Topic, batch_of, create_topic, fill, fresh_name, versions_of
from server_kit.wire import Wire

from ottla.cluster.controller import Controller
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.message import ZERO_UUID
from ottla.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from ottla.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from ottla.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
)
from ottla.protocol.messages.describe_producers import (
    TopicRequest as ProducersTopic,
)
from ottla.protocol.messages.describe_topic_partitions import (
    CursorRequest,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from ottla.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from ottla.replication.partition import Role
from ottla.server.broker import Broker

# OffsetForLeaderEpoch ---------------------------------------------------------------------------

EPOCHS = versions_of(OffsetForLeaderEpochRequest)


def end_of_epoch(
    wire: Wire, topic: Topic, epoch: int, *, index: int = 0, current: int = -1, version: int = 4
) -> EpochEndOffset:
    request = OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[
            OffsetForLeaderTopic(
                topic=topic.name,
                partitions=[
                    OffsetForLeaderPartition(
                        partition=index, current_leader_epoch=current, leader_epoch=epoch
                    )
                ],
            )
        ],
    )
    response = wire.call(request, OffsetForLeaderEpochResponse, version)
    (answer,) = response.topics[0].partitions
    assert (response.topics[0].topic, answer.partition) == (topic.name, index)
    return answer


@pytest.mark.parametrize("version", EPOCHS)
def test_end_of_epoch(wire: Wire, topic: Topic, version: int) -> None:
    fill(wire, topic, batch_of(b"a", b"b"), batch_of(b"c"))
    answer = end_of_epoch(wire, topic, 0, version=version)
    assert (answer.error_code, answer.end_offset) == (0, 3)
    if version >= 1:
        assert answer.leader_epoch == 0
    for unknown in (7, -1):
        answer = end_of_epoch(wire, topic, unknown, version=version)
        assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, -1, -1)


@pytest.mark.parametrize("version", EPOCHS)
def test_end_of_epoch_errors(wire: Wire, topic: Topic, version: int) -> None:
    answer = end_of_epoch(wire, topic, 0, index=3, version=version)
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    missing = Topic(fresh_name("missing"), ZERO_UUID)
    answer = end_of_epoch(wire, missing, 0, version=version)
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (answer.leader_epoch, answer.end_offset) == (-1, -1)
    if version >= 2:
        assert end_of_epoch(wire, topic, 0, current=0, version=version).error_code == 0
        answer = end_of_epoch(wire, topic, 0, current=5, version=version)
        assert answer.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


# DescribeTopicPartitions ------------------------------------------------------------------------


def page(
    wire: Wire,
    *names: str,
    limit: int = 2000,
    cursor: tuple[str, int] | None = None,
) -> DescribeTopicPartitionsResponse:
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None
        if cursor is None
        else CursorRequest(topic_name=cursor[0], partition_index=cursor[1]),
    )
    return wire.call(request, DescribeTopicPartitionsResponse, 0)


def flat(response: DescribeTopicPartitionsResponse) -> list[tuple[str | None, int]]:
    return [
        (topic.name, partition.partition_index)
        for topic in response.topics
        for partition in topic.partitions
    ]


@pytest.fixture
def three(wire: Wire) -> list[Topic]:
    """Topics of 2, 3 and 1 partitions, sorted by name."""
    stem = fresh_name("paged")
    return [
        create_topic(wire, partitions=count, name=f"{stem}-{letter}")
        for letter, count in (("a", 2), ("b", 3), ("c", 1))
    ]


def test_topics_in_order(wire: Wire, three: list[Topic]) -> None:
    response = page(wire, *(topic.name for topic in reversed(three)))
    assert [topic.name for topic in response.topics] == [topic.name for topic in three]
    assert [topic.topic_id for topic in response.topics] == [topic.id for topic in three]
    assert [len(topic.partitions) for topic in response.topics] == [2, 3, 1]
    assert response.next_cursor is None
    first = response.topics[0].partitions[0]
    assert (first.error_code, first.leader_epoch, first.offline_replicas) == (0, 0, [])
    assert first.replica_nodes == first.isr_nodes == [first.leader_id]
    assert response.topics[0].topic_authorized_operations == 0b1101_1111_1000


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 7])
def test_pages(wire: Wire, three: list[Topic], limit: int) -> None:
    names = [topic.name for topic in three]
    expected = [(names[0], 0), (names[0], 1), (names[1], 0), (names[1], 1), (names[1], 2),
                (names[2], 0)]  # fmt: skip
    seen: list[tuple[str | None, int]] = []
    cursor = None
    for _ in range(10):
        response = page(wire, *names, limit=limit, cursor=cursor)
        assert len(flat(response)) <= limit
        seen += flat(response)
        if response.next_cursor is None:
            break
        cursor = (response.next_cursor.topic_name, response.next_cursor.partition_index)
    assert seen == expected


@pytest.mark.parametrize("limit", [0, -1, -(2**31)])
def test_a_limit_that_makes_no_sense(wire: Wire, three: list[Topic], limit: int) -> None:
    """At least one comes, or the reader of pages would never get on."""
    response = page(wire, three[0].name, limit=limit)
    assert flat(response) == [(three[0].name, 0)]
    assert response.next_cursor is not None


def test_brokers_own_limit(start_broker: Callable[..., BrokerThread]) -> None:
    broker = start_broker(settings={"max.request.partition.size.limit": "2"})
    with broker.wire() as wire:
        topic = create_topic(wire, partitions=5)
        response = page(wire, topic.name)
        assert len(flat(response)) == 2
        assert response.next_cursor is not None
        assert response.next_cursor.partition_index == 2


def test_all_topics(wire: Wire, three: list[Topic]) -> None:
    response = page(wire)
    names = [topic.name for topic in response.topics]
    assert names == sorted(names, key=str)
    assert {topic.name for topic in three} <= set(names)


def test_missing_and_bad_names(wire: Wire, three: list[Topic]) -> None:
    missing = fresh_name("missing")
    response = page(wire, missing, "bad name", three[0].name)
    codes = {topic.name: ErrorCode(topic.error_code) for topic in response.topics}
    assert codes == {
        missing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
        three[0].name: ErrorCode.NONE,
    }


@pytest.mark.differs("Kafka gives an empty page")
def test_a_cursor_at_a_topic_that_is_gone(wire: Wire, three: list[Topic]) -> None:
    names = [topic.name for topic in three]
    response = page(wire, *names, cursor=(names[0] + "x", 1))
    assert {name for name, _ in flat(response)} == set(names[1:])


# DescribeCluster --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(DescribeClusterRequest))
def test_cluster(broker: BrokerThread | BrokerElsewhere, wire: Wire, version: int) -> None:
    metadata = wire.call(MetadataRequest(topics=[]), MetadataResponse, 9)
    response = wire.call(DescribeClusterRequest(), DescribeClusterResponse, version)
    assert response.error_code == 0
    assert response.error_message is None
    assert response.cluster_id == metadata.cluster_id
    (node,) = response.brokers
    assert (node.host, node.port, node.is_fenced) == (broker.host, broker.port, False)
    assert response.controller_id == node.broker_id
    assert response.cluster_authorized_operations == -(2**31)
    asked = DescribeClusterRequest(include_cluster_authorized_operations=True)
    response = wire.call(asked, DescribeClusterResponse, version)
    assert response.cluster_authorized_operations == 0b1_1111_1010_0000


@pytest.mark.parametrize("version", [1, 2])
def test_endpoints_that_are_not_here(wire: Wire, version: int) -> None:
    controllers = wire.call(
        DescribeClusterRequest(endpoint_type=2), DescribeClusterResponse, version
    )
    assert controllers.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
    for kind in (0, 3, 99, -1):
        answer = wire.call(
            DescribeClusterRequest(endpoint_type=kind), DescribeClusterResponse, version
        )
        assert answer.error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        assert answer.brokers == []


# DescribeLogDirs --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(DescribeLogDirsRequest))
def test_log_dirs(wire: Wire, version: int) -> None:
    topic = create_topic(wire, partitions=2)
    batch = batch_of(b"x" * 1000)
    fill(wire, topic, batch, batch, index=1)
    request = DescribeLogDirsRequest(
        topics=[DescribableLogDirTopic(topic=topic.name, partitions=[0, 1, 7])]
    )
    response = wire.call(request, DescribeLogDirsResponse, version)
    (folder,) = response.results
    assert (response.error_code, folder.error_code) == (0, 0)
    assert folder.log_dir.startswith("/")
    (told,) = folder.topics
    sizes = {each.partition_index: each.partition_size for each in told.partitions}
    assert (told.name, sizes) == (topic.name, {0: 0, 1: 2 * len(batch)})
    if version >= 4:
        assert 0 < folder.usable_bytes <= folder.total_bytes


@pytest.mark.parametrize("version", versions_of(DescribeLogDirsRequest))
def test_log_dirs_of_all_and_of_none(wire: Wire, topic: Topic, version: int) -> None:
    everything = wire.call(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, version)
    assert topic.name in {each.name for each in everything.results[0].topics}
    none = wire.call(DescribeLogDirsRequest(topics=[]), DescribeLogDirsResponse, version)
    assert none.results[0].topics == []


def test_several_log_dirs(start_broker: Callable[..., BrokerThread], tmp_path: object) -> None:
    broker = start_broker(settings={"log.dirs": f"{tmp_path}/one,{tmp_path}/two"})
    with broker.wire() as wire:
        for _ in range(4):
            fill(wire, create_topic(wire), batch_of(b"a"))
        response = wire.call(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, 4)
    assert sorted(each.log_dir for each in response.results) == [
        f"{tmp_path}/one", f"{tmp_path}/two",
    ]  # fmt: skip
    assert [len(each.topics) for each in response.results] == [2, 2]


# UpdateFeatures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(UpdateFeaturesRequest))
def test_no_features(inside: BrokerThread, wire: Wire, version: int) -> None:
    response = wire.call(UpdateFeaturesRequest(), UpdateFeaturesResponse, version)
    assert response.error_code in (ErrorCode.NONE, ErrorCode.INVALID_REQUEST)


@pytest.mark.parametrize("version", versions_of(UpdateFeaturesRequest))
def test_a_feature_that_nobody_knows(wire: Wire, version: int) -> None:
    request = UpdateFeaturesRequest(
        feature_updates=[FeatureUpdateKey(feature="no.such.feature", max_version_level=1)]
    )
    response = wire.call(request, UpdateFeaturesResponse, version)
    codes = {response.error_code, *(each.error_code for each in response.results)} - {0}
    assert codes <= {ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.INVALID_REQUEST}
    assert codes


def test_a_long_feature_name(wire: Wire) -> None:
    for version in range(3):
        request = UpdateFeaturesRequest(
            feature_updates=[FeatureUpdateKey(feature="f" * 32767, max_version_level=1)]
        )
        wire.call(request, UpdateFeaturesResponse, version)


# FindCoordinator --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(FindCoordinatorRequest))
def test_coordinators_of_unknown_kinds(inside: BrokerThread, wire: Wire, version: int) -> None:
    if version == 0:
        pytest.skip("v0 knows groups only")
    for kind in (3, 99, -1):
        if version < 4:
            request = FindCoordinatorRequest(key="k", key_type=kind)
            answer = wire.call(request, FindCoordinatorResponse, version)
            assert answer.error_code == ErrorCode.INVALID_REQUEST
            assert answer.node_id == -1
        else:
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=["a", "b"])
            answer = wire.call(request, FindCoordinatorResponse, version)
            assert [each.key for each in answer.coordinators] == ["a", "b"]
            assert {each.error_code for each in answer.coordinators} == {ErrorCode.INVALID_REQUEST}


@pytest.mark.parametrize("kind", [0, 1])
def test_coordinators_without_a_controller(
    start_broker: Callable[..., BrokerThread], kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their topic cannot be made. Producers take what they do not expect here for an end."""

    async def refuse(*_: object) -> None:
        raise ProtocolError(ErrorCode.NOT_CONTROLLER)

    running = start_broker()
    request = FindCoordinatorRequest(key_type=kind, coordinator_keys=["a"])
    with running.wire() as wire, monkeypatch.context() as patch:
        patch.setattr(Controller, "create_topics", refuse)
        (answer,) = wire.call(request, FindCoordinatorResponse, 4).coordinators
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


# DescribeProducers ------------------------------------------------------------------------------


@pytest.mark.complains
def test_a_long_story_of_a_log_that_is_offline_is_cut(
    start_broker: Callable[..., BrokerThread],
) -> None:
    running = start_broker()
    with running.wire() as wire:
        topic = create_topic(wire)
        fill(wire, topic, batch_of(b"x"))
    running.restart()

    def take_offline(broker: Broker) -> None:
        broker.logs.folders[0].offline = "a long story " * 10_000

    running.run(take_offline)
    with running.wire() as wire:
        request = DescribeProducersRequest(
            topics=[ProducersTopic(name=topic.name, partition_indexes=[0])]
        )
        response = wire.call(request, DescribeProducersResponse, 0)
    (answer,) = response.topics[0].partitions
    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert answer.error_message is not None
    assert "a long story" in answer.error_message
    assert len(answer.error_message) < 1100


@pytest.mark.parametrize(
    ("role", "code"),
    [
        (Role.LEADER, ErrorCode.NONE),
        (Role.FOLLOWER, ErrorCode.NONE),
        (Role.ABSENT, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_any_replica_tells_its_producers(
    inside: BrokerThread, wire: Wire, role: Role, code: ErrorCode
) -> None:
    """Kafka's `kafka-transactions.sh find-hanging --broker-id N` asks for all that broker N holds."""
    topic = create_topic(wire)
    fill(wire, topic, batch_of(b"x", producer_id=7, producer_epoch=1, base_sequence=0))

    def set_role(broker: Broker, to: Role) -> None:
        partition = broker.partitions.get(topic.name, 0)
        assert partition is not None
        partition.role = to

    request = DescribeProducersRequest(
        topics=[ProducersTopic(name=topic.name, partition_indexes=[0])]
    )
    inside.run(lambda broker: set_role(broker, role))
    try:
        response = wire.call(request, DescribeProducersResponse, 0)
    finally:
        inside.run(lambda broker: set_role(broker, Role.LEADER))
    (answer,) = response.topics[0].partitions
    assert answer.error_code == code
    assert [each.producer_id for each in answer.active_producers] == ([] if code else [7])
