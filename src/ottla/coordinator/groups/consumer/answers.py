"""Requests and answers of the new consumer group protocol."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ottla.coordinator.groups.consumer.member import (
    AWAY_EPOCH,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    ConsumerMember,
)
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.consumer_group_describe import Assignment as DescribedAssignment
from ottla.protocol.messages.consumer_group_describe import (
    DescribedGroup,
    Member,
    TopicPartitions,
)
from ottla.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitionsResponse,
)

if TYPE_CHECKING:
    from ottla.coordinator.groups.consumer.group import ConsumerGroup
    from ottla.coordinator.metadata_view import MetadataView

# From this version of the heartbeat on, clients make their member ids themselves.
_OWN_MEMBER_IDS_SINCE = 1
# What a description calls a member by.
_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1

# Partitions by topic id, as a member says that it holds them.
HeldPartitions = Mapping[bytes, frozenset[int]]


def check_heartbeat(
    request: ConsumerGroupHeartbeatRequest, version: int, assignors: Collection[str]
) -> None:
    """What can be said of a heartbeat without looking at the group. Raises ProtocolError."""
    epoch = request.member_epoch
    needs_id = version >= _OWN_MEMBER_IDS_SINCE or epoch > 0 or epoch == LEAVE_EPOCH
    if needs_id and not request.member_id.strip():
        raise _invalid("A member id is needed.")
    for name, value in (
        ("group", request.group_id),
        ("instance", request.instance_id),
        ("rack", request.rack_id),
    ):
        if value is not None and not value.strip():
            raise _invalid(f"The {name} id must not be empty.")
    if epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == -1:
            raise _invalid("A member that joins has to tell its rebalance timeout.")
        if request.topic_partitions is None or request.topic_partitions:
            raise _invalid("A member that joins must hold no partitions, and say so.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise _invalid("A member that joins has to subscribe, by names or by a pattern.")
    elif epoch == AWAY_EPOCH and request.instance_id is None:
        raise _invalid("Only a member with an instance id can leave for a while.")
    elif epoch < AWAY_EPOCH:
        raise _invalid(f"{epoch} is no member epoch.")
    assignor = request.server_assignor
    if assignor is not None and assignor not in assignors:
        raise ProtocolError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"The assignors here are {', '.join(assignors)}.",
        )


def _invalid(why: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_REQUEST, why)


def is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the heartbeat holds all fields (as after a lost answer), so that the answer must, too."""
    return (
        request.rebalance_timeout_ms != -1
        and (
            request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        )
        and request.topic_partitions is not None
    )


def held_by(request: ConsumerGroupHeartbeatRequest) -> HeldPartitions | None:
    if request.topic_partitions is None:
        return None
    held: dict[bytes, frozenset[int]] = {}
    for each in request.topic_partitions:
        held[each.topic_id] = held.get(each.topic_id, frozenset()).union(each.partitions)
    return held


def refused_heartbeat(error: ProtocolError) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)


def assignment_of(member: ConsumerMember) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitionsResponse(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in member.assigned.items()
        ]
    )


def described(
    group: ConsumerGroup, default_assignor: str, metadata: MetadataView
) -> DescribedGroup:
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor or default_assignor,
        members=[_described(group, member, metadata) for member in group.members.values()],
    )


def _described(group: ConsumerGroup, member: ConsumerMember, metadata: MetadataView) -> Member:
    return Member(
        member_id=member.id,
        instance_id=member.instance_id,
        rack_id=member.rack,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.pattern,
        assignment=_assignment(member.holdings, metadata),
        target_assignment=_assignment(group.targets.get(member.id, {}), metadata),
        member_type=_CLASSIC_MEMBER if member.uses_classic_protocol else _CONSUMER_MEMBER,
    )


def _assignment(
    partitions: Mapping[bytes, Collection[int]], metadata: MetadataView
) -> DescribedAssignment:
    named = ((topic_id, metadata.topic_name(topic_id)) for topic_id in partitions)
    return DescribedAssignment(
        topic_partitions=[
            TopicPartitions(
                topic_id=topic_id, topic_name=name, partitions=sorted(partitions[topic_id])
            )
            for topic_id, name in named
            # Of a topic that is gone nothing is told.
            if name is not None
        ]
    )
