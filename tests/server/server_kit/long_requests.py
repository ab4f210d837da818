"""Very long requests, and how long a loop is busy with one before it has its next turn.

A clock that counts stands in for the time, so that a slice is a number of steps: between two turns of
the loop no more than that are done, whatever the machine does meanwhile.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

from ottla import turns
from ottla.protocol.message import Message
from ottla.protocol.messages import (
    add_partitions_to_txn,
    alter_client_quotas,
    alter_partition,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_topics,
    delete_groups,
    delete_records,
    delete_records_at,
    delete_topics,
    describe_client_quotas,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    elect_leaders,
    fetch,
    find_coordinator,
    incremental_alter_configs,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    sync_group,
    txn_offset_commit,
    update_features,
    write_txn_markers,
)
from ottla.server.broker import Broker
from server_kit.broker_thread import BrokerThread
from server_kit.calls import create_topic

# Entries of a long request, the steps of a slice, and the calls of functions in a turn: far less than
# one for each entry.
MANY = 16_000
STEPS = 50
LONGEST = 13_000


class Turns:
    """Measures what a loop does between two of its turns: the calls of functions, ours and Python's,
    counted from a callback that comes up in each turn."""

    def __init__(self, thread: BrokerThread) -> None:
        self._thread = thread
        self.count = 0
        self.longest = 0
        self._calls = 0
        self._is_on = True

    def _called(self, _frame: object, event: str, _argument: object) -> None:
        if event in ("call", "c_call"):
            self._calls += 1

    def _tick(self) -> None:
        self.count += 1
        self.longest = max(self.longest, self._calls)
        self._calls = 0
        if self._is_on:
            self._thread.broker.loop.call_soon(self._tick)
        else:
            sys.setprofile(None)

    def _begin(self, broker: Broker) -> None:
        sys.setprofile(self._called)
        broker.loop.call_soon(self._tick)

    def __enter__(self) -> Turns:
        self._thread.run(self._begin)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_on = False
        self._thread.until(lambda _: sys.getprofile() is None)


def count_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time goes on by one part of a slice whenever somebody looks at the clock."""
    ticks = itertools.count()
    monkeypatch.setattr(turns, "clock", lambda: next(ticks) * turns.SLICE_SECONDS / STEPS)


def _name(index: int) -> str:
    return f"nobody-{index}"


T = "has-two-partitions"
M = TypeVar("M", bound=Message)


def _one_topic(
    topic: Callable[..., M],
    partition: Callable[..., Message],
    count: int,
    first: int = 0,
    **fields: Any,
) -> list[M]:
    """A topic with so many partitions that are alike but for their numbers."""
    partitions = [partition(partition_index=first + each, **fields) for each in range(count)]
    return [topic(name=T, partitions=partitions)]


def metadata_request(count: int) -> Message:
    return metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=_name(each)) for each in range(count)],
        allow_auto_topic_creation=False,
    )


def _list_offsets_request(count: int) -> Message:
    topics = _one_topic(
        list_offsets.ListOffsetsTopic, list_offsets.ListOffsetsPartition, count, timestamp=-1
    )
    return list_offsets.ListOffsetsRequest(topics=topics)


def _fetch_request(count: int) -> Message:
    return fetch.FetchRequest(
        max_wait_ms=0,
        session_epoch=-1,
        topics=[
            fetch.FetchTopic(
                topic=T,
                partitions=[
                    fetch.FetchPartition(partition=each, partition_max_bytes=1000)
                    for each in range(count)
                ],
            )
        ],
    )


def _offset_commit_request(count: int) -> Message:
    topics = _one_topic(
        offset_commit.OffsetCommitRequestTopic,
        offset_commit.OffsetCommitRequestPartition,
        count,
        committed_offset=1,
    )
    return offset_commit.OffsetCommitRequest(group_id="long", topics=topics)


def _txn_offset_commit_request(count: int) -> Message:
    topics = _one_topic(
        txn_offset_commit.TxnOffsetCommitRequestTopic,
        txn_offset_commit.TxnOffsetCommitRequestPartition,
        count,
        committed_offset=1,
    )
    return txn_offset_commit.TxnOffsetCommitRequest(
        transactional_id="long", group_id="long", topics=topics
    )


def _offset_delete_request(count: int) -> Message:
    topics = _one_topic(
        offset_delete.OffsetDeleteRequestTopic, offset_delete.OffsetDeleteRequestPartition, count
    )
    return offset_delete.OffsetDeleteRequest(group_id="long", topics=topics)


