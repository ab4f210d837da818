"""Requests with very many entries, one for each API that takes them, as whole frames.

They name what does not exist (or one topic again and again), so that what they cost is the work on the
request itself. Versions are such that Kafka and Ottla both speak.
"""

from __future__ import annotations

from ottla.protocol.frame import encode_request
from ottla.protocol.message import Message
from ottla.protocol.messages import (
    add_partitions_to_txn,
    create_topics,
    delete_records,
    delete_topics,
    describe_configs,
    describe_groups,
    describe_topic_partitions,
    fetch,
    leave_group,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    offset_for_leader_epoch,
    txn_offset_commit,
)

DUPLICATES = 1000


def long_requests(topic: str, entries: int) -> dict[str, bytes]:
    """By the name under which each is reported."""
    names = [f"nobody-{each}" for each in range(entries)]
    indexes = list(range(1000, 1000 + entries))
    requests: dict[str, tuple[Message, int]] = {
        "DescribeConfigs of one topic": (
            describe_configs.DescribeConfigsRequest(
                resources=[
                    describe_configs.DescribeConfigsResource(
                        resource_type=2, resource_name=topic, configuration_keys=None
                    )
                ]
                * DUPLICATES
            ),
            2,
        ),
        "Metadata": (
            metadata.MetadataRequest(
                topics=[metadata.MetadataRequestTopic(name=name) for name in names],
                allow_auto_topic_creation=False,
            ),
            9,
        ),
        "ListOffsets": (
            list_offsets.ListOffsetsRequest(
                topics=[
                    list_offsets.ListOffsetsTopic(
                        name=topic,
                        partitions=[
                            list_offsets.ListOffsetsPartition(partition_index=each, timestamp=-1)
                            for each in indexes
                        ],
                    )
                ]
            ),
            5,
        ),
        "Fetch": (
            fetch.FetchRequest(
                max_wait_ms=0,
                session_epoch=-1,
                topics=[
                    fetch.FetchTopic(
                        topic=topic,
                        partitions=[
                            fetch.FetchPartition(partition=each, partition_max_bytes=1)
                            for each in indexes
                        ],
                    )
                ],
            ),
            11,
        ),
        "OffsetFetch": (
            offset_fetch.OffsetFetchRequest(
                group_id="nobody",
                topics=[
                    offset_fetch.OffsetFetchRequestTopic(name=topic, partition_indexes=indexes)
                ],
            ),
            5,
        ),
        "OffsetCommit": (
            offset_commit.OffsetCommitRequest(
                group_id="nobody",
                topics=[
                    offset_commit.OffsetCommitRequestTopic(
                        name=topic,
                        partitions=[
                            offset_commit.OffsetCommitRequestPartition(partition_index=each)
                            for each in indexes
                        ],
                    )
                ],
            ),
            7,
        ),
        "DeleteRecords": (
            delete_records.DeleteRecordsRequest(
                topics=[
                    delete_records.DeleteRecordsTopic(
                        name=topic,
                        partitions=[
                            delete_records.DeleteRecordsPartition(partition_index=each)
                            for each in indexes
                        ],
                    )
                ],
                timeout_ms=30_000,
            ),
            1,
        ),
        "OffsetForLeaderEpoch": (
            offset_for_leader_epoch.OffsetForLeaderEpochRequest(
                topics=[
                    offset_for_leader_epoch.OffsetForLeaderTopic(
                        topic=topic,
                        partitions=[
                            offset_for_leader_epoch.OffsetForLeaderPartition(partition=each)
                            for each in indexes
                        ],
                    )
                ]
            ),
            3,
        ),
        "AddPartitionsToTxn": (
            add_partitions_to_txn.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="nobody",
                v3_and_below_topics=[
                    add_partitions_to_txn.AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                ],
            ),
            3,
        ),
        "CreateTopics": (
            create_topics.CreateTopicsRequest(
                topics=[
                    create_topics.CreatableTopic(name=f"/{name}", num_partitions=0)
                    for name in names
                ],
                timeout_ms=30_000,
            ),
            4,
        ),
        "DeleteTopics": (
            delete_topics.DeleteTopicsRequest(topic_names=names, timeout_ms=30_000),
            4,
        ),
        "DescribeGroups": (describe_groups.DescribeGroupsRequest(groups=names), 5),
        "LeaveGroup": (
            leave_group.LeaveGroupRequest(
                group_id="nobody",
                members=[leave_group.MemberIdentity(member_id=name) for name in names],
            ),
            3,
        ),
        "ListGroups": (list_groups.ListGroupsRequest(states_filter=names), 4),
        "TxnOffsetCommit": (
            txn_offset_commit.TxnOffsetCommitRequest(
                transactional_id="nobody",
                group_id="nobody",
                topics=[
                    txn_offset_commit.TxnOffsetCommitRequestTopic(
                        name=topic,
                        partitions=[
                            txn_offset_commit.TxnOffsetCommitRequestPartition(partition_index=each)
                            for each in indexes
                        ],
                    )
                ],
            ),
            3,
        ),
        "DescribeTopicPartitions": (
            describe_topic_partitions.DescribeTopicPartitionsRequest(
                topics=[describe_topic_partitions.TopicRequest(name=name) for name in names]
            ),
            0,
        ),
    }
    return {
        name: encode_request(request, version, 1, "ottla-bench")
        for name, (request, version) in requests.items()
    }


def topic_turnover(count: int) -> tuple[bytes, bytes]:
    """A request that creates so many topics, and one that deletes them."""
    names = [f"coming-and-going-{each}" for each in range(count)]
    create = create_topics.CreateTopicsRequest(
        topics=[
            create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
            for name in names
        ],
        timeout_ms=60_000,
    )
    delete = delete_topics.DeleteTopicsRequest(topic_names=names, timeout_ms=60_000)
    return (
        encode_request(create, 4, 1, "ottla-bench"),
        encode_request(delete, 4, 2, "ottla-bench"),
    )
