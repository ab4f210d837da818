"""OffsetDelete: forget a group's offsets of some partitions.

- Not of topics that the group subscribes to; and of a group with members that are no consumers,
  nothing at all.

Versions: only v0
"""

from __future__ import annotations

import asyncio

from ottla.protocol.message import Message
from ottla.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from ottla.server.api import Request, handles


@handles(OffsetDeleteRequest, versions=(0, 0))
def offset_delete(request: Request[OffsetDeleteRequest]) -> Message | asyncio.Future[Message]:
    message = request.message
    return request.broker.groups.submit(
        message.group_id,
        lambda shard, ticket, now: shard.offset_delete(ticket, message, now),
        lambda code: OffsetDeleteResponse(error_code=code),
    )