def _leave_group_request(count: int) -> Message:
    return leave_group.LeaveGroupRequest(
        group_id="long",
        members=[leave_group.MemberIdentity(member_id=_name(each)) for each in range(count)],
    )


def _offset_fetch_request(count: int) -> Message:
    return offset_fetch.OffsetFetchRequest(
        group_id="long",
        topics=[offset_fetch.OffsetFetchRequestTopic(name=T, partition_indexes=list(range(count)))],
    )


def _delete_records_request(count: int) -> Message:
    topics = _one_topic(
        delete_records.DeleteRecordsTopic, delete_records.DeleteRecordsPartition, count, first=2
    )
    return delete_records.DeleteRecordsRequest(topics=topics)


def _epochs_request(count: int) -> Message:
    partition = offset_for_leader_epoch.OffsetForLeaderPartition
    return offset_for_leader_epoch.OffsetForLeaderEpochRequest(
        topics=[
            offset_for_leader_epoch.OffsetForLeaderTopic(
                topic=T, partitions=[partition(partition=each) for each in range(count)]
            )
        ]
    )


def _add_partitions_request(count: int) -> Message:
    return add_partitions_to_txn.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_topics=[
            add_partitions_to_txn.AddPartitionsToTxnTopic(name=T, partitions=list(range(count)))
        ],
    )


def _marks_request(count: int) -> Message:
    deleted = delete_records_at.DeletedRange
    partitions = [
        delete_records_at.DeleteRecordsAtPartition(
            partition_index=each,
            # Of one partition, very many that cannot be had.
            ranges=[deleted(first_offset=9, last_offset=9)] * (count if not each else 1),
        )
        for each in range(count)
    ]
    topic = delete_records_at.DeleteRecordsAtTopic(name=T, partitions=partitions)
    return delete_records_at.DeleteRecordsAtRequest(topics=[topic], timeout_ms=1000)


def _markers_request(count: int) -> Message:
    return write_txn_markers.WriteTxnMarkersRequest(
        markers=[
            write_txn_markers.WritableTxnMarker(
                topics=[
                    write_txn_markers.WritableTxnMarkerTopic(
                        name="nobody", partition_indexes=list(range(count))
                    )
                ]
            )
        ]
    )


def _create_request(count: int) -> Message:
    return create_topics.CreateTopicsRequest(
        topics=[
            create_topics.CreatableTopic(name=f"bad name {each}", num_partitions=0)
            for each in range(count)
        ]
    )


def _alter_request(count: int) -> Message:
    return incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=[
            incremental_alter_configs.AlterConfigsResource(
                resource_type=2, resource_name=_name(each)
            )
            for each in range(count)
        ]
    )


def _quotas_request(count: int) -> Message:
    entity = alter_client_quotas.EntityDataRequest
    return alter_client_quotas.AlterClientQuotasRequest(
        entries=[
            alter_client_quotas.EntryDataRequest(
                entity=[entity(entity_type="user", entity_name=each)], ops=[]
            )
            for each in _names(count)
        ]
    )


def _passwords_request(count: int) -> Message:
    gone = alter_user_scram_credentials.ScramCredentialDeletion
    return alter_user_scram_credentials.AlterUserScramCredentialsRequest(
        deletions=[gone(name=each, mechanism=1) for each in _names(count)]
    )


def _describe_configs_request(count: int) -> Message:
    return describe_configs.DescribeConfigsRequest(
        resources=[
            describe_configs.DescribeConfigsResource(
                resource_type=2, resource_name=_name(each), configuration_keys=None
            )
            for each in range(count)
        ]
    )


def _describe_partitions_request(count: int) -> Message:
    return describe_topic_partitions.DescribeTopicPartitionsRequest(
        topics=[describe_topic_partitions.TopicRequest(name=_name(each)) for each in range(count)]
    )


def _log_dirs_request(count: int) -> Message:
    return describe_log_dirs.DescribeLogDirsRequest(
        topics=[describe_log_dirs.DescribableLogDirTopic(topic=T, partitions=list(range(2, count)))]
    )


def _producers_request(count: int) -> Message:
    return describe_producers.DescribeProducersRequest(
        topics=[describe_producers.TopicRequest(name=T, partition_indexes=list(range(count)))]
    )


def _names(count: int) -> list[str]:
    return [_name(each) for each in range(count)]


Long = tuple[Callable[[int], Message], type[Message], int]


