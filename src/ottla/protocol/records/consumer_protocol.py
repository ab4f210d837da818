"""What consumers put into the opaque bytes of JoinGroup and SyncGroup."""

from __future__ import annotations

from ottla.protocol.message import (
    EMPTY,
    Bytes,
    Int32,
    Message,
    Part,
    String,
    field,
)


class ConsumerProtocolSubscriptionTopicPartition(Part):
    topic: String = ""
    partitions: list[Int32] = EMPTY


class ConsumerProtocolSubscription(Message, versions=(0, 3)):
    topics: list[String] = EMPTY
    user_data: Bytes | None = None
    owned_partitions: list[ConsumerProtocolSubscriptionTopicPartition] = field(
        default=EMPTY, since=1, ignorable=True
    )
    generation_id: Int32 = field(default=-1, since=2, ignorable=True)
    rack_id: String | None = field(default=None, since=3, ignorable=True)


class ConsumerProtocolAssignmentTopicPartition(Part):
    topic: String = ""
    partitions: list[Int32] = EMPTY


class ConsumerProtocolAssignment(Message, versions=(0, 3)):
    assigned_partitions: list[ConsumerProtocolAssignmentTopicPartition] = EMPTY
    user_data: Bytes | None = None
