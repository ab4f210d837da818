"""LeaveGroup: members of a classic group leave, and the others rebalance at once.

- A static member may be named by its group.instance.id alone, as admin tools do.

Versions:
  v0  one member; its error is that of the whole
  v1  throttle time
  v3  several members, each with an answer of its own; group.instance.id
  v4  flexible
  v5  the client's reason
"""

from __future__ import annotations

import asyncio

from ottla.protocol.message import Message
from ottla.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from ottla.server.api import Request, handles


@handles(LeaveGroupRequest, versions=(0, 5))
def leave_group(request: Request[LeaveGroupRequest]) -> Message | asyncio.Future[Message]:
    message, version = request.message, request.version
    return request.broker.groups.submit(
        message.group_id,
        lambda shard, ticket, now: shard.leave_group(ticket, message, now, version),
        lambda code: LeaveGroupResponse(error_code=code),
    )