def make_ready(broker: BrokerThread, requests: Iterable[Long] = ()) -> None:
    """Makes the topic of which the long requests speak, has the coordinators at work, and sends short
    requests of these kinds: what is imported with the first of a kind is there then."""
    with broker.wire() as wire:
        create_topic(wire, 2, T)
        for kind in (0, 1):
            request = find_coordinator.FindCoordinatorRequest(
                coordinator_keys=["long"], key_type=kind
            )
            wire.call(request, find_coordinator.FindCoordinatorResponse, 4)
        for make, response, version in requests:
            wire.call(make(2), response, version)


LONG: dict[str, Long] = {
    "Metadata": (metadata_request, metadata.MetadataResponse, 9),
    "ListOffsets": (_list_offsets_request, list_offsets.ListOffsetsResponse, 5),
    "Fetch": (_fetch_request, fetch.FetchResponse, 11),
    "OffsetCommit": (_offset_commit_request, offset_commit.OffsetCommitResponse, 7),
    "TxnOffsetCommit": (
        _txn_offset_commit_request,
        txn_offset_commit.TxnOffsetCommitResponse,
        3,
    ),
    "OffsetDelete": (_offset_delete_request, offset_delete.OffsetDeleteResponse, 0),
    "LeaveGroup": (_leave_group_request, leave_group.LeaveGroupResponse, 3),
    "OffsetFetch": (_offset_fetch_request, offset_fetch.OffsetFetchResponse, 5),
    "DeleteRecords": (_delete_records_request, delete_records.DeleteRecordsResponse, 1),
    "DeleteRecordsAt": (_marks_request, delete_records_at.DeleteRecordsAtResponse, 1),
    "OffsetForLeaderEpoch": (
        _epochs_request,
        offset_for_leader_epoch.OffsetForLeaderEpochResponse,
        3,
    ),
    "AddPartitionsToTxn": (
        _add_partitions_request,
        add_partitions_to_txn.AddPartitionsToTxnResponse,
        3,
    ),
    "WriteTxnMarkers": (_markers_request, write_txn_markers.WriteTxnMarkersResponse, 1),
    "CreateTopics": (_create_request, create_topics.CreateTopicsResponse, 4),
    "DeleteTopics": (
        lambda count: delete_topics.DeleteTopicsRequest(topic_names=_names(count)),
        delete_topics.DeleteTopicsResponse,
        4,
    ),
    "IncrementalAlterConfigs": (
        _alter_request,
        incremental_alter_configs.IncrementalAlterConfigsResponse,
        1,
    ),
    "AlterClientQuotas": (_quotas_request, alter_client_quotas.AlterClientQuotasResponse, 0),
    "AlterUserScramCredentials": (
        _passwords_request,
        alter_user_scram_credentials.AlterUserScramCredentialsResponse,
        0,
    ),
    "DescribeConfigs": (_describe_configs_request, describe_configs.DescribeConfigsResponse, 4),
    "DescribeTopicPartitions": (
        _describe_partitions_request,
        describe_topic_partitions.DescribeTopicPartitionsResponse,
        0,
    ),
    "DescribeLogDirs": (_log_dirs_request, describe_log_dirs.DescribeLogDirsResponse, 1),
    "DescribeProducers": (_producers_request, describe_producers.DescribeProducersResponse, 0),
    "DescribeGroups": (
        lambda count: describe_groups.DescribeGroupsRequest(groups=_names(count)),
        describe_groups.DescribeGroupsResponse,
        5,
    ),
    "ConsumerGroupDescribe": (
        lambda count: consumer_group_describe.ConsumerGroupDescribeRequest(group_ids=_names(count)),
        consumer_group_describe.ConsumerGroupDescribeResponse,
        0,
    ),
    "DeleteGroups": (
        lambda count: delete_groups.DeleteGroupsRequest(groups_names=_names(count)),
        delete_groups.DeleteGroupsResponse,
        1,
    ),
    "DescribeTransactions": (
        lambda count: describe_transactions.DescribeTransactionsRequest(
            transactional_ids=_names(count)
        ),
        describe_transactions.DescribeTransactionsResponse,
        0,
    ),
    "FindCoordinator": (
        lambda count: find_coordinator.FindCoordinatorRequest(coordinator_keys=_names(count)),
        find_coordinator.FindCoordinatorResponse,
        4,
    ),
}


def _elect_request(count: int) -> Message:
    topic = elect_leaders.TopicPartitions(topic=T, partitions=list(range(count)))
    return elect_leaders.ElectLeadersRequest(topic_partitions=[topic])


def _reassignments_request(count: int) -> Message:
    topics = _one_topic(
        alter_partition_reassignments.ReassignableTopic,
        alter_partition_reassignments.ReassignablePartition,
        count,
        replicas=None,
    )
    return alter_partition_reassignments.AlterPartitionReassignmentsRequest(topics=topics)


