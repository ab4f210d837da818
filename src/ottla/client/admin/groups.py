"""Groups: list, describe, delete, remove members; classic ones and those of KIP-848."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from struct import error as struct_error
from struct import unpack_from
from typing import Final, Literal, TypeVar

from ottla.client.admin.base import AdminPart
from ottla.client.cluster import Coordinator, CoordinatorKind, OneBroker
from ottla.client.errors import (
    BrokerError,
    GroupNotFound,
    OttlaError,
    Unsupported,
    broker_error,
    raise_for,
)
from ottla.client.naming import Names, names_of
from ottla.client.positions import TopicPartition
from ottla.client.spreading import Coordinators, Outcomes, Verdict, spread
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import MalformedMessage, Message
from ottla.protocol.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from ottla.protocol.messages.consumer_group_describe import (
    DescribedGroup as DescribedConsumerGroup,
)
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from ottla.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from ottla.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.records.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from ottla.wire.connection import Connection

_Answer = TypeVar("_Answer", bound=Message)
_Value = TypeVar("_Value")
_Opaque = TypeVar("_Opaque", bound=Message)
GroupType = Literal["classic", "consumer", "share", "streams"]

_STATES_SINCE: Final = 4  # ListGroups
_TYPES_SINCE: Final = 5
_SEVERAL_LEAVE_SINCE: Final = 3  # LeaveGroup
_REMOVED: Final = "removed by an administrator"
_UNSUPPORTED: Final = ErrorCode.UNSUPPORTED_VERSION


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group as its coordinator lists it; None: the broker is too old to tell."""

    group: str
    type: str | None  # classic, consumer, share, streams
    state: str | None  # Stable, Empty, PreparingRebalance, …
    protocol_type: str  # "consumer" for consumers; empty for a group that only keeps offsets
    coordinator: int


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group and what it reads."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]
    topics: tuple[str, ...] = ()  # subscribed to
    pattern: str | None = None  # subscribed to
    target: tuple[TopicPartition, ...] | None = None  # None: classic groups have no such thing
    epoch: int | None = None
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group, its state and its members."""

    group: str
    type: GroupType
    state: str
    assignor: str
    coordinator: int
    members: tuple[GroupMember, ...]
    protocol_type: str = "consumer"
    epoch: int | None = None
    assignment_epoch: int | None = None

    @property
    def is_active(self) -> bool:
        """Whether it has members: their offsets cannot be altered from outside."""
        return bool(self.members)


class GroupsAdmin(AdminPart):
    """The calls about groups."""

    async def list_groups(
        self,
        *,
        states: Names = (),
        types: GroupType | Iterable[GroupType] = (),
        timeout: float | None = None,
    ) -> list[GroupListing]:
        """All groups of the cluster, by name, or those in one of the states and of the types.

        Unsupported where the broker is too old to choose by state (Kafka 2.6) or type (4.0).
        """
        wanted_states = [_capitalised(state) for state in names_of(states, "states")]
        wanted_types = names_of(types, "types")
        listings = await self.cluster.of_every_broker(
            lambda node: self._list_groups(node, wanted_states, wanted_types, timeout),
            timeout=timeout,
        )
        return sorted((each for some in listings for each in some), key=lambda each: each.group)

    async def _list_groups(
        self, node: int, states: list[str], types: list[str], timeout: float | None
    ) -> list[GroupListing]:
        def request(connection: Connection) -> ListGroupsRequest:
            version = connection.version_of(ListGroupsRequest)
            if (states and version < _STATES_SINCE) or (types and version < _TYPES_SINCE):
                raise Unsupported(
                    f"{connection.address} cannot choose groups by state (Kafka 2.6) or type (4.0)"
                )
            return ListGroupsRequest(states_filter=states, types_filter=types)

        answer = await self.cluster.ask(
            request, ListGroupsResponse, at=OneBroker(node), timeout=timeout
        )
        raise_for(answer.error_code, about="listing groups")
        return [
            GroupListing(
                each.group_id,
                each.group_type.lower() or None,
                each.group_state or None,
                each.protocol_type,
                node,
            )
            for each in answer.groups
        ]

    async def describe_groups(
        self, groups: Names, *, timeout: float | None = None
    ) -> dict[str, GroupDescription]:
        """Groups with their members; GroupNotFound for those that are not there."""
        names = names_of(groups, "groups")
        modern = await self._describe_modern(names, timeout)
        # Groups of the classic protocol are unknown to that call, and older brokers know none.
        rest = [name for name in names if name not in modern.results]
        refused = {
            name: error
            for name, error in modern.errors.items()
            if not isinstance(error, (GroupNotFound, Unsupported))
            and not (isinstance(error, BrokerError) and error.code is _UNSUPPORTED)
        }
        classic = await self._describe_classic([n for n in rest if n not in refused], timeout)
        described = Outcomes(modern.results | classic.results, refused | classic.errors)
        found = described.all()
        return {name: found[name] for name in names}

    async def _describe_modern(
        self, names: list[str], timeout: float | None
    ) -> Outcomes[str, GroupDescription]:
        def read(
            answer: ConsumerGroupDescribeResponse,
        ) -> Iterable[Verdict[str, DescribedConsumerGroup]]:
            for each in answer.groups:
                yield Verdict(each.group_id, each.error_code, each, each.error_message)

        outcomes = await self._ask_coordinators(
            names,
            lambda some: ConsumerGroupDescribeRequest(group_ids=some),
            ConsumerGroupDescribeResponse,
            read,
            timeout,
        )
        return await _described(outcomes, self._modern)

    async def _modern(self, group: DescribedConsumerGroup) -> GroupDescription:
        return GroupDescription(
            group=group.group_id,
            type="consumer",
            state=group.group_state,
            assignor=group.assignor_name,
            coordinator=await self._coordinator_of(group.group_id),
            members=tuple(
                GroupMember(
                    member_id=each.member_id,
                    instance_id=each.instance_id,
                    client_id=each.client_id,
                    host=each.client_host.lstrip("/"),
                    assignment=_partitions(each.assignment),
                    topics=tuple(each.subscribed_topic_names),
                    pattern=each.subscribed_topic_regex or None,
                    target=_partitions(each.target_assignment),
                    epoch=each.member_epoch,
                    rack=each.rack_id,
                )
                for each in sorted(group.members, key=lambda each: each.member_id)
            ),
            epoch=group.group_epoch,
            assignment_epoch=group.assignment_epoch,
        )

    async def _describe_classic(
        self, names: list[str], timeout: float | None
    ) -> Outcomes[str, GroupDescription]:
        def read(answer: DescribeGroupsResponse) -> Iterable[Verdict[str, DescribedGroup]]:
            for each in answer.groups:
                code = each.error_code
                if not code and each.group_state == "Dead":
                    code = ErrorCode.GROUP_ID_NOT_FOUND  # what versions before 6 say of it
                yield Verdict(each.group_id, code, each, each.error_message)

        outcomes = await self._ask_coordinators(
            names,
            lambda some: DescribeGroupsRequest(groups=some),
            DescribeGroupsResponse,
            read,
            timeout,
        )
        return await _described(outcomes, self._classic)

    async def _classic(self, group: DescribedGroup) -> GroupDescription:
        return GroupDescription(
            group=group.group_id,
            type="classic",
            state=group.group_state,
            assignor=group.protocol_data,
            coordinator=await self._coordinator_of(group.group_id),
            members=tuple(
                _classic_member(each, group.protocol_type)
                for each in sorted(group.members, key=lambda each: each.member_id)
            ),
            protocol_type=group.protocol_type,
        )

    async def _ask_coordinators(
        self,
        groups: list[str],
        build: Callable[[list[str]], Message],
        answer: type[_Answer],
        read: Callable[[_Answer], Iterable[Verdict[str, _Value]]],
        timeout: float | None,
    ) -> Outcomes[str, _Value]:
        """One request to each coordinator, about those of the groups that it has."""
        return await spread(
            self.cluster,
            groups,
            Coordinators(self.cluster, CoordinatorKind.GROUP),
            build=lambda _, some: build(some),
            answer=answer,
            read=lambda decoded, _: read(decoded),
            timeout=timeout,
        )

    async def _coordinator_of(self, group: str) -> int:
        found = await self.cluster.coordinators(CoordinatorKind.GROUP, [group])
        return found[group].id

    async def delete_groups(self, groups: Names, *, timeout: float | None = None) -> None:
        """Delete groups that have no members, with their offsets. GroupNotFound, GroupNotEmpty."""

        def read(answer: DeleteGroupsResponse) -> Iterable[Verdict[str, None]]:
            for each in answer.results:
                yield Verdict(each.group_id, each.error_code, None)

        deleted = await self._ask_coordinators(
            names_of(groups, "groups"),
            lambda some: DeleteGroupsRequest(groups_names=some),
            DeleteGroupsResponse,
            read,
            timeout,
        )
        deleted.all()

    async def remove_members(
        self,
        group: str,
        *,
        instance_ids: Names | None = None,
        member_ids: Names = (),
        reason: str = _REMOVED,
        timeout: float | None = None,
    ) -> list[str]:
        """Make members leave a classic group, so that others take their partitions at once.

        Without any ids all members are removed. The result names those that were (instance id, or
        member id where there is none). A member that is alive simply joins again. GroupNotFound;
        UnknownMember for ids that the group does not know.
        """
        identities = [
            MemberIdentity(group_instance_id=each, reason=reason)
            for each in names_of(() if instance_ids is None else instance_ids, "instance_ids")
        ] + [
            MemberIdentity(member_id=each, reason=reason)
            for each in names_of(member_ids, "member_ids")
        ]
        if instance_ids is None and not identities:
            described = (await self.describe_groups(group, timeout=timeout))[group]
            identities = [
                MemberIdentity(
                    member_id="" if each.instance_id else each.member_id,
                    group_instance_id=each.instance_id,
                    reason=reason,
                )
                for each in described.members
            ]
        if not identities:
            return []

        def request(connection: Connection) -> LeaveGroupRequest:
            if connection.version_of(LeaveGroupRequest) < _SEVERAL_LEAVE_SINCE:
                raise Unsupported(f"{connection.address} cannot remove members (Kafka 2.4)")
            return LeaveGroupRequest(group_id=group, members=identities)

        answer = await self.cluster.ask(
            request, LeaveGroupResponse, at=Coordinator.of_group(group), timeout=timeout
        )
        raise_for(answer.error_code, about=f"group '{group}'")
        results: dict[str, str] = {}
        errors: dict[str, OttlaError] = {}
        for each in answer.members:
            name = each.group_instance_id or each.member_id
            if each.error_code:
                errors[name] = broker_error(
                    each.error_code, about=f"member '{name}' of group '{group}'"
                )
            else:
                results[name] = name
        return list(Outcomes(results, errors).all())


async def _described(
    found: Outcomes[str, _Value], describe: Callable[[_Value], Awaitable[GroupDescription]]
) -> Outcomes[str, GroupDescription]:
    results = {name: await describe(group) for name, group in found.results.items()}
    return Outcomes(results, found.errors)


def _capitalised(state: str) -> str:
    """A state such as `stable` or `preparing-rebalance` as the broker spells it."""
    if any(letter.isupper() for letter in state):
        return state
    return "".join(part.capitalize() for part in state.replace("_", "-").split("-"))


def _partitions(assignment: Assignment) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(
            TopicPartition(topic.topic_name, index)
            for topic in assignment.topic_partitions
            for index in topic.partitions
        )
    )


def _classic_member(member: DescribedGroupMember, protocol_type: str) -> GroupMember:
    assignment: tuple[TopicPartition, ...] = ()
    topics: tuple[str, ...] = ()
    if protocol_type == "consumer":
        # Other kinds of groups (Connect) put something else into these bytes.
        assigned = _read_opaque(ConsumerProtocolAssignment, member.member_assignment)
        subscribed = _read_opaque(ConsumerProtocolSubscription, member.member_metadata)
        if assigned is not None:
            assignment = tuple(
                sorted(
                    TopicPartition(topic.topic, index)
                    for topic in assigned.assigned_partitions
                    for index in topic.partitions
                )
            )
        if subscribed is not None:
            topics = tuple(sorted(subscribed.topics))
    return GroupMember(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        host=member.client_host.lstrip("/"),
        assignment=assignment,
        topics=topics,
    )


def _read_opaque(kind: type[_Opaque], content: bytes) -> _Opaque | None:
    """What a consumer wrote; None where it is empty or not what consumers write."""
    try:
        (version,) = unpack_from(">h", content)
        return kind.decode(content, 2, min(version, kind.versions[1]))[0]
    except (struct_error, MalformedMessage):
        return None
