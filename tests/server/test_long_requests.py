"""One request must not stop the others: very long requests are worked on in slices.

A clock that counts stands in for the time, so that a slice is a number of steps: between two turns of
the loop no more than that are done, whatever the machine does meanwhile.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import create_topic, fresh_name
from server_kit.wire import Wire

from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import ZERO_UUID, Message
from ottla.protocol.messages import (
    add_partitions_to_txn,
    alter_partition,
    alter_partition_reassignments,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_topics,
    delete_groups,
    delete_records,
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
from ottla.server import api, turns
from ottla.server.broker import Broker

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


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time goes on by one part of a slice whenever somebody looks at the clock."""
    ticks = itertools.count()
    monkeypatch.setattr(turns, "clock", lambda: next(ticks) * turns.SLICE_SECONDS / STEPS)


def _name(index: int) -> str:
    return f"nobody-{index}"


T = "has-two-partitions"


def _metadata_request(count: int) -> Message:
    return metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=_name(each)) for each in range(count)],
        allow_auto_topic_creation=False,
    )


def _list_offsets_request(count: int) -> Message:
    partition = list_offsets.ListOffsetsPartition
    return list_offsets.ListOffsetsRequest(
        topics=[
            list_offsets.ListOffsetsTopic(
                name=T,
                partitions=[partition(partition_index=each, timestamp=-1) for each in range(count)],
            )
        ]
    )


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
    partition = offset_commit.OffsetCommitRequestPartition
    return offset_commit.OffsetCommitRequest(
        group_id="long",
        topics=[
            offset_commit.OffsetCommitRequestTopic(
                name=T,
                partitions=[
                    partition(partition_index=each, committed_offset=1) for each in range(count)
                ],
            )
        ],
    )


def _txn_offset_commit_request(count: int) -> Message:
    partition = txn_offset_commit.TxnOffsetCommitRequestPartition
    return txn_offset_commit.TxnOffsetCommitRequest(
        transactional_id="long",
        group_id="long",
        topics=[
            txn_offset_commit.TxnOffsetCommitRequestTopic(
                name=T,
                partitions=[
                    partition(partition_index=each, committed_offset=1) for each in range(count)
                ],
            )
        ],
    )


def _offset_delete_request(count: int) -> Message:
    partition = offset_delete.OffsetDeleteRequestPartition
    return offset_delete.OffsetDeleteRequest(
        group_id="long",
        topics=[
            offset_delete.OffsetDeleteRequestTopic(
                name=T, partitions=[partition(partition_index=each) for each in range(count)]
            )
        ],
    )


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
    partition = delete_records.DeleteRecordsPartition
    return delete_records.DeleteRecordsRequest(
        topics=[
            delete_records.DeleteRecordsTopic(
                name=T, partitions=[partition(partition_index=each + 2) for each in range(count)]
            )
        ]
    )


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


