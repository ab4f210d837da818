"""The bytes in which consumers of the classic protocol tell their subscriptions and assignments.

The coordinator reads and writes them only where members of both protocols meet in one group. They
begin with their version; a later one than is known is read as the latest that is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.protocol.message import MalformedMessage
from ottla.protocol.records.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
)

if TYPE_CHECKING:
    from ottla.coordinator.groups.assignors import Partitions
    from ottla.coordinator.metadata_view import MetadataView

_VERSION_SIZE: Final = 2


def read_subscription(metadata: bytes) -> ConsumerProtocolSubscription:
    """Decode a member's subscription. Raises MalformedMessage."""
    version = _version(metadata, ConsumerProtocolSubscription.versions[1])
    return ConsumerProtocolSubscription.decode(metadata, _VERSION_SIZE, version)[0]


def read_assignment(assignment: bytes) -> ConsumerProtocolAssignment:
    """Decode a member's assignment. Raises MalformedMessage."""
    version = _version(assignment, ConsumerProtocolAssignment.versions[1])
    return ConsumerProtocolAssignment.decode(assignment, _VERSION_SIZE, version)[0]


def encode_assignment(partitions: Partitions, metadata: bytes, topics: MetadataView) -> bytes:
    """For a member with this subscription, in its version. Topics that are gone are left out."""
    version = _version(metadata, ConsumerProtocolAssignment.versions[1])
    named = ((topics.topic_name(topic_id), partitions[topic_id]) for topic_id in sorted(partitions))
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignmentTopicPartition(topic=name, partitions=sorted(indexes))
            for name, indexes in named
            if name is not None
        ]
    )
    return version.to_bytes(_VERSION_SIZE, "big") + assignment.encode(version)


def _version(data: bytes, latest: int) -> int:
    version = int.from_bytes(data[:_VERSION_SIZE], "big", signed=True)
    if len(data) < _VERSION_SIZE or version < 0:
        raise MalformedMessage("no version of the consumer protocol")
    return min(version, latest)
