"""What one broker without an authorizer answers to those who run clusters. Each answer is the one that
Apache Kafka 4.3.1 gave to the same request (its own sentences aside)."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import Topic, create_topic
from server_kit.wire import Wire

from ottla.cluster.controller import Controller
from ottla.cluster.decisions.partitions import ElectionResult
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from ottla.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from ottla.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from ottla.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from ottla.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
NOT_NEEDED = ErrorCode.ELECTION_NOT_NEEDED
BAD = ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.fixture
def broker_id(wire: Wire) -> int:
    return wire.call(MetadataRequest(topics=[]), MetadataResponse, 9).brokers[0].node_id


@pytest.mark.parametrize("version", range(4))
def test_acls(wire: Wire, version: int) -> None:
    described = wire.call(DescribeAclsRequest(), DescribeAclsResponse, version)
    assert described.error_code == ErrorCode.SECURITY_DISABLED
    assert described.error_message
    assert described.resources == []
    acl = AclCreation(
        resource_type=2, resource_name="t", principal="User:a", host="*", operation=3,
        permission_type=3,
    )  # fmt: skip
    created = wire.call(CreateAclsRequest(creations=[acl, acl]), CreateAclsResponse, version)
    assert [each.error_code for each in created.results] == [ErrorCode.SECURITY_DISABLED] * 2
    some = DeleteAclsFilter(resource_type_filter=1, operation=1, permission_type=1)
    deleted = wire.call(DeleteAclsRequest(filters=[some, some]), DeleteAclsResponse, version)
    assert [each.error_code for each in deleted.filter_results] == [ErrorCode.SECURITY_DISABLED] * 2


def component(kind: str, match_type: int, match: str | None = None) -> ComponentData:
    return ComponentData(entity_type=kind, match_type=match_type, match=match)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([], ErrorCode.NONE),
        ([component("user", 2)], ErrorCode.NONE),
        ([component("user", 0, "x"), component("client-id", 1)], ErrorCode.NONE),
        ([component("unheard-of", 2)], ErrorCode.UNSUPPORTED_VERSION),
        ([component("", 2)], ErrorCode.INVALID_REQUEST),
        ([component("user", 2), component("user", 1)], ErrorCode.INVALID_REQUEST),
        ([component("user", 7)], ErrorCode.INVALID_REQUEST),
        ([component("user", 0)], ErrorCode.INVALID_REQUEST),
        ([component("user", 1, "x")], ErrorCode.INVALID_REQUEST),
        ([component("user", 2, "x")], ErrorCode.INVALID_REQUEST),
        ([component("user", 0, "x"), component("ip", 0, "::1")], ErrorCode.INVALID_REQUEST),
    ],
)
def test_quotas(wire: Wire, components: list[ComponentData], code: int, version: int) -> None:
    request = DescribeClientQuotasRequest(components=components)
    answer = wire.call(request, DescribeClientQuotasResponse, version)
    assert answer.error_code == code
    assert answer.entries == (None if code else [])


@pytest.mark.parametrize("election", [0, 1, 5])
def test_elections(wire: Wire, election: int) -> None:
    topic = create_topic(wire, 2)
    named = [
        TopicPartitions(topic=topic.name, partitions=[0, 1, 1, 9]),
        TopicPartitions(topic="nobody", partitions=[0]),
        TopicPartitions(topic=topic.name, partitions=[1]),
    ]
    request = ElectLeadersRequest(election_type=election, topic_partitions=named, timeout_ms=3000)
    answer = wire.call(request, ElectLeadersResponse, 2)
    codes = [
        [each.error_code for each in result.partition_result]
        for result in answer.replica_election_results
    ]
    if election == 5:
        invalid = ErrorCode.INVALID_REQUEST
        assert (answer.error_code, codes) == (invalid, [[invalid] * 4, [invalid], [invalid]])
        return
    assert answer.error_code == 0
    assert codes == [[NOT_NEEDED, NOT_NEEDED, NOT_NEEDED, UNKNOWN], [UNKNOWN], [NOT_NEEDED]]
    request = ElectLeadersRequest(election_type=election, topic_partitions=None, timeout_ms=3000)
    everything = wire.call(request, ElectLeadersResponse, 2)
    assert topic.name in {each.topic for each in everything.replica_election_results}
    assert not any(each.partition_result for each in everything.replica_election_results)


@pytest.mark.parametrize("version", [0, 1])
def test_elections_of_older_versions(wire: Wire, topic: Topic, version: int) -> None:
    named = [TopicPartitions(topic=topic.name, partitions=[0])]
    request = ElectLeadersRequest(topic_partitions=named, timeout_ms=3000)
    answer = wire.call(request, ElectLeadersResponse, version)
    (result,) = answer.replica_election_results
    assert [each.error_code for each in result.partition_result] == [NOT_NEEDED]


def test_an_election_of_all_tells_what_failed(
    inside: BrokerThread, wire: Wire, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preferred leader that is away, say. What is led as it should be is left out."""
    failed = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    others = [create_topic(wire).name for _ in range(3)]
    codes = dict(zip(others, (failed, NOT_NEEDED, UNKNOWN), strict=True))

    async def elect(
        _: Controller, _kind: object, wanted: Sequence[tuple[str, int]]
    ) -> list[ElectionResult]:
        return [
            ElectionResult(name, index, ProtocolError(codes[name]) if name in codes else None)
            for name, index in wanted
        ]

    monkeypatch.setattr(Controller, "elect_leaders", elect)
    request = ElectLeadersRequest(topic_partitions=None, timeout_ms=3000)
    answer = wire.call(request, ElectLeadersResponse, 2)
    told = {
        each.topic: [(one.partition_id, one.error_code) for one in each.partition_result]
        for each in answer.replica_election_results
    }
    assert answer.error_code == 0
    assert told[topic.name] == [(0, 0)]
    assert [told[name] for name in others] == [[(0, failed)], [], []]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_elections_without_a_controller(
    inside: BrokerThread, wire: Wire, topic: Topic, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise ProtocolError(ErrorCode.NOT_CONTROLLER)

    monkeypatch.setattr(Controller, "elect_leaders", refuse)
    code = ErrorCode.NOT_CONTROLLER
    for named in ([TopicPartitions(topic=topic.name, partitions=[0])], None):
        request = ElectLeadersRequest(topic_partitions=named, timeout_ms=3000)
        answer = wire.call(request, ElectLeadersResponse, version)
        assert answer.error_code == (code if version else 0)
        codes = [
            [each.error_code for each in result.partition_result]
            for result in answer.replica_election_results
        ]
        assert codes == ([[code]] if named else [])


def test_a_partition_named_twice_is_moved_nowhere(wire: Wire, broker_id: int) -> None:
    topic = create_topic(wire, 2)

    def of(*indexes: int) -> ReassignableTopic:
        return ReassignableTopic(
            name=topic.name,
            partitions=[
                ReassignablePartition(partition_index=each, replicas=[broker_id])
                for each in indexes
            ],
        )

    request = AlterPartitionReassignmentsRequest(timeout_ms=3000, topics=[of(0, 1), of(0)])
    answer = wire.call(request, AlterPartitionReassignmentsResponse, 0)
    (first, other), (second,) = (each.partitions for each in answer.responses)
    assert other.error_code == 0
    for each in (first, second):
        assert each.error_code == ErrorCode.INVALID_REQUEST
        assert each.error_message == f"Partition {topic.name}-0 is named twice in the request."


@pytest.mark.parametrize("version", [0, 1])
def test_reassignments(wire: Wire, broker_id: int, version: int) -> None:
    topic = create_topic(wire, 5)
    other = broker_id + 7

    def wanted(*replicas: list[int] | None) -> list[ReassignablePartition]:
        return [
            ReassignablePartition(partition_index=index, replicas=each)
            for index, each in enumerate(replicas)
        ]

    request = AlterPartitionReassignmentsRequest(
        timeout_ms=3000,
        topics=[
            ReassignableTopic(
                name=topic.name,
                partitions=wanted(
                    [broker_id], [other], [broker_id, broker_id], [], None, [broker_id], None
                ),
            ),
            ReassignableTopic(name="nobody", partitions=wanted([broker_id])),
        ],
    )
    answer = wire.call(request, AlterPartitionReassignmentsResponse, version)
    assert answer.error_code == 0
    assert [[each.error_code for each in topics.partitions] for topics in answer.responses] == [
        [0, BAD, BAD, BAD, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, UNKNOWN, UNKNOWN],
        [UNKNOWN],
    ]
    for topics in (
        None,
        [ListPartitionReassignmentsTopics(name=topic.name, partition_indexes=[0])],
    ):
        listed = wire.call(
            ListPartitionReassignmentsRequest(topics=topics), ListPartitionReassignmentsResponse, 0
        )
        assert (listed.error_code, listed.topics) == (0, [])


@pytest.mark.parametrize("version", range(2, 8))
def test_topics_with_the_default_counts(wire: Wire, version: int) -> None:
    """kafkajs asks for them in version 3."""
    name = f"default-counts-{version}"
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)],
        timeout_ms=20_000,
    )
    answer = wire.call(request, CreateTopicsResponse, version)
    assert [each.error_code for each in answer.topics] == [0]


# What is not served -----------------------------------------------------------------------------


@pytest.mark.differs("Kafka serves it")
def test_an_api_that_is_not_served_says_so_in_its_own_response(wire: Wire) -> None:
    if wire.is_elsewhere:
        pytest.fail("it is served there")
    served = wire.call(ApiVersionsRequest(), ApiVersionsResponse, 0)
    request = DescribeDelegationTokenRequest()
    assert request.api_key not in {each.api_key for each in served.api_keys}
    answer = wire.call(request, DescribeDelegationTokenResponse, 0)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    # The connection lives on.
    wire.call(MetadataRequest(topics=[]), MetadataResponse, 9)


@pytest.mark.parametrize(
    ("key", "version"),
    [(999, 0), (ApiKey.METADATA, 99), (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 99)],
)
def test_what_nobody_knows_closes_the_connection_with_a_line_in_the_log(
    inside: BrokerThread, key: int, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    header = struct.pack(">hhih", key, version, 77, 1) + b"c"
    with inside.wire() as wire:
        wire.send_raw(struct.pack(">i", len(header)) + header)
        assert wire.is_closed()
    assert f"unsupported request: key={int(key)} version={version}" in caplog.text
