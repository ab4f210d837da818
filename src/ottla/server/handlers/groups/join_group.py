"""JoinGroup: become a member of a classic group, and take part in a rebalance.

- The answer waits until all members have joined, or the rebalance timeout leaves the others out; the
  first members of a group are waited for by `group.initial.rebalance.delay.ms`.
- Everybody is told the generation, the protocol (assignor) that was chosen and the leader; the leader
  is told the members and their metadata, which it assigns by.
- A member with a `group.instance.id` keeps its place when it comes back within its session timeout:
  it gets a new member id, whoever uses the old one is fenced, and the group does not rebalance.

Versions:
  v1  a rebalance timeout of its own
  v2  throttle time
  v4  a new member is first given an id (MEMBER_ID_REQUIRED) and joins again with it
  v5  group.instance.id
  v6  flexible
  v7  the protocol type in the answer
  v8  the client's reason
  v9  a static leader that is back is told to skip the assignment
"""

from __future__ import annotations

import asyncio

from ottla.coordinator.groups.classic.answers import refused_join
from ottla.protocol.message import Message
from ottla.protocol.messages.join_group import JoinGroupRequest
from ottla.server.api import Request, handles
from ottla.server.coordination.group_callers import caller_of


@handles(JoinGroupRequest, versions=(0, 9))
def join_group(request: Request[JoinGroupRequest]) -> Message | asyncio.Future[Message]:
    message, caller = request.message, caller_of(request)
    request.connection.activity.note_member(message.group_id, message.member_id)
    return request.broker.groups.submit(
        message.group_id,
        lambda shard, ticket, now: shard.join_group(ticket, message, now, caller),
        lambda code: refused_join(code, message.member_id, request.version),
    )
