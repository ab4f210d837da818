"""LeaveGroup: members of a classic group leave, and the others rebalance at once.

- A static member may be named by its group.instance.id alone, as admin tools do.
- Very many members leave in portions, as if each portion were a request.

Versions:
  v0  one member; its error is that of the whole
  v1  throttle time
  v3  several members, each with an answer of its own; group.instance.id
  v4  flexible
  v5  the client's reason
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from ottla.server.api import Answer, Request, handles
from ottla.server.portions import PORTION


@handles(LeaveGroupRequest, versions=(0, 5))
def leave_group(request: Request[LeaveGroupRequest]) -> Answer:
    members = request.message.members
    return _leave(request, members) if len(members) <= PORTION else _leave_in_portions(request)


def _leave(
    request: Request[LeaveGroupRequest], members: Sequence[MemberIdentity]
) -> Message | asyncio.Future[Message]:
    message = LeaveGroupRequest(
        group_id=request.message.group_id,
        member_id=request.message.member_id,
        members=list(members),
    )
    version = request.version
    return request.broker.groups.submit(
        message.group_id,
        lambda shard, ticket, now: shard.leave_group(ticket, message, now, version),
        lambda code: LeaveGroupResponse(error_code=code),
    )


async def _leave_in_portions(request: Request[LeaveGroupRequest]) -> Message:
    members = request.message.members
    whole = LeaveGroupResponse()
    for first in range(0, len(members), PORTION):
        answer = _leave(request, members[first : first + PORTION])
        if not isinstance(answer, Message):
            answer = await answer
        assert isinstance(answer, LeaveGroupResponse)
        if answer.error_code != ErrorCode.NONE:
            return answer
        whole.members += answer.members
        await asyncio.sleep(0)  # the loop's turn
    return whole
