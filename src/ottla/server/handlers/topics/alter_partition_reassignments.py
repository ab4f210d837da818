"""AlterPartitionReassignments: move replicas of partitions to other brokers, or take such moves back.

- Decided by the controller (cluster/decisions/moves.py); other brokers pass the request on to it.
- A target whose disk has no room for the partition is refused, before anything is moved to it. (Kafka
  begins, and fills the disk.)
- A partition that is named twice in one request is moved nowhere: which of the two is meant?
- The answer comes when the moves have begun, not when they have ended: ListPartitionReassignments tells.

Versions:
  v1  whether the number of replicas may change
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ottla.cluster.decisions.moves import WantedMove
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from ottla.server.api import Request, handles
from ottla.server.failures import error_message
from ottla.server.replication.room import FullDisk, without_room
from ottla.server.turns import Turns, emptied, in_turns

# Partitions that the controller decides on in one go.
_AT_ONCE = 100


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
    wanted: list[tuple[WantedMove, ReassignableTopicResponse]] = []
    named: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    for topic in message.topics:
        answer = ReassignableTopicResponse(name=topic.name)
        response.responses.append(answer)
        for each in topic.partitions:
            replicas = None if each.replicas is None else tuple(each.replicas)
            wanted.append((WantedMove(topic.name, each.partition_index, replicas), answer))
            key = (topic.name, each.partition_index)
            (twice if key in named else named).add(key)
            await turns.pause()
        await turns.pause()
    try:
        once = (move for move, _ in wanted if (move.topic, move.index) not in twice)
        refused = await without_room(request.broker, once)
        for first in range(0, len(wanted), _AT_ONCE):
            await _decide(request, wanted[first : first + _AT_ONCE], twice, refused)
            await turns.pause()
    except ProtocolError as error:
        response.error_code = error.code
        response.error_message = error_message(error)
        response.responses = []
    await in_turns(emptied(wanted))
    return response


async def _decide(
    request: Request[AlterPartitionReassignmentsRequest],
    wanted: Sequence[tuple[WantedMove, ReassignableTopicResponse]],
    twice: Collection[tuple[str, int]],
    refused: Mapping[tuple[str, int], FullDisk],
) -> None:
    """Has the controller decide about some of the moves, and adds to the answers."""
    possible = [
        move
        for move, _ in wanted
        if (move.topic, move.index) not in refused and (move.topic, move.index) not in twice
    ]
    results = iter(
        await request.broker.controller.alter_moves(
            possible, may_change_factor=request.message.allow_replication_factor_change
        )
    )
    for move, answer in wanted:
        key = (move.topic, move.index)
        error: ProtocolError | None
        if key in twice:
            error = ProtocolError(
                ErrorCode.INVALID_REQUEST,
                f"Partition {move.topic}-{move.index} is named twice in the request.",
            )
        elif key in refused:
            error = ProtocolError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, refused[key].sentence)
        else:
            error = next(results).error
        answer.partitions.append(
            ReassignablePartitionResponse(
                partition_index=move.index,
                error_code=ErrorCode.NONE if error is None else error.code,
                error_message=error_message(error),
            )
        )
