"""ElectLeaders: have leaders elected, preferred or unclean."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Int8,
    Int16,
    Int32,
    Message,
    Part,
    String,
    field,
)


class TopicPartitions(Part):
    topic: String = ""
    partitions: list[Int32] = EMPTY


class ElectLeadersRequest(Message, api_key=ApiKey.ELECT_LEADERS, versions=(0, 2), flexible_since=2):
    election_type: Int8 = field(default=0, since=1)
    topic_partitions: list[TopicPartitions] | None = EMPTY
    timeout_ms: Int32 = 60000


class PartitionResult(Part):
    partition_id: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""


class ReplicaElectionResult(Part):
    topic: String = ""
    partition_result: list[PartitionResult] = EMPTY


class ElectLeadersResponse(
    Message, api_key=ApiKey.ELECT_LEADERS, versions=(0, 2), flexible_since=2
):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = field(default=0, since=1)
    replica_election_results: list[ReplicaElectionResult] = EMPTY
