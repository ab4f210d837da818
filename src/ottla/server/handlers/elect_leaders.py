"""ElectLeaders: have the preferred replica of a partition lead it, or any replica that is left.

- A partition that is led as it should be is ELECTION_NOT_NEEDED. With one broker all of them are.
- Null stands for all partitions; then only those are named whose leader is another one now.

Versions:
  v1  the kind of election (before: preferred), an error of the whole
  v2  flexible
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from ottla.server.api import Outcome, Request, handles
from ottla.server.failures import error_message
from ottla.server.turns import Steps

_PREFERRED, _UNCLEAN = 0, 1


@handles(ElectLeadersRequest, versions=(0, 2))
def elect_leaders(request: Request[ElectLeadersRequest]) -> Steps[Outcome]:
    message = request.message
    known = message.election_type in (_PREFERRED, _UNCLEAN)
    response = ElectLeadersResponse(error_code=0 if known else ErrorCode.INVALID_REQUEST)
    if message.topic_partitions is None:
        for name in request.broker.image.topics if known else ():
            response.replica_election_results.append(ReplicaElectionResult(topic=name))
            yield
        return response
    for topic in message.topic_partitions:
        result = ReplicaElectionResult(topic=topic.topic)
        response.replica_election_results.append(result)
        for index in topic.partitions:
            error = _refusal(request, topic.topic, index)
            result.partition_result.append(
                PartitionResult(
                    partition_id=index, error_code=error.code, error_message=error_message(error)
                )
            )
            yield
        yield
    return response


def _refusal(request: Request[ElectLeadersRequest], topic: str, index: int) -> ProtocolError:
    kind = request.message.election_type
    state = request.broker.image.partition(topic, index)
    if kind not in (_PREFERRED, _UNCLEAN):
        return ProtocolError(ErrorCode.INVALID_REQUEST, f"The election type {kind} is unknown.")
    if state is None:
        return ProtocolError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {topic}-{index}."
        )
    if kind == _UNCLEAN and state.leader < 0:
        return ProtocolError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
    if kind == _PREFERRED and state.leader != state.replicas[0]:
        return ProtocolError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
    return ProtocolError(
        ErrorCode.ELECTION_NOT_NEEDED, f"{topic}-{index} has the leader that it should have."
    )
