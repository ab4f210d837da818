"""AlterPartition: a leader asks the controller to change its partitions' in-sync replicas."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    ZERO_UUID,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Part,
    String,
    Uuid,
    field,
)


class BrokerState(Part):
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1


class PartitionDataRequest(Part):
    partition_index: Int32 = 0
    leader_epoch: Int32 = 0
    new_isr: list[Int32] = field(default=EMPTY, until=2)
    new_isr_with_epochs: list[BrokerState] = field(default=EMPTY, since=3)
    leader_recovery_state: Int8 = field(default=0, since=1)
    partition_epoch: Int32 = 0


class TopicDataRequest(Part):
    topic_name: String = field(default="", until=1, ignorable=True)
    topic_id: Uuid = field(default=ZERO_UUID, since=2, ignorable=True)
    partitions: list[PartitionDataRequest] = EMPTY


class AlterPartitionRequest(
    Message, api_key=ApiKey.ALTER_PARTITION, versions=(0, 3), flexible_since=0
):
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    topics: list[TopicDataRequest] = EMPTY


class PartitionDataResponse(Part):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    isr: list[Int32] = EMPTY
    leader_recovery_state: Int8 = field(default=0, since=1, ignorable=True)
    partition_epoch: Int32 = 0


class TopicDataResponse(Part):
    topic_name: String = field(default="", until=1, ignorable=True)
    topic_id: Uuid = field(default=ZERO_UUID, since=2, ignorable=True)
    partitions: list[PartitionDataResponse] = EMPTY


class AlterPartitionResponse(
    Message, api_key=ApiKey.ALTER_PARTITION, versions=(0, 3), flexible_since=0
):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    topics: list[TopicDataResponse] = EMPTY
