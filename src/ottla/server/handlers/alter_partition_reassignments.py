"""AlterPartitionReassignments: move replicas of partitions to other brokers, or take such moves back.

- Decided by the controller (cluster/decisions/moves.py); other brokers pass the request on to it.
- A target whose disk has no room for the partition is refused, before anything is moved to it. (Kafka
  begins, and fills the disk.)
- The answer comes when the moves have begun, not when they have ended: ListPartitionReassignments tells.

Versions:
  v1  whether the number of replicas may change
"""

from __future__ import annotations

from ottla.cluster.decisions.moves import MoveResult, WantedMove
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopic,
    ReassignableTopicResponse,
)
from ottla.server.api import Request, handles
from ottla.server.failures import error_message
from ottla.server.replication.room import without_room
from ottla.server.turns import Turns

# Partitions that the controller decides on in one go.
_AT_ONCE = 1000


@handles(AlterPartitionReassignmentsRequest, versions=(0, 1), by_controller=True)
async def alter_partition_reassignments(
    request: Request[AlterPartitionReassignmentsRequest],
) -> AlterPartitionReassignmentsResponse:
    message = request.message
    response = AlterPartitionReassignmentsResponse(
        error_message=None,
        allow_replication_factor_change=message.allow_replication_factor_change,
    )
    turns = Turns()
    try:
        for topic in message.topics:
            response.responses.append(await _of_topic(request, topic, turns))
            await turns.pause()
    except ProtocolError as error:
        response.error_code = error.code
        response.error_message = error_message(error)
        response.responses = []
    return response


async def _of_topic(
    request: Request[AlterPartitionReassignmentsRequest], topic: ReassignableTopic, turns: Turns
) -> ReassignableTopicResponse:
    answer = ReassignableTopicResponse(name=topic.name)
    for first in range(0, len(topic.partitions), _AT_ONCE):
        wanted = [
            WantedMove(
                topic.name,
                each.partition_index,
                None if each.replicas is None else tuple(each.replicas),
            )
            for each in topic.partitions[first : first + _AT_ONCE]
        ]
        refused = await without_room(request.broker, wanted)
        results = await request.broker.controller.alter_moves(
            [each for each in wanted if (each.topic, each.index) not in refused],
            may_change_factor=request.message.allow_replication_factor_change,
        )
        results += [
            MoveResult(name, index, ProtocolError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, why))
            for (name, index), why in refused.items()
        ]
        answer.partitions += [
            ReassignablePartitionResponse(
                partition_index=each.index,
                error_code=ErrorCode.NONE if each.error is None else each.error.code,
                error_message=error_message(each.error),
            )
            for each in results
        ]
        await turns.pause()
    return answer
