"""What every API is checked for.

The matrix names for each API a request, the permission that is enough for it, and where in the response
a refusal stands. Each row is tried without any permission, with all but this one, with this one alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from server_kit.access import Kind, Op, entry, grant
from server_kit.broker_thread import BrokerThread
from server_kit.calls import Topic, batch_of, create_topic, fetch_request, produce_request
from server_kit.wire import Wire

from ottla.cluster.security.acls import CLUSTER_NAME, Acl
from ottla.protocol.acls import AclOperation, AclResource
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.message import Message
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from ottla.protocol.messages.describe_topic_partitions import (
    CursorRequest,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from ottla.protocol.messages.produce import ProduceResponse
from ottla.server import handlers
from ottla.server.api import DECLARED
from ottla.server.broker import Broker
from ottla.server.security.guards.table import GUARDS

Permit = tuple[AclOperation, AclResource, str]

CLUSTER = CLUSTER_NAME


def on_topic(operation: AclOperation) -> Permit:
    return operation, Kind.TOPIC, "orders"


def on_group(operation: AclOperation) -> Permit:
    return operation, Kind.GROUP, "readers"


def on_transaction(operation: AclOperation) -> Permit:
    return operation, Kind.TRANSACTIONAL_ID, "payments"


def on_cluster(operation: AclOperation) -> Permit:
    return operation, Kind.CLUSTER, CLUSTER


@dataclass
class Row:
    """A request of an API, what it needs, and the codes that a response says of it."""

    api: ApiKey
    fields: dict[str, Any]
    needs: list[Permit]
    codes: Callable[[Any], list[int]]
    refusal: ErrorCode
    version: int | None = None

    def __str__(self) -> str:
        return f"{self.api.name}-v{'' if self.version is None else self.version}"

    def classes(self) -> tuple[type[Message], type[Message]]:
        module = __import__(f"ottla.protocol.messages.{self.api.name.lower()}", fromlist=["x"])
        request = DECLARED[self.api].request
        response = getattr(module, request.__name__.removesuffix("Request") + "Response")
        return request, response

    def call(self, wire: Wire) -> Any:
        request, response = self.classes()
        version = DECLARED[self.api].versions[1] if self.version is None else self.version
        return wire.call(request(**_built(request, self.fields)), response, version)


def _built(request: type[Message], fields: dict[str, Any]) -> dict[str, Any]:
    """Parts that are written as dictionaries with their class as "is"."""
    module = __import__(request.__module__, fromlist=["x"])

    def build(value: Any) -> Any:
        if isinstance(value, dict):
            return getattr(module, value["is"])(
                **{name: build(each) for name, each in value.items() if name != "is"}
            )
        if isinstance(value, list):
            return [build(each) for each in value]
        return value

    return {name: build(value) for name, value in fields.items()}


def whole(response: Any) -> list[int]:
    return [response.error_code]


def of(*path: str) -> Callable[[Any], list[int]]:
    """The numbers at the end of a path of lists."""

    def codes(response: Any) -> list[int]:
        found = [response]
        for name in path[:-1]:
            found = [each for one in found for each in getattr(one, name)]
        return [getattr(each, path[-1]) for each in found]

    return codes


NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED

NO_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED

NO_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED

NO_ID = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

TOPIC_PARTITION = {
    "is": "OffsetCommitRequestPartition",
    "partition_index": 0,
    "committed_offset": 1,
}

PRODUCER = {"producer_id": 5, "producer_epoch": 0}

K = ApiKey

ROWS = [
    Row(K.LIST_OFFSETS, {"topics": [{"is": "ListOffsetsTopic", "name": "orders", "partitions": [
        {"is": "ListOffsetsPartition", "partition_index": 0, "timestamp": -1}]}]},
        [on_topic(Op.DESCRIBE)], of("topics", "partitions", "error_code"), NO_TOPIC),
    Row(K.METADATA, {"topics": [{"is": "MetadataRequestTopic", "name": "orders"}]},
        [on_topic(Op.DESCRIBE)], of("topics", "error_code"), NO_TOPIC),
    Row(K.OFFSET_COMMIT, {"group_id": "readers", "topics": [{"is": "OffsetCommitRequestTopic",
        "name": "orders", "partitions": [TOPIC_PARTITION]}]},
        [on_group(Op.READ), on_topic(Op.READ)], of("topics", "partitions", "error_code"), NO_GROUP, 8),
    Row(K.OFFSET_FETCH, {"groups": [{"is": "OffsetFetchRequestGroup", "group_id": "readers",
        "topics": None}]}, [on_group(Op.DESCRIBE)], of("groups", "error_code"), NO_GROUP, 9),
    Row(K.OFFSET_FETCH, {"group_id": "readers", "topics": None},
        [on_group(Op.DESCRIBE)], whole, NO_GROUP, 7),
    Row(K.FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": ["readers"]},
        [on_group(Op.DESCRIBE)], of("coordinators", "error_code"), NO_GROUP),
    Row(K.FIND_COORDINATOR, {"key_type": 1, "key": "payments"},
        [on_transaction(Op.DESCRIBE)], whole, NO_ID, 3),
    Row(K.JOIN_GROUP, {"group_id": "readers", "session_timeout_ms": 10_000,
        "protocol_type": "consumer", "rebalance_timeout_ms": 10_000},
        [on_group(Op.READ)], whole, NO_GROUP),
    Row(K.HEARTBEAT, {"group_id": "readers"}, [on_group(Op.READ)], whole, NO_GROUP),
    Row(K.LEAVE_GROUP, {"group_id": "readers"}, [on_group(Op.READ)], whole, NO_GROUP),
    Row(K.SYNC_GROUP, {"group_id": "readers", "protocol_type": "c", "protocol_name": "r"},
        [on_group(Op.READ)], whole, NO_GROUP),
    Row(K.DESCRIBE_GROUPS, {"groups": ["readers"]}, [on_group(Op.DESCRIBE)],
        of("groups", "error_code"), NO_GROUP),
    Row(K.CREATE_TOPICS, {"topics": [{"is": "CreatableTopic", "name": "orders", "num_partitions": 1,
        "replication_factor": 1}]}, [on_topic(Op.CREATE)], of("topics", "error_code"), NO_TOPIC),
    Row(K.CREATE_TOPICS, {"topics": [{"is": "CreatableTopic", "name": "orders", "num_partitions": 1,
        "replication_factor": 1}]}, [on_cluster(Op.CREATE)], of("topics", "error_code"), NO_TOPIC),
    Row(K.DELETE_TOPICS, {"timeout_ms": 9000,
        "topics": [{"is": "DeleteTopicState", "name": "orders-to-go"}]},
        [(Op.DELETE, Kind.TOPIC, "orders-to-go")], of("responses", "error_code"), NO_TOPIC),
    Row(K.DELETE_TOPICS, {"timeout_ms": 9000, "topic_names": ["orders-to-go"]},
        [(Op.DELETE, Kind.TOPIC, "orders-to-go")], of("responses", "error_code"), NO_TOPIC, 5),
    Row(K.DELETE_RECORDS, {"topics": [{"is": "DeleteRecordsTopic", "name": "orders", "partitions": [
        {"is": "DeleteRecordsPartition", "partition_index": 0, "offset": 0}]}], "timeout_ms": 1000},
        [on_topic(Op.DELETE)], of("topics", "partitions", "error_code"), NO_TOPIC),
    Row(K.DELETE_RECORDS_AT, {"topics": [{"is": "DeleteRecordsAtTopic", "name": "orders",
        "partitions": [{"is": "DeleteRecordsAtPartition", "partition_index": 0, "ranges": [
            {"is": "DeletedRange", "first_offset": 99, "last_offset": 99}]}]}], "timeout_ms": 1000},
        [on_topic(Op.DELETE)], of("topics", "partitions", "error_code"), NO_TOPIC),
    Row(K.INIT_PRODUCER_ID, {"transactional_id": "payments", "transaction_timeout_ms": 1000},
        [on_transaction(Op.WRITE)], whole, NO_ID, 4),
    Row(K.INIT_PRODUCER_ID, {"transactional_id": "payments", "transaction_timeout_ms": 1000,
        "enable2_pc": True}, [on_transaction(Op.WRITE), on_transaction(Op.TWO_PHASE_COMMIT)], whole,
        NO_ID, 6),
    Row(K.INIT_PRODUCER_ID, {"transactional_id": None}, [on_topic(Op.WRITE)], whole, NO_CLUSTER, 4),
    Row(K.INIT_PRODUCER_ID, {"transactional_id": None}, [on_cluster(Op.IDEMPOTENT_WRITE)], whole,
        NO_CLUSTER, 4),
    Row(K.OFFSET_FOR_LEADER_EPOCH, {"topics": [{"is": "OffsetForLeaderTopic", "topic": "orders",
        "partitions": [{"is": "OffsetForLeaderPartition", "partition": 0, "leader_epoch": 0}]}]},
        [on_topic(Op.DESCRIBE)], of("topics", "partitions", "error_code"), NO_TOPIC),
    Row(K.OFFSET_FOR_LEADER_EPOCH, {"topics": [{"is": "OffsetForLeaderTopic", "topic": "orders",
        "partitions": [{"is": "OffsetForLeaderPartition", "partition": 0, "leader_epoch": 0}]}]},
        [on_cluster(Op.CLUSTER_ACTION)], of("topics", "partitions", "error_code"), NO_TOPIC),
    Row(K.ADD_PARTITIONS_TO_TXN, {"transactions": []}, [on_cluster(Op.CLUSTER_ACTION)], whole,
        NO_CLUSTER),
    Row(K.ADD_OFFSETS_TO_TXN, {"transactional_id": "payments", "group_id": "readers", **PRODUCER},
        [on_transaction(Op.WRITE), on_group(Op.READ)], whole, NO_ID),
    Row(K.END_TXN, {"transactional_id": "payments", **PRODUCER}, [on_transaction(Op.WRITE)], whole,
        NO_ID),
    Row(K.WRITE_TXN_MARKERS, {"markers": [{"is": "WritableTxnMarker", **PRODUCER, "topics": [
        {"is": "WritableTxnMarkerTopic", "name": "nowhere", "partition_indexes": [0]}]}]},
        [on_cluster(Op.CLUSTER_ACTION)], of("markers", "topics", "partitions", "error_code"),
        NO_CLUSTER),
    Row(K.WRITE_TXN_MARKERS, {"markers": [{"is": "WritableTxnMarker", **PRODUCER, "topics": [
        {"is": "WritableTxnMarkerTopic", "name": "nowhere", "partition_indexes": [0]}]}]},
        [on_cluster(Op.ALTER)], of("markers", "topics", "partitions", "error_code"), NO_CLUSTER),
    Row(K.TXN_OFFSET_COMMIT, {"transactional_id": "payments", "group_id": "readers", **PRODUCER,
        "topics": [{"is": "TxnOffsetCommitRequestTopic", "name": "orders", "partitions": [
            {"is": "TxnOffsetCommitRequestPartition", "partition_index": 0}]}]},
        [on_transaction(Op.WRITE), on_group(Op.READ), on_topic(Op.READ)],
        of("topics", "partitions", "error_code"), NO_ID),
    Row(K.DESCRIBE_ACLS, {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1,
        "permission_type": 1, "resource_name_filter": None, "principal_filter": None,
        "host_filter": None}, [on_cluster(Op.DESCRIBE)], whole, NO_CLUSTER),
    Row(K.CREATE_ACLS, {"creations": [{"is": "AclCreation", "resource_type": 2,
        "resource_name": "mine", "resource_pattern_type": 3, "principal": "User:x", "host": "*",
        "operation": 3, "permission_type": 3}]}, [on_cluster(Op.ALTER)],
        of("results", "error_code"), NO_CLUSTER),
    Row(K.DELETE_ACLS, {"filters": [{"is": "DeleteAclsFilter", "resource_type_filter": 2,
        "resource_name_filter": "mine", "pattern_type_filter": 3, "principal_filter": None,
        "host_filter": None, "operation": 1, "permission_type": 1}]}, [on_cluster(Op.ALTER)],
        of("filter_results", "error_code"), NO_CLUSTER),
    *(
        Row(api, {"resources": [{"is": part, "resource_type": kind, "resource_name": name,
            ("configuration_keys" if api is K.DESCRIBE_CONFIGS else "configs"): []}]},
            [(operation, resource, resource_name)], of(answers, "error_code"), refusal)
        for api, part, operation, answers in (
            (K.DESCRIBE_CONFIGS, "DescribeConfigsResource", Op.DESCRIBE_CONFIGS, "results"),
            (K.ALTER_CONFIGS, "AlterConfigsResource", Op.ALTER_CONFIGS, "responses"),
            (K.INCREMENTAL_ALTER_CONFIGS, "AlterConfigsResource", Op.ALTER_CONFIGS, "responses"),
        )
        for kind, name, resource, resource_name, refusal in (
            (2, "orders", Kind.TOPIC, "orders", NO_TOPIC),
            (4, "1", Kind.CLUSTER, CLUSTER, NO_CLUSTER),
            (32, "readers", Kind.GROUP, "readers", NO_GROUP),
        )
    ),
    Row(K.DESCRIBE_LOG_DIRS, {"topics": []}, [on_cluster(Op.DESCRIBE)], whole, NO_CLUSTER),
    Row(K.CREATE_PARTITIONS, {"topics": [{"is": "CreatePartitionsTopic", "name": "orders", "count": 1}],
        "timeout_ms": 1000}, [on_topic(Op.ALTER)], of("results", "error_code"), NO_TOPIC),
    Row(K.DELETE_GROUPS, {"groups_names": ["readers"]}, [on_group(Op.DELETE)],
        of("results", "error_code"), NO_GROUP),
    Row(K.ELECT_LEADERS, {"election_type": 0, "topic_partitions": [], "timeout_ms": 1000},
        [on_cluster(Op.ALTER)], whole, NO_CLUSTER),
    Row(K.ELECT_LEADERS, {"topic_partitions": [{"is": "TopicPartitions", "topic": "orders",
        "partitions": [0]}], "timeout_ms": 1000}, [on_cluster(Op.ALTER)],
        of("replica_election_results", "partition_result", "error_code"), NO_CLUSTER, 0),
    Row(K.ALTER_PARTITION_REASSIGNMENTS, {"topics": [], "timeout_ms": 1000}, [on_cluster(Op.ALTER)],
        whole, NO_CLUSTER),
    Row(K.LIST_PARTITION_REASSIGNMENTS, {"topics": None, "timeout_ms": 1000},
        [on_cluster(Op.DESCRIBE)], whole, NO_CLUSTER),
    Row(K.OFFSET_DELETE, {"group_id": "readers", "topics": []}, [on_group(Op.DELETE)], whole,
        NO_GROUP),
    Row(K.DESCRIBE_CLIENT_QUOTAS, {"components": []}, [on_cluster(Op.DESCRIBE_CONFIGS)], whole,
        NO_CLUSTER),
    Row(K.ALTER_CLIENT_QUOTAS, {"entries": [{"is": "EntryDataRequest", "entity": [
        {"is": "EntityDataRequest", "entity_type": "user", "entity_name": "x"}], "ops": []}]},
        [on_cluster(Op.ALTER_CONFIGS)], of("entries", "error_code"), NO_CLUSTER),
    Row(K.DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": []}, [on_cluster(Op.DESCRIBE)], whole,
        NO_CLUSTER),
    Row(K.ALTER_USER_SCRAM_CREDENTIALS, {"deletions": [{"is": "ScramCredentialDeletion",
        "name": "nobody", "mechanism": 1}]}, [on_cluster(Op.ALTER)], of("results", "error_code"),
        NO_CLUSTER),
    Row(K.ALTER_PARTITION, {"broker_id": 1, "broker_epoch": -5, "topics": []},
        [on_cluster(Op.CLUSTER_ACTION)], whole, NO_CLUSTER),
    Row(K.UPDATE_FEATURES, {"feature_updates": [], "timeout_ms": 1000}, [on_cluster(Op.ALTER)], whole,
        NO_CLUSTER),
    Row(K.DESCRIBE_PRODUCERS, {"topics": [{"is": "TopicRequest", "name": "orders",
        "partition_indexes": [0]}]}, [on_topic(Op.READ)], of("topics", "partitions", "error_code"),
        NO_TOPIC),
    Row(K.BROKER_HEARTBEAT, {"broker_id": 7, "broker_epoch": -5}, [on_cluster(Op.CLUSTER_ACTION)],
        whole, NO_CLUSTER),
    Row(K.UNREGISTER_BROKER, {"broker_id": 7}, [on_cluster(Op.ALTER)], whole, NO_CLUSTER),
    Row(K.ALTER_REPLICA_LOG_DIRS, {"dirs": [{"is": "AlterReplicaLogDir", "path": "/nowhere",
        "topics": [{"is": "AlterReplicaLogDirTopic", "name": "orders", "partitions": [0]}]}]},
        [on_cluster(Op.ALTER)], of("results", "partitions", "error_code"), NO_CLUSTER),
    Row(K.DESCRIBE_TRANSACTIONS, {"transactional_ids": ["payments"]}, [on_transaction(Op.DESCRIBE)],
        of("transaction_states", "error_code"), NO_ID),
    Row(K.ALLOCATE_PRODUCER_IDS, {"broker_id": 7, "broker_epoch": -5},
        [on_cluster(Op.CLUSTER_ACTION)], whole, NO_CLUSTER),
    Row(K.CONSUMER_GROUP_HEARTBEAT, {"group_id": "readers", "member_id": "m", "member_epoch": 9},
        [on_group(Op.READ)], whole, NO_GROUP),
    Row(K.CONSUMER_GROUP_DESCRIBE, {"group_ids": ["readers"]}, [on_group(Op.DESCRIBE)],
        of("groups", "error_code"), NO_GROUP),
    Row(K.LIST_CONFIG_RESOURCES, {"resource_types": []}, [on_cluster(Op.DESCRIBE_CONFIGS)], whole,
        NO_CLUSTER),
    Row(K.DESCRIBE_TOPIC_PARTITIONS, {"topics": [{"is": "TopicRequest", "name": "orders"}],
        "response_partition_limit": 10}, [on_topic(Op.DESCRIBE)], of("topics", "error_code"), NO_TOPIC),
    Row(K.LIST_CLIENTS, {}, [on_cluster(Op.DESCRIBE)], whole, NO_CLUSTER),
]  # fmt: skip

# Tested below, each on its own: what is left out of a list, what goes to the log, nothing at all.
ELSEWHERE = {
    K.PRODUCE, K.FETCH, K.LIST_GROUPS, K.LIST_TRANSACTIONS, K.DESCRIBE_CLUSTER, K.API_VERSIONS,
    K.SASL_HANDSHAKE, K.SASL_AUTHENTICATE,
}  # fmt: skip

REFUSALS = {NO_TOPIC, NO_GROUP, NO_CLUSTER, NO_ID}


def test_every_api_has_a_row() -> None:
    handlers.load()
    assert set(DECLARED) == {row.api for row in ROWS} | ELSEWHERE
    assert set(DECLARED) - set(GUARDS) == {K.PRODUCE, K.FETCH}


def every_permission_but(needs: list[Permit]) -> list[Acl]:
    """Entries for every operation that neither is needed nor implies what is."""
    names = {
        Kind.TOPIC: ("orders", "orders-to-go"),
        Kind.GROUP: ("readers",),
        Kind.TRANSACTIONAL_ID: ("payments",),
        Kind.CLUSTER: (CLUSTER,),
    }
    operation, kind, name = needs[0]
    implying = {operation}
    if operation is Op.DESCRIBE:
        implying |= {Op.READ, Op.WRITE, Op.DELETE, Op.ALTER}
    if operation is Op.DESCRIBE_CONFIGS:
        implying |= {Op.ALTER_CONFIGS}
    return [
        entry(each, one, resource)
        for resource, all_names in names.items()
        for one in all_names
        for each in Op
        if each > Op.ALL
        if not (resource is kind and one == name and each in implying)
    ]


ALTERNATIVES = {
    K.OFFSET_FOR_LEADER_EPOCH, K.CREATE_TOPICS, K.INIT_PRODUCER_ID, K.WRITE_TXN_MARKERS,
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_an_api_needs_what_it_needs_in_kafka(
    row: Row, secured: BrokerThread, alice: Wire, orders: Topic, admin: Wire
) -> None:
    grant(secured)
    refused = row.codes(row.call(alice))
    assert refused == [row.refusal]
    if row.api not in ALTERNATIVES:
        grant(secured, *every_permission_but(row.needs))
        assert row.codes(row.call(alice)) == [row.refusal]
    grant(secured, *(entry(operation, name, kind) for operation, kind, name in row.needs))
    allowed = row.codes(row.call(alice))
    assert not set(allowed) & REFUSALS


# What the controller decides.
DECIDED = {
    K.CREATE_TOPICS, K.DELETE_TOPICS, K.CREATE_PARTITIONS, K.ALTER_CONFIGS,
    K.INCREMENTAL_ALTER_CONFIGS, K.CREATE_ACLS, K.DELETE_ACLS, K.ALTER_CLIENT_QUOTAS,
    K.ALTER_USER_SCRAM_CREDENTIALS, K.LIST_PARTITION_REASSIGNMENTS, K.UPDATE_FEATURES,
    K.UNREGISTER_BROKER, K.ALTER_PARTITION, K.BROKER_HEARTBEAT, K.ALLOCATE_PRODUCER_IDS,
}  # fmt: skip


@pytest.mark.parametrize("row", [row for row in ROWS if row.api in DECIDED], ids=str)
def test_the_want_of_a_controller_is_told_in_the_words_of_the_api(
    row: Row, secured: BrokerThread, admin: Wire, orders: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant(secured, entry(Op.READ, "mine"))

    def there_is_none(_: Broker) -> None:
        raise ProtocolError(ErrorCode.NOT_CONTROLLER)

    with monkeypatch.context() as patch:
        patch.setattr(Broker, "controller", property(there_is_none))
        codes = row.codes(row.call(admin))
    assert codes == [ErrorCode.NOT_CONTROLLER]


def test_produce_needs_write(
    secured: BrokerThread, alice: Wire, admin: Wire, orders: Topic
) -> None:
    for version in (9, 13):
        for entries, code in (
            ((), NO_TOPIC),
            ((entry(Op.READ), entry(Op.WRITE, "other")), NO_TOPIC),
            ((entry(Op.WRITE),), 0),
        ):
            grant(secured, *entries)
            answer = alice.call(
                produce_request(orders, (0, batch_of(b"x"))), ProduceResponse, version
            )
            assert of("responses", "partition_responses", "error_code")(answer) == [code]


def test_fetch_needs_read_and_a_replica_the_cluster(
    secured: BrokerThread, alice: Wire, orders: Topic
) -> None:
    for version in (11, 12, 13):
        for entries, code in (
            ((), NO_TOPIC),
            ((entry(Op.WRITE), entry(Op.DESCRIBE)), NO_TOPIC),
            ((entry(Op.READ),), 0),
        ):
            grant(secured, *entries)
            answer = alice.call(fetch_request(orders, (0, 0)), FetchResponse, version)
            assert of("responses", "partitions", "error_code")(answer) == [code]
            if code:
                assert not answer.responses[0].partitions[0].records
    request = fetch_request(orders, (0, 0))
    request.replica_id = 1
    grant(secured, entry(Op.READ))
    answer = alice.call(request, FetchResponse, 12)
    assert of("responses", "partitions", "error_code")(answer) == [NO_TOPIC]


def test_a_topic_that_may_not_be_seen_is_not_confirmed_to_exist(
    secured: BrokerThread, alice: Wire, orders: Topic
) -> None:
    grant(secured)
    asked = [MetadataRequestTopic(name=name) for name in ("orders", "there-is-none")]
    told = alice.call(MetadataRequest(topics=asked), MetadataResponse, 12).topics
    assert {(each.error_code, each.topic_id, len(each.partitions)) for each in told} == {
        (NO_TOPIC, bytes(16), 0)
    }
    by_id = alice.call(
        MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=orders.id)]),
        MetadataResponse,
        12,
    ).topics
    assert [(each.error_code, each.name) for each in by_id] == [(NO_TOPIC, None)]
    assert alice.call(MetadataRequest(topics=None), MetadataResponse, 12).topics == []
    assert alice.call(MetadataRequest(topics=[]), MetadataResponse, 0).topics == []
    # In version 0 an empty list means all: what was taken out must not become that.
    only = [MetadataRequestTopic(name="orders")]
    old = alice.call(MetadataRequest(topics=only), MetadataResponse, 0).topics
    assert [(each.name, each.error_code) for each in old] == [("orders", NO_TOPIC)]
    grant(secured, entry(Op.DESCRIBE))
    seen = alice.call(MetadataRequest(topics=None), MetadataResponse, 12).topics
    assert [each.name for each in seen] == ["orders"]


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize("name", [None, "orders"])
def test_an_id_that_is_of_no_use_yet_is_answered(
    secured: BrokerThread, alice: Wire, orders: Topic, version: int, name: str | None
) -> None:
    """These versions have ids in their requests, which no broker heeds."""
    grant(secured)
    asked = MetadataRequestTopic(name=name, topic_id=orders.id)
    (told,) = alice.call(MetadataRequest(topics=[asked]), MetadataResponse, version).topics
    refusal = ErrorCode.INVALID_REQUEST if name is None else NO_TOPIC
    assert (told.error_code, told.name, told.partitions) == (refusal, name or "", [])


def test_pages_go_on_after_a_topic_that_may_not_be_seen(
    secured: BrokerThread, alice: Wire, admin: Wire
) -> None:
    for name in ("pages-1", "pages-2", "pages-3", "pages-4", "pages-5"):
        create_topic(admin, name=name)
    seen = ("pages-1", "pages-3", "pages-4")
    grant(secured, *(entry(Op.DESCRIBE, name) for name in seen))
    found: list[str] = []
    cursor = CursorRequest(topic_name="", partition_index=0)
    while True:
        page = alice.call(
            DescribeTopicPartitionsRequest(topics=[], response_partition_limit=1, cursor=cursor),
            DescribeTopicPartitionsResponse,
            0,
        )
        found += [each.name for each in page.topics]
        if page.next_cursor is None:
            break
        assert page.next_cursor.topic_name in seen
        cursor = CursorRequest(topic_name=page.next_cursor.topic_name, partition_index=0)
    assert found == list(seen)


def test_a_topic_is_made_on_first_use_only_by_who_may(
    secured: BrokerThread, alice: Wire, orders: Topic
) -> None:
    asked = MetadataRequest(
        topics=[MetadataRequestTopic(name="orders-new")], allow_auto_topic_creation=True
    )
    grant(secured, entry(Op.DESCRIBE, "orders-new"))
    assert alice.call(asked, MetadataResponse, 12).topics[0].error_code == NO_TOPIC
    assert "orders-new" not in secured.broker.image.topics
    grant(secured, entry(Op.DESCRIBE, "orders-new"), entry(Op.CREATE, "orders-new"))
    asked.topics = [MetadataRequestTopic(name="orders-new")]
    assert alice.call(asked, MetadataResponse, 12).topics[0].error_code == 0
    assert "orders-new" in secured.broker.image.topics


def test_what_may_be_done_is_told(secured: BrokerThread, alice: Wire, orders: Topic) -> None:
    asked = MetadataRequest(
        topics=[MetadataRequestTopic(name="orders")],
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    grant(secured, entry(Op.READ))
    answer = alice.call(asked, MetadataResponse, 8)
    assert answer.topics[0].topic_authorized_operations == 1 << Op.READ | 1 << Op.DESCRIBE
    assert answer.cluster_authorized_operations == 0
    grant(secured, entry(Op.DESCRIBE), entry(Op.ALTER, CLUSTER, Kind.CLUSTER))
    answer = alice.call(asked, MetadataResponse, 8)
    assert answer.topics[0].topic_authorized_operations == 1 << Op.DESCRIBE
    assert answer.cluster_authorized_operations == 1 << Op.ALTER | 1 << Op.DESCRIBE


def test_denials_are_in_the_audit_log(
    secured: BrokerThread, alice: Wire, orders: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    grant(secured)
    alice.call(MetadataRequest(topics=[MetadataRequestTopic(name="orders")]), MetadataResponse, 12)
    lines = [each.getMessage() for each in caplog.records if each.name == "ottla.audit"]
    assert any(
        "denied: principal=User:alice" in line and "DESCRIBE" in line and "orders" in line
        for line in lines
    )


def test_a_denied_topic_is_one_line_however_many_partitions_are_fetched(
    secured: BrokerThread, alice: Wire, orders: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    grant(secured)
    answer = alice.call(fetch_request(orders, (0, 0), (1, 0), (2, 0)), FetchResponse, 12)
    assert of("responses", "partitions", "error_code")(answer) == [NO_TOPIC] * 3
    lines = [each.getMessage() for each in caplog.records if each.name == "ottla.audit"]
    assert len([line for line in lines if "operation=READ" in line]) == 1


def test_what_was_denied_is_not_logged_as_done(
    secured: BrokerThread, alice: Wire, orders: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    """Denials are limited: who may do nothing fills no log, with however long a name of its own."""
    caplog.set_level("INFO", "ottla.audit")
    grant(secured)
    request = DeleteTopicsRequest(topic_names=["orders"], timeout_ms=1000)
    alice.send(request, 4, "x" * 30_000)
    (answer,) = alice.receive(DeleteTopicsResponse, 4).responses
    assert answer.error_code == NO_TOPIC
    lines = [each.getMessage() for each in caplog.records if each.name == "ottla.audit"]
    assert not [line for line in lines if "administrative" in line]
    assert [line for line in lines if "denied" in line]
    assert max(map(len, lines)) < 1_000
    # All partitions, which are not named.
    grant(secured, entry(Op.ALTER, CLUSTER_NAME, kind=Kind.CLUSTER))
    alice.call(ElectLeadersRequest(topic_partitions=None), ElectLeadersResponse, 2)
    assert "about='all partitions'" in caplog.text