LONG: dict[str, tuple[Callable[[int], Message], type[Message], int]] = {
    "Metadata": (_metadata_request, metadata.MetadataResponse, 9),
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
    partition = alter_partition_reassignments.ReassignablePartition
    return alter_partition_reassignments.AlterPartitionReassignmentsRequest(
        topics=[
            alter_partition_reassignments.ReassignableTopic(
                name=T,
                partitions=[
                    partition(partition_index=each, replicas=None) for each in range(count)
                ],
            )
        ]
    )


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
LONG_QUESTIONS: dict[str, tuple[Callable[[int], Message], type[Message], int]] = {
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


def _entries(part: Any) -> int:
    """Of all arrays in a message."""
    count = 0
    for name in part.declared:
        value = getattr(part, name)
        if isinstance(value, list):
            count += len(value) + sum(_entries(each) for each in value if hasattr(each, "declared"))
    return count


@pytest.fixture(scope="module")
def ready(inside: BrokerThread) -> BrokerThread:
    """With a topic of two partitions, and the coordinators at work."""
    with inside.wire() as wire:
        create_topic(wire, 2, T)
        for kind in (0, 1):
            request = find_coordinator.FindCoordinatorRequest(
                coordinator_keys=["long"], key_type=kind
            )
            wire.call(request, find_coordinator.FindCoordinatorResponse, 4)
        # What is imported on first use is imported now.
        for make, response, version in LONG.values():
            wire.call(make(2), response, version)
    return inside


@pytest.mark.parametrize("name", LONG)
@pytest.mark.usefixtures("counted")
def test_the_loop_has_its_turn_after_every_slice(ready: BrokerThread, name: str) -> None:
    make, kind, version = LONG[name]
    with ready.wire() as wire, Turns(ready) as seen:
        response = wire.call(make(MANY), kind, version)
    # DescribeLogDirs answers what there is, of very much that is asked for.
    if name != "DescribeLogDirs":
        assert _entries(response) >= MANY
    # However long the request, a turn is never longer than this.
    assert seen.longest < LONGEST
    # And it is answered as a short one.
    with ready.wire() as wire:
        short = wire.call(make(7), kind, version)
    assert _errors(response) == _errors(short)


@pytest.mark.parametrize("name", LONG_QUESTIONS)
@pytest.mark.usefixtures("counted")
def test_the_loop_has_its_turn_in_a_long_question(ready: BrokerThread, name: str) -> None:
    make, kind, version = LONG_QUESTIONS[name]
    with ready.wire() as wire:
        wire.call(make(2), kind, version)  # what is imported on first use is imported now
        with Turns(ready) as seen:
            response = wire.call(make(MANY), kind, version)
        assert seen.longest < LONGEST
        assert _errors(response) == _errors(wire.call(make(7), kind, version))


def _errors(part: Any) -> set[int]:
    found = {getattr(part, each) for each in part.declared if each.endswith("error_code")}
    for each in part.declared:
        value = getattr(part, each)
        for item in value if isinstance(value, list) else ():
            if hasattr(item, "declared"):
                found |= _errors(item)
    return found


def test_others_are_answered_meanwhile(
    ready: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slice that is over after each step: the long request takes as many turns as it has steps."""
    ticks = itertools.count()
    monkeypatch.setattr(turns, "clock", lambda: float(next(ticks)))
    make, kind, version = LONG["ListOffsets"]
    with ready.wire() as busy, ready.wire() as other:
        busy.send(make(20_000), version)
        for _ in range(20):
            other.call(_metadata_request(1), metadata.MetadataResponse, 9)
        assert not ready.run(
            lambda broker: all(each.idle for each in broker.reactor.connections)
        ), "the long request was over first"
        busy.receive(kind, version)


def test_one_topic_is_described_once(ready: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    from ottla.server.handlers import describe_configs as handler

    described: list[object] = []
    original = handler.describe_topic

    def describe(*arguments: Any) -> Any:
        described.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(handler, "describe_topic", describe)
    resource = describe_configs.DescribeConfigsResource(
        resource_type=2, resource_name=T, configuration_keys=["retention.ms"]
    )
    request = describe_configs.DescribeConfigsRequest(resources=[resource] * 1000)
    with ready.wire() as wire:
        response = wire.call(request, describe_configs.DescribeConfigsResponse, 4)
    assert len(response.results) == 1000
    assert {each.configs[0].name for each in response.results} == {"retention.ms"}
    assert len(described) == 1


def test_a_response_has_a_largest_size(
    ready: BrokerThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(api, "LARGEST_RESPONSE", 1 << 20)
    resource = describe_configs.DescribeConfigsResource(
        resource_type=2, resource_name=T, configuration_keys=None
    )
    request = describe_configs.DescribeConfigsRequest(resources=[resource] * 2000)
    with ready.wire() as wire:
        wire.send(request, 4)
        assert wire.is_closed()
    assert "response given up: api=DESCRIBE_CONFIGS" in caplog.text
    with ready.wire() as wire:
        wire.call(_metadata_request(1), metadata.MetadataResponse, 9)


def test_a_request_has_a_largest_number_of_entries(
    ready: BrokerThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(api, "MOST_ENTRIES", 2000)
    make, _, version = LONG["Metadata"]
    with ready.wire() as wire:
        wire.send(make(3000), version)
        assert wire.is_closed()
    assert "too many entries" in caplog.text


def test_a_malformed_long_request(ready: BrokerThread, caplog: pytest.LogCaptureFixture) -> None:
    make, _, version = LONG["Metadata"]
    with ready.wire() as wire:
        frame = bytearray(wire.encode(make(3000), version))
        # A name that claims to be longer than the frame.
        frame[25] = 0xFF
        frame[26] = 0xFF
        wire.send_raw(bytes(frame))
        assert wire.is_closed()
    assert "malformed request" in caplog.text


def test_whoever_hangs_up_is_not_worked_for(
    ready: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(turns, "clock", lambda: float(next(ticks)))
    make, _, version = LONG["ListOffsets"]
    with ready.wire() as wire:
        wire.send(make(20_000), version)
    ready.until(lambda broker: not broker.reactor.connections)
    ready.until(lambda broker: broker.reactor.partial_bytes == 0)


# Duplicates -------------------------------------------------------------------------------------
# Each of these was asked of Apache Kafka 4.3.1, which gave the same answer.


def test_fetch_reads_what_is_named_last(wire: Wire) -> None:
    topic = create_topic(wire, 2)
    request = fetch.FetchRequest(
        max_wait_ms=0,
        session_epoch=-1,
        topics=[
            fetch.FetchTopic(
                topic=topic.name,
                partitions=[
                    fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000),
                    fetch.FetchPartition(partition=0, fetch_offset=77, partition_max_bytes=1000),
                    fetch.FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=1000),
                ],
            )
        ],
    )
    response = wire.call(request, fetch.FetchResponse, 11)
    (answer,) = response.responses
    assert [(each.partition_index, each.error_code) for each in answer.partitions] == [
        (0, ErrorCode.OFFSET_OUT_OF_RANGE),
        (1, ErrorCode.NONE),
    ]


def test_list_offsets_answers_duplicates_once(wire: Wire) -> None:
    topic = create_topic(wire, 2)
    partition = list_offsets.ListOffsetsPartition
    request = list_offsets.ListOffsetsRequest(
        topics=[
            list_offsets.ListOffsetsTopic(
                name=topic.name,
                partitions=[
                    partition(partition_index=0, timestamp=-1),
                    partition(partition_index=0, timestamp=-1),
                    partition(partition_index=1, timestamp=-1),
                ],
            ),
            list_offsets.ListOffsetsTopic(
                name=topic.name, partitions=[partition(partition_index=1, timestamp=-2)]
            ),
        ]
    )
    response = wire.call(request, list_offsets.ListOffsetsResponse, 5)
    (answer,) = response.topics
    assert sorted((each.partition_index, each.error_code) for each in answer.partitions) == [
        (0, ErrorCode.INVALID_REQUEST),
        (1, ErrorCode.INVALID_REQUEST),
    ]


def test_metadata_answers_duplicates_once(wire: Wire) -> None:
    topic = create_topic(wire)
    named = [
        metadata.MetadataRequestTopic(name=name)
        for name in (topic.name, topic.name, "nobody", "nobody", "bad name", "bad name")
    ]
    request = metadata.MetadataRequest(topics=named, allow_auto_topic_creation=False)
    response = wire.call(request, metadata.MetadataResponse, 9)
    assert {each.name: each.error_code for each in response.topics} == {
        topic.name: ErrorCode.NONE,
        "nobody": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    assert len(response.topics) == 3
    identified = [metadata.MetadataRequestTopic(name=None, topic_id=b"1" * 16)] * 2
    request = metadata.MetadataRequest(topics=identified, allow_auto_topic_creation=False)
    response = wire.call(request, metadata.MetadataResponse, 12)
    assert [each.error_code for each in response.topics] == [ErrorCode.UNKNOWN_TOPIC_ID]


def test_delete_records_takes_the_last_and_answers_once(wire: Wire) -> None:
    topic = create_topic(wire, 2)
    partition = delete_records.DeleteRecordsPartition
    request = delete_records.DeleteRecordsRequest(
        topics=[
            delete_records.DeleteRecordsTopic(
                name=topic.name,
                partitions=[
                    partition(partition_index=0, offset=0),
                    partition(partition_index=0, offset=99),
                ],
            ),
            delete_records.DeleteRecordsTopic(
                name=topic.name, partitions=[partition(partition_index=1, offset=0)]
            ),
        ],
        timeout_ms=1000,
    )
    response = wire.call(request, delete_records.DeleteRecordsResponse, 1)
    (answer,) = response.topics
    assert sorted((each.partition_index, each.error_code) for each in answer.partitions) == [
        (0, ErrorCode.OFFSET_OUT_OF_RANGE),
        (1, ErrorCode.NONE),
    ]


@pytest.mark.parametrize("copies", [2, 3000])
def test_commits_and_their_answers(wire: Wire, copies: int) -> None:
    """A short request and one that is reduced first are answered alike."""
    topic = create_topic(wire, 2)
    group = fresh_name("group")
    found = wire.call(
        find_coordinator.FindCoordinatorRequest(coordinator_keys=[group]),
        find_coordinator.FindCoordinatorResponse,
        4,
    )
    assert found.coordinators[0].error_code == 0
    partition = offset_commit.OffsetCommitRequestPartition
    request = offset_commit.OffsetCommitRequest(
        group_id=group,
        topics=[
            offset_commit.OffsetCommitRequestTopic(
                name=topic.name,
                partitions=[
                    *(
                        partition(partition_index=0, committed_offset=each + 1)
                        for each in range(copies)
                    ),
                    partition(partition_index=1, committed_offset=7),
                    partition(partition_index=9, committed_offset=7),
                    partition(partition_index=10, committed_offset=7),
                ],
            ),
            offset_commit.OffsetCommitRequestTopic(
                name="nobody", partitions=[partition(partition_index=0, committed_offset=1)]
            ),
        ],
    )
    response = wire.call(request, offset_commit.OffsetCommitResponse, 7)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    answers = {
        (told.name, each.partition_index): each.error_code
        for told in response.topics
        for each in told.partitions
    }
    assert answers == {
        (topic.name, 0): 0,
        (topic.name, 1): 0,
        (topic.name, 9): unknown,
        (topic.name, 10): unknown,
        ("nobody", 0): unknown,
    }
    assert sum(len(told.partitions) for told in response.topics) == copies + 4
    fetched = wire.call(
        offset_fetch.OffsetFetchRequest(
            group_id=group,
            topics=[
                offset_fetch.OffsetFetchRequestTopic(name=topic.name, partition_indexes=[0, 1])
            ],
        ),
        offset_fetch.OffsetFetchResponse,
        5,
    )
    assert [each.committed_offset for each in fetched.topics[0].partitions] == [copies, 7]


def test_topics_created_and_deleted_in_portions(wire: Wire) -> None:
    stem = fresh_name()
    names = [f"{stem}-{each}" for each in range(1200)]
    twice = names[5]
    request = create_topics.CreateTopicsRequest(
        topics=[
            create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
            for name in [*names, twice]
        ],
        timeout_ms=60_000,
    )
    response = wire.call(request, create_topics.CreateTopicsResponse, 4)
    codes = {each.name: each.error_code for each in response.topics}
    assert len(codes) == len(response.topics) == 1200
    assert codes.pop(twice) == ErrorCode.INVALID_REQUEST
    assert set(codes.values()) == {ErrorCode.NONE}
    deleted = wire.call(
        delete_topics.DeleteTopicsRequest(topic_names=[*names, names[7]], timeout_ms=60_000),
        delete_topics.DeleteTopicsResponse,
        4,
    )
    gone = {each.name: each.error_code for each in deleted.responses}
    assert gone.pop(twice) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert gone.pop(names[7]) == ErrorCode.INVALID_REQUEST
    assert set(gone.values()) == {ErrorCode.NONE}
    wire.call(
        delete_topics.DeleteTopicsRequest(topic_names=[names[7]], timeout_ms=60_000),
        delete_topics.DeleteTopicsResponse,
        4,
    )


def test_too_many_partitions_in_one_request(wire: Wire) -> None:
    stem = fresh_name()
    request = create_topics.CreateTopicsRequest(
        topics=[
            create_topics.CreatableTopic(
                name=f"{stem}-{each}", num_partitions=11, replication_factor=1
            )
            for each in range(1000)
        ],
        timeout_ms=60_000,
    )
    response = wire.call(request, create_topics.CreateTopicsResponse, 4)
    assert {each.error_code for each in response.topics} == {ErrorCode.POLICY_VIOLATION}
    assert len(response.topics) == 1000


def test_a_topic_by_name_and_by_id_in_a_long_request(wire: Wire) -> None:
    topic = create_topic(wire)
    state = delete_topics.DeleteTopicState
    request = delete_topics.DeleteTopicsRequest(
        topics=[
            state(name=topic.name, topic_id=ZERO_UUID),
            *(state(name=f"nobody-{each}", topic_id=ZERO_UUID) for each in range(2000)),
            state(name=None, topic_id=topic.id),
        ],
        timeout_ms=60_000,
    )
    response = wire.call(request, delete_topics.DeleteTopicsResponse, 6)
    codes = {each.name: each.error_code for each in response.responses}
    assert codes[topic.name] == ErrorCode.INVALID_REQUEST
    assert create_topic_exists(wire, topic.name)


def create_topic_exists(wire: Wire, name: str) -> bool:
    request = metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
    )
    return not wire.call(request, metadata.MetadataResponse, 9).topics[0].error_code


@pytest.fixture(autouse=True)
def real_time_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield
    monkeypatch.undo()
