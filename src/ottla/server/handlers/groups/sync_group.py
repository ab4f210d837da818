"""SyncGroup: the leader of a classic group hands in the assignment, and every member gets its part.

- Members wait until the leader's assignment is stored. One that the leader left out gets an empty
  assignment.
- A member that asks again gets its assignment again, as long as the generation is the same.
- Members that have joined and do not come within the rebalance timeout are removed.

Versions:
  v1  throttle time
  v3  group.instance.id
  v4  flexible
  v5  protocol type and name, checked against those of the group
"""

from __future__ import annotations

import asyncio

from ottla.protocol.message import Message
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from ottla.server.api import Request, handles


@handles(SyncGroupRequest, versions=(0, 5))
def sync_group(request: Request[SyncGroupRequest]) -> Message | asyncio.Future[Message]:
    message = request.message
    request.connection.activity.note_member(message.group_id, message.member_id)
    return request.broker.groups.submit(
        message.group_id,
        lambda shard, ticket, now: shard.sync_group(ticket, message, now),
        lambda code: SyncGroupResponse(error_code=code),
    )
