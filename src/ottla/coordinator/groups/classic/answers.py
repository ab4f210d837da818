"""Requests and answers of the classic group protocol, in all their versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from ottla.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from ottla.protocol.messages.sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from ottla.coordinator.groups.classic.group import ClassicGroup, ClassicMember, Protocols
    from ottla.coordinator.shard import Effects, Ticket
    from ottla.protocol.errors import ErrorCode
    from ottla.protocol.message import Message

# From this version of JoinGroup on, an answer can name no protocol.
_NO_PROTOCOL_SINCE: Final = 7
# From this version of LeaveGroup on, several members can leave at once.
_LEAVE_TOGETHER_SINCE: Final = 3


def protocols_of(request: JoinGroupRequest) -> Protocols:
    protocols: Protocols = {}
    for each in request.protocols:
        protocols.setdefault(each.name, each.metadata)
    return protocols


def rebalance_timeout(request: JoinGroupRequest, version: int) -> int:
    """The rebalance timeout of a member: in version 0 the session timeout, the only one there is."""
    return request.rebalance_timeout_ms if version > 0 else request.session_timeout_ms


def refused_join(code: ErrorCode, member_id: str, version: int) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=code,
        member_id=member_id,
        protocol_name=None if version >= _NO_PROTOCOL_SINCE else "",
    )


def joined(
    group: ClassicGroup, member: ClassicMember, leader: str | None = None
) -> JoinGroupResponse:
    protocol = group.protocol or ""
    response = JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=protocol,
        leader=leader or group.leader or "",
        member_id=member.id,
    )
    # Only the leader, who assigns, needs to know the others; unless it is not to assign.
    if group.leader == member.id and leader is None:
        response.members = [
            JoinGroupResponseMember(
                member_id=each.id,
                group_instance_id=each.instance_id,
                metadata=each.protocols[protocol],
            )
            for each in group.members.values()
        ]
    return response


def refuse_join(
    group: ClassicGroup, member: ClassicMember, code: ErrorCode, member_id: str, out: Effects
) -> None:
    joining = group.take_join(member)
    if joining is not None:
        out.answers.append((joining.ticket, refused_join(code, member_id, joining.version)))


def assigned(group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=assignment
    )


def answer_sync(member: ClassicMember, response: SyncGroupResponse, out: Effects) -> bool:
    """Answer the member's SyncGroup, if one waits."""
    waiting, member.syncing = member.syncing, None
    if waiting is not None:
        out.answers.append((waiting, response))
    return waiting is not None


def waiting_answers(group: ClassicGroup, code: ErrorCode) -> list[tuple[Ticket, Message]]:
    """All requests that wait, each with this error for an answer. They go on waiting."""
    answers: list[tuple[Ticket, Message]] = []
    for member in group.members.values():
        if member.joining is not None:
            refusal = refused_join(code, member.id, member.joining.version)
            answers.append((member.joining.ticket, refusal))
        if member.syncing is not None:
            answers.append((member.syncing, SyncGroupResponse(error_code=code)))
    return answers


def leaving(request: LeaveGroupRequest, version: int) -> list[MemberIdentity]:
    if version >= _LEAVE_TOGETHER_SINCE:
        return request.members
    return [MemberIdentity(member_id=request.member_id)]


def left(results: list[MemberResponse], version: int) -> LeaveGroupResponse:
    if version >= _LEAVE_TOGETHER_SINCE:
        return LeaveGroupResponse(members=results)
    return LeaveGroupResponse(error_code=results[0].error_code)
