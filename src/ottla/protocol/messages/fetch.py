"""Fetch: read record batches from partitions, within a fetch session or without."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    NEVER,
    ZERO_UUID,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Part,
    Records,
    String,
    Uuid,
    field,
)


class ReplicaState(Part):
    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


class FetchPartition(Part):
    partition: Int32 = 0
    current_leader_epoch: Int32 = field(default=-1, since=9, ignorable=True)
    fetch_offset: Int64 = 0
    last_fetched_epoch: Int32 = field(default=-1, since=12)
    log_start_offset: Int64 = field(default=-1, since=5, ignorable=True)
    partition_max_bytes: Int32 = 0
    replica_directory_id: Uuid = field(default=ZERO_UUID, since=17, tag=0, ignorable=True)
    high_watermark: Int64 = field(default=9223372036854775807, since=18, tag=1, ignorable=True)
    # Ottla's own, of replicas: up to where they have synced what they have.
    flushed_offset: Int64 = field(default=-1, since=12, tag=20308, ignorable=True)


class FetchTopic(Part):
    topic: String = field(default="", until=12, ignorable=True)
    topic_id: Uuid = field(default=ZERO_UUID, since=13, ignorable=True)
    partitions: list[FetchPartition] = EMPTY


class ForgottenTopic(Part):
    topic: String = field(default="", until=12, ignorable=True)
    topic_id: Uuid = field(default=ZERO_UUID, since=13, ignorable=True)
    partitions: list[Int32] = EMPTY


class FetchRequest(Message, api_key=ApiKey.FETCH, versions=(0, 18), flexible_since=12):
    cluster_id: String | None = field(default=None, since=12, tag=0, ignorable=True)
    replica_id: Int32 = field(default=-1, until=14)
    replica_state: ReplicaState | None = field(default=None, since=15, nullable_since=NEVER, tag=1)
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = field(default=2147483647, since=3, ignorable=True)
    isolation_level: Int8 = field(default=0, since=4, ignorable=True)
    session_id: Int32 = field(default=0, since=7, ignorable=True)
    session_epoch: Int32 = field(default=-1, since=7, ignorable=True)
    topics: list[FetchTopic] = EMPTY
    forgotten_topics_data: list[ForgottenTopic] = field(default=EMPTY, since=7)
    rack_id: String = field(default="", since=11, ignorable=True)


class EpochEndOffset(Part):
    epoch: Int32 = -1
    end_offset: Int64 = -1


class LeaderIdAndEpoch(Part):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class SnapshotId(Part):
    end_offset: Int64 = -1
    epoch: Int32 = -1


class AbortedTransaction(Part):
    producer_id: Int64 = 0
    first_offset: Int64 = 0


class PartitionData(Part):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    high_watermark: Int64 = 0
    last_stable_offset: Int64 = field(default=-1, since=4, ignorable=True)
    log_start_offset: Int64 = field(default=-1, since=5, ignorable=True)
    diverging_epoch: EpochEndOffset | None = field(
        default=None, since=12, nullable_since=NEVER, tag=0
    )
    current_leader: LeaderIdAndEpoch | None = field(
        default=None, since=12, nullable_since=NEVER, tag=1
    )
    snapshot_id: SnapshotId | None = field(default=None, since=12, nullable_since=NEVER, tag=2)
    aborted_transactions: list[AbortedTransaction] | None = field(
        default=EMPTY, since=4, ignorable=True
    )
    preferred_read_replica: Int32 = field(default=-1, since=11)
    records: Records | None = None


class FetchableTopicResponse(Part):
    topic: String = field(default="", until=12, ignorable=True)
    topic_id: Uuid = field(default=ZERO_UUID, since=13, ignorable=True)
    partitions: list[PartitionData] = EMPTY


class NodeEndpoint(Part):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None


class FetchResponse(Message, api_key=ApiKey.FETCH, versions=(0, 18), flexible_since=12):
    throttle_time_ms: Int32 = field(default=0, since=1, ignorable=True)
    error_code: Int16 = field(default=0, since=7, ignorable=True)
    session_id: Int32 = field(default=0, since=7)
    responses: list[FetchableTopicResponse] = EMPTY
    node_endpoints: list[NodeEndpoint] = field(default=EMPTY, since=16, tag=0)
