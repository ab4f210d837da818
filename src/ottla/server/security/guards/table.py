"""The table: for each API, what its clients need, as in Kafka.

Produce and Fetch read their requests by themselves; their handlers ask `Topics` (hot.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ottla.protocol.acls import AclOperation, AclResource
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasResponse,
    EntityDataResponse,
    EntryDataResponse,
)
from ottla.protocol.messages.alter_configs import AlterConfigsResourceResponse
from ottla.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from ottla.protocol.messages.create_acls import AclCreationResult, CreateAclsResponse
from ottla.protocol.messages.create_partitions import CreatePartitionsTopicResult
from ottla.protocol.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsResponse
from ottla.protocol.messages.delete_groups import DeletableGroupResult
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsTopicResult,
)
from ottla.protocol.messages.delete_records_at import (
    DeleteRecordsAtPartitionResult,
    DeleteRecordsAtTopicResult,
)
from ottla.protocol.messages.describe_configs import DescribeConfigsResult
from ottla.protocol.messages.describe_producers import PartitionResponse, TopicResponse
from ottla.protocol.messages.elect_leaders import (
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse as IncrementalResponse,
)
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsTopicResponse,
)
from ottla.server.api import Answer, Request
from ottla.server.security.access import CLUSTER, GROUP, TOPIC, TRANSACTIONAL_ID, Access
from ottla.server.security.guards import groups, topics, transactions
from ottla.server.security.guards.tools import (
    REFUSAL,
    Guard,
    Guarded,
    Proceed,
    adding,
    anybody,
    listed,
    on_cluster,
    on_each,
    on_one,
    passed_on,
    then,
)
from ottla.server.turns import Steps

_Op = AclOperation
_NO_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def _refused_offsets(each: Any, code: ErrorCode) -> Steps[ListOffsetsTopicResponse]:
    partitions = yield from listed(
        each.partitions,
        lambda one: ListOffsetsPartitionResponse(
            partition_index=one.partition_index, error_code=code, timestamp=-1, offset=-1
        ),
    )
    return ListOffsetsTopicResponse(name=each.name, partitions=partitions)


def _refused_deletion(each: Any, code: ErrorCode) -> Steps[DeleteRecordsTopicResult]:
    partitions = yield from listed(
        each.partitions,
        lambda one: DeleteRecordsPartitionResult(
            partition_index=one.partition_index, error_code=code, low_watermark=-1
        ),
    )
    return DeleteRecordsTopicResult(name=each.name, partitions=partitions)


def _refused_marks(each: Any, code: ErrorCode) -> Steps[DeleteRecordsAtTopicResult]:
    partitions = yield from listed(
        each.partitions,
        lambda one: DeleteRecordsAtPartitionResult(
            partition_index=one.partition_index, error_code=code, error_message=code.message
        ),
    )
    return DeleteRecordsAtTopicResult(name=each.name, partitions=partitions)


def _refused_producers(each: Any, code: ErrorCode) -> Steps[TopicResponse]:
    partitions = yield from listed(
        each.partition_indexes,
        lambda index: PartitionResponse(partition_index=index, error_code=code, error_message=None),
    )
    return TopicResponse(name=each.name, partitions=partitions)


def _refused_growth(each: Any, code: ErrorCode) -> Steps[CreatePartitionsTopicResult]:
    yield
    return CreatePartitionsTopicResult(name=each.name, error_code=code, error_message=code.message)


def _refused_group(name: str, code: ErrorCode) -> Steps[DeletableGroupResult]:
    yield
    return DeletableGroupResult(group_id=name, error_code=code)


# What a configuration belongs to, by the numbers of the wire.
_CONFIGURED: Final[Mapping[int, AclResource]] = {
    2: TOPIC,
    4: CLUSTER,
    8: CLUSTER,
    16: CLUSTER,
    32: GROUP,
}


def _on_configs(operation: AclOperation, answers: str, kind: Any) -> Guard:
    def guard(access: Access, request: Request[Any], proceed: Proceed) -> Guarded:
        allowed, refused = [], []
        for each in request.message.resources:
            yield
            resource = _CONFIGURED.get(each.resource_type)
            if resource is None:
                allowed.append(each)  # the handler says what is wrong with it
                continue
            if resource is CLUSTER:
                may = access.cluster(operation)
            else:
                may = access.may(operation, resource, each.resource_name)
            if may:
                allowed.append(each)
                continue
            code = REFUSAL[resource]
            refused.append(
                kind(
                    error_code=code,
                    error_message=code.message,
                    resource_type=each.resource_type,
                    resource_name=each.resource_name,
                )
            )
        if not refused:
            return (yield from passed_on(proceed(request)))
        request.message.resources = allowed
        return (yield from then(proceed(request), adding(answers, refused)))

    return guard


# Refusals of requests whose every entry needs the cluster.


def _no_new_acls(request: Request[Any]) -> Answer:
    refusal = AclCreationResult(error_code=_NO_CLUSTER, error_message=_NO_CLUSTER.message)
    return CreateAclsResponse(results=[refusal] * len(request.message.creations))


def _no_fewer_acls(request: Request[Any]) -> Answer:
    refusal = DeleteAclsFilterResult(error_code=_NO_CLUSTER, error_message=_NO_CLUSTER.message)
    return DeleteAclsResponse(filter_results=[refusal] * len(request.message.filters))


def _no_other_users(request: Request[Any]) -> Guarded:
    message = request.message
    names: dict[str, None] = {}
    for each in (*message.deletions, *message.upsertions):
        names[each.name] = None
        yield
    results = yield from listed(
        names,
        lambda name: AlterUserScramCredentialsResult(
            user=name, error_code=_NO_CLUSTER, error_message=_NO_CLUSTER.message
        ),
    )
    return AlterUserScramCredentialsResponse(results=results)


def _no_other_quotas(request: Request[Any]) -> Guarded:
    entries = []
    for each in request.message.entries:
        entity = yield from listed(
            each.entity,
            lambda one: EntityDataResponse(
                entity_type=one.entity_type, entity_name=one.entity_name
            ),
        )
        entries.append(
            EntryDataResponse(
                error_code=_NO_CLUSTER, error_message=_NO_CLUSTER.message, entity=entity
            )
        )
        yield
    return AlterClientQuotasResponse(entries=entries)


def _no_other_folders(request: Request[Any]) -> Guarded:
    results = []
    for folder in request.message.dirs:
        for each in folder.topics:
            partitions = yield from listed(
                each.partitions,
                lambda index: AlterReplicaLogDirPartitionResult(
                    partition_index=index, error_code=_NO_CLUSTER
                ),
            )
            results.append(
                AlterReplicaLogDirTopicResult(topic_name=each.name, partitions=partitions)
            )
            yield
    return AlterReplicaLogDirsResponse(results=results)


def _no_elections(request: Request[Any]) -> Guarded:
    results = []
    for each in request.message.topic_partitions or ():
        partitions = yield from listed(
            each.partitions,
            lambda index: PartitionResult(
                partition_id=index, error_code=_NO_CLUSTER, error_message=_NO_CLUSTER.message
            ),
        )
        results.append(ReplicaElectionResult(topic=each.topic, partition_result=partitions))
        yield
    # In version 0 an error has no other place than at the partitions.
    code = _NO_CLUSTER if request.version >= 1 else 0
    return ElectLeadersResponse(error_code=code, replica_election_results=results)


_group_member = on_one(_Op.READ, GROUP, "group_id")

GUARDS: Final[Mapping[ApiKey, Guard]] = {
    ApiKey.LIST_OFFSETS: on_each(_Op.DESCRIBE, TOPIC, "topics", "topics", _refused_offsets),
    ApiKey.METADATA: topics.metadata,
    ApiKey.OFFSET_COMMIT: groups.offset_commit,
    ApiKey.OFFSET_FETCH: groups.offset_fetch,
    ApiKey.FIND_COORDINATOR: groups.find_coordinator,
    ApiKey.JOIN_GROUP: _group_member,
    ApiKey.HEARTBEAT: _group_member,
    ApiKey.LEAVE_GROUP: _group_member,
    ApiKey.SYNC_GROUP: _group_member,
    ApiKey.DESCRIBE_GROUPS: groups.describe_groups,
    ApiKey.LIST_GROUPS: groups.list_groups,
    ApiKey.SASL_HANDSHAKE: anybody,
    ApiKey.SASL_AUTHENTICATE: anybody,
    ApiKey.API_VERSIONS: anybody,
    ApiKey.CREATE_TOPICS: topics.create_topics,
    ApiKey.DELETE_TOPICS: topics.delete_topics,
    ApiKey.DELETE_RECORDS: on_each(_Op.DELETE, TOPIC, "topics", "topics", _refused_deletion),
    ApiKey.DELETE_RECORDS_AT: on_each(_Op.DELETE, TOPIC, "topics", "topics", _refused_marks),
    ApiKey.INIT_PRODUCER_ID: transactions.init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: topics.offset_for_leader_epoch,
    ApiKey.ADD_PARTITIONS_TO_TXN: transactions.add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: transactions.add_offsets_to_txn,
    ApiKey.END_TXN: on_one(_Op.WRITE, TRANSACTIONAL_ID, "transactional_id"),
    ApiKey.WRITE_TXN_MARKERS: transactions.write_txn_markers,
    ApiKey.TXN_OFFSET_COMMIT: transactions.txn_offset_commit,
    ApiKey.DESCRIBE_ACLS: on_cluster(_Op.DESCRIBE),
    ApiKey.CREATE_ACLS: on_cluster(_Op.ALTER, _no_new_acls),
    ApiKey.DELETE_ACLS: on_cluster(_Op.ALTER, _no_fewer_acls),
    ApiKey.DESCRIBE_CONFIGS: _on_configs(_Op.DESCRIBE_CONFIGS, "results", DescribeConfigsResult),
    ApiKey.ALTER_CONFIGS: _on_configs(_Op.ALTER_CONFIGS, "responses", AlterConfigsResourceResponse),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _on_configs(
        _Op.ALTER_CONFIGS, "responses", IncrementalResponse
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: on_cluster(_Op.ALTER, _no_other_folders),
    ApiKey.DESCRIBE_LOG_DIRS: on_cluster(_Op.DESCRIBE),
    ApiKey.CREATE_PARTITIONS: on_each(
        _Op.ALTER,
        TOPIC,
        "topics",
        "results",
        _refused_growth,
    ),
    ApiKey.DELETE_GROUPS: on_each(
        _Op.DELETE,
        GROUP,
        "groups_names",
        "results",
        _refused_group,
        str,
    ),
    ApiKey.ELECT_LEADERS: on_cluster(_Op.ALTER, _no_elections),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: on_cluster(_Op.ALTER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: on_cluster(_Op.DESCRIBE),
    ApiKey.OFFSET_DELETE: groups.offset_delete,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: on_cluster(_Op.DESCRIBE_CONFIGS),
    ApiKey.ALTER_CLIENT_QUOTAS: on_cluster(_Op.ALTER_CONFIGS, _no_other_quotas),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: on_cluster(_Op.DESCRIBE),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: on_cluster(_Op.ALTER, _no_other_users),
    ApiKey.ALTER_PARTITION: on_cluster(_Op.CLUSTER_ACTION),
    ApiKey.UPDATE_FEATURES: on_cluster(_Op.ALTER),
    ApiKey.DESCRIBE_CLUSTER: topics.describe_cluster,
    ApiKey.DESCRIBE_PRODUCERS: on_each(_Op.READ, TOPIC, "topics", "topics", _refused_producers),
    ApiKey.BROKER_HEARTBEAT: on_cluster(_Op.CLUSTER_ACTION),
    ApiKey.UNREGISTER_BROKER: on_cluster(_Op.ALTER),
    ApiKey.DESCRIBE_TRANSACTIONS: transactions.describe_transactions,
    ApiKey.LIST_TRANSACTIONS: transactions.list_transactions,
    ApiKey.ALLOCATE_PRODUCER_IDS: on_cluster(_Op.CLUSTER_ACTION),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: groups.consumer_group_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: groups.describe_groups,
    ApiKey.LIST_CONFIG_RESOURCES: on_cluster(_Op.DESCRIBE_CONFIGS),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: topics.describe_topic_partitions,
    ApiKey.LIST_CLIENTS: on_cluster(_Op.DESCRIBE),
}

# What an API needs that has no row: more than anybody but a super user has by chance.
UNLISTED: Final[Guard] = on_cluster(_Op.CLUSTER_ACTION)