def _alter_partition_request(count: int) -> Message:
    partition = alter_partition.PartitionDataRequest
    return alter_partition.AlterPartitionRequest(
        topics=[
            alter_partition.TopicDataRequest(
                partitions=[partition(partition_index=each) for each in range(count)]
            )
        ]
    )


# Requests whose answers are short however long they are: (request, response, version).
LONG_QUESTIONS: dict[str, Long] = {
    "ListGroups": (
        lambda count: list_groups.ListGroupsRequest(
            states_filter=_names(count), types_filter=_names(count)
        ),
        list_groups.ListGroupsResponse,
        5,
    ),
    "ListTransactions": (
        lambda count: list_transactions.ListTransactionsRequest(
            producer_id_filters=list(range(count)), state_filters=["Ongoing"] * count
        ),
        list_transactions.ListTransactionsResponse,
        0,
    ),
    "JoinGroup": (
        lambda count: join_group.JoinGroupRequest(
            group_id="join",
            session_timeout_ms=1,
            protocol_type="consumer",
            protocols=[join_group.JoinGroupRequestProtocol(name=each) for each in _names(count)],
        ),
        join_group.JoinGroupResponse,
        4,
    ),
    "SyncGroup": (
        lambda count: sync_group.SyncGroupRequest(
            group_id="join",
            assignments=[
                sync_group.SyncGroupRequestAssignment(member_id=each) for each in _names(count)
            ],
        ),
        sync_group.SyncGroupResponse,
        3,
    ),
    "ConsumerGroupHeartbeat": (
        lambda count: consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
            group_id="beat",
            member_id="m",
            member_epoch=3,
            subscribed_topic_names=_names(count),
            topic_partitions=[
                consumer_group_heartbeat.TopicPartitionsRequest(
                    topic_id=bytes(16), partitions=list(range(count))
                )
            ],
        ),
        consumer_group_heartbeat.ConsumerGroupHeartbeatResponse,
        1,
    ),
    "ElectLeaders": (_elect_request, elect_leaders.ElectLeadersResponse, 1),
    "AlterPartitionReassignments": (
        _reassignments_request,
        alter_partition_reassignments.AlterPartitionReassignmentsResponse,
        0,
    ),
    "ListPartitionReassignments": (
        lambda count: list_partition_reassignments.ListPartitionReassignmentsRequest(
            topics=[
                list_partition_reassignments.ListPartitionReassignmentsTopics(
                    name=T, partition_indexes=list(range(count))
                )
            ]
        ),
        list_partition_reassignments.ListPartitionReassignmentsResponse,
        0,
    ),
    "AlterPartition": (_alter_partition_request, alter_partition.AlterPartitionResponse, 2),
    "UpdateFeatures": (
        lambda count: update_features.UpdateFeaturesRequest(
            feature_updates=[
                update_features.FeatureUpdateKey(feature="metadata.version", max_version_level=1)
            ]
            * count
        ),
        update_features.UpdateFeaturesResponse,
        1,
    ),
    "CreateAcls": (
        lambda count: create_acls.CreateAclsRequest(
            creations=[
                create_acls.AclCreation(
                    resource_type=2,
                    resource_name=each,
                    principal="User:a",
                    host="*",
                    operation=3,
                    permission_type=3,
                )
                for each in _names(count)
            ]
        ),
        create_acls.CreateAclsResponse,
        1,
    ),
    "DescribeClientQuotas": (
        lambda count: describe_client_quotas.DescribeClientQuotasRequest(
            components=[
                describe_client_quotas.ComponentData(entity_type="user", match=each)
                for each in _names(count)
            ]
        ),
        describe_client_quotas.DescribeClientQuotasResponse,
        0,
    ),
    "ListConfigResources": (
        lambda count: list_config_resources.ListConfigResourcesRequest(resource_types=[32] * count),
        list_config_resources.ListConfigResourcesResponse,
        1,
    ),
}


def entries_of(part: Any) -> int:
    """Of all arrays in a message."""
    count = 0
    for name in part.declared:
        value = getattr(part, name)
        if isinstance(value, list):
            count += len(value) + sum(
                entries_of(each) for each in value if hasattr(each, "declared")
            )
    return count


def errors_of(part: Any) -> set[int]:
    found = {getattr(part, each) for each in part.declared if each.endswith("error_code")}
    for each in part.declared:
        value = getattr(part, each)
        for item in value if isinstance(value, list) else ():
            if hasattr(item, "declared"):
                found |= errors_of(item)
    return found
