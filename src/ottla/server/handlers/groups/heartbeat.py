"""Heartbeat: a member of a classic group says that it lives, and hears whether to join again.

- REBALANCE_IN_PROGRESS asks the member to join again.
- Nothing is written. While the coordinator loads, every heartbeat is fine: sessions begin after it.

Versions:
  v1  throttle time
  v3  group.instance.id
  v4  flexible
"""

from __future__ import annotations

import asyncio

from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.server.api import Request, handles


@handles(HeartbeatRequest, versions=(0, 4))
def heartbeat(request: Request[HeartbeatRequest]) -> Message | asyncio.Future[Message]:
    message = request.message
    request.connection.activity.note_member(message.group_id, message.member_id)
    return request.broker.groups.submit(
        message.group_id,
        lambda shard, ticket, now: shard.heartbeat(ticket, message, now),
        _refused,
    )


def _refused(code: ErrorCode) -> HeartbeatResponse:
    if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        return HeartbeatResponse()
    return HeartbeatResponse(error_code=code)
