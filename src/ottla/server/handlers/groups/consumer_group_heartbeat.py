"""ConsumerGroupHeartbeat: the whole of the new consumer group protocol (KIP-848).

- Epoch 0 joins, with the subscription; -1 leaves; -2 is a static member that will be back. Otherwise
  the epoch is the one of the last answer, and what did not change is left out.
- The answer has an assignment when there is something new to hold; partitions to give up are those
  that it leaves out, and their loss is acknowledged by the next heartbeat's list of what is held.
- FENCED_MEMBER_EPOCH and UNKNOWN_MEMBER_ID: give up everything and join again.
- With the feature `group.version` at 0, or without "consumer" in
  `group.coordinator.rebalance.protocols`, it is UNSUPPORTED_VERSION.

Versions:
  v1  subscriptions by regular expression; clients make their member ids themselves
"""

from __future__ import annotations

import asyncio

from ottla.coordinator.groups.consumer.answers import refused_heartbeat
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.message import Message
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from ottla.server.api import Request, handles
from ottla.server.coordination.group_callers import caller_of, speaks_new_protocol


@handles(ConsumerGroupHeartbeatRequest, versions=(0, 1))
def consumer_group_heartbeat(
    request: Request[ConsumerGroupHeartbeatRequest],
) -> Message | asyncio.Future[Message]:
    if not speaks_new_protocol(request.broker):
        return _refused(ErrorCode.UNSUPPORTED_VERSION)
    message, caller = request.message, caller_of(request)
    request.connection.activity.note_member(message.group_id, message.member_id)
    return request.broker.groups.submit(
        message.group_id,
        lambda shard, ticket, now: shard.consumer_group_heartbeat(ticket, message, now, caller),
        _refused,
    )


def _refused(code: ErrorCode) -> ConsumerGroupHeartbeatResponse:
    if code is ErrorCode.INVALID_COMMIT_OFFSET_SIZE:
        # The group is too large for one batch of its log, but this was no commit.
        code = ErrorCode.UNKNOWN_SERVER_ERROR
    return refused_heartbeat(ProtocolError(code))
