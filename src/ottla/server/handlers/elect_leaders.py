"""ElectLeaders: have the preferred replica of a partition lead it, or any replica that is left.

- Decided by the controller; other brokers pass the request on to it.
- A partition that is led as it should be is ELECTION_NOT_NEEDED. With one broker all of them are.
- Null stands for all partitions; then only those are named whose leader is another one now.

Versions:
  v1  the kind of election (before: preferred), an error of the whole
  v2  flexible
"""

from __future__ import annotations

from ottla.cluster.decisions.partitions import ElectionType
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from ottla.server.api import Request, handles
from ottla.server.failures import error_message
from ottla.server.turns import Turns

_KINDS = {int(kind): kind for kind in ElectionType}
# Partitions that the controller decides on in one go.
_AT_ONCE = 1000


@handles(ElectLeadersRequest, versions=(0, 2), by_controller=True)
async def elect_leaders(request: Request[ElectLeadersRequest]) -> ElectLeadersResponse:
    message = request.message
    kind = _KINDS.get(message.election_type)
    turns = Turns()
    if message.topic_partitions is None:
        wanted = None
    else:
        wanted = []
        for topic in message.topic_partitions:
            for index in topic.partitions:
                wanted.append((topic.topic, index))
                await turns.pause()
    if kind is None:
        unknown = ProtocolError(
            ErrorCode.INVALID_REQUEST, f"The election type {message.election_type} is unknown."
        )
        response = ElectLeadersResponse(error_code=unknown.code)
        for topic_name, index in wanted or ():
            _add(response, topic_name, index, unknown)
            await turns.pause()
        return response
    response = ElectLeadersResponse()
    try:
        if wanted is None:
            for name in request.broker.image.topics:
                response.replica_election_results.append(ReplicaElectionResult(topic=name))
            for result in await request.broker.controller.elect_leaders(kind, None):
                if result.error is None:
                    _add(response, result.topic, result.index, None)
        else:
            for first in range(0, len(wanted), _AT_ONCE):
                some = wanted[first : first + _AT_ONCE]
                for result in await request.broker.controller.elect_leaders(kind, some):
                    _add(response, result.topic, result.index, result.error)
                await turns.pause()
    except ProtocolError as error:
        response.error_code = error.code
    return response


def _add(
    response: ElectLeadersResponse, topic: str, index: int, error: ProtocolError | None
) -> None:
    results = response.replica_election_results
    last = results[-1] if results and results[-1].topic == topic else None
    if last is None:
        last = next((each for each in results if each.topic == topic), None)
    if last is None:
        last = ReplicaElectionResult(topic=topic)
        results.append(last)
    last.partition_result.append(
        PartitionResult(
            partition_id=index,
            error_code=ErrorCode.NONE if error is None else error.code,
            error_message=error_message(error),
        )
    )
