"""ElectLeaders: have the preferred replica of a partition lead it, or any replica that is left.

- Decided by the controller; other brokers pass the request on to it.
- A partition that is led as it should be is ELECTION_NOT_NEEDED. With one broker all of them are.
- Null stands for all partitions; then those are left out that are led as they should be.

Versions:
  v1  the kind of election (before: preferred), an error of the whole (before: at each partition)
  v2  flexible
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
from ottla.server.turns import Steps, Turns, in_turns

_KINDS = {int(kind): kind for kind in ElectionType}
# Partitions that the controller decides on in one go.
_AT_ONCE = 100
# Of all partitions: those that need no election, and those that were deleted meanwhile.
_NOT_NAMED = (ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_FIRST_ERROR = 1


@handles(ElectLeadersRequest, versions=(0, 2), by_controller=True)
async def elect_leaders(request: Request[ElectLeadersRequest]) -> ElectLeadersResponse:
    message = request.message
    kind = _KINDS.get(message.election_type)
    response = ElectLeadersResponse(error_code=0 if kind is not None else ErrorCode.INVALID_REQUEST)
    try:
        if message.topic_partitions is not None:
            turns = Turns()
            for topic in message.topic_partitions:
                response.replica_election_results.append(
                    await _of_topic(request, kind, topic.topic, topic.partitions, turns)
                )
        elif kind is not None:
            response.replica_election_results = await _of_all(request, kind)
    except ProtocolError as error:
        return await in_turns(_refusal(message, request.version, error))
    return response


def _refusal(
    message: ElectLeadersRequest, version: int, error: ProtocolError
) -> Steps[ElectLeadersResponse]:
    response = ElectLeadersResponse(error_code=error.code if version >= _FIRST_ERROR else 0)
    for topic in message.topic_partitions or ():
        answer = ReplicaElectionResult(topic=topic.topic)
        response.replica_election_results.append(answer)
        for index in topic.partitions:
            answer.partition_result.append(_result(index, error))
            yield
        yield
    return response


async def _of_topic(
    request: Request[ElectLeadersRequest],
    kind: ElectionType | None,
    topic: str,
    indexes: Sequence[int],
    turns: Turns,
) -> ReplicaElectionResult:
    answer = ReplicaElectionResult(topic=topic)
    unknown = ProtocolError(
        ErrorCode.INVALID_REQUEST,
        f"The election type {request.message.election_type} is unknown.",
    )
    for first in range(0, len(indexes), _AT_ONCE):
        some = indexes[first : first + _AT_ONCE]
        if kind is None:
            answer.partition_result += [_result(index, unknown) for index in some]
        else:
            wanted = [(topic, index) for index in some]
            results = await request.broker.controller.elect_leaders(kind, wanted)
            answer.partition_result += [_result(each.index, each.error) for each in results]
        await turns.pause()
    await turns.pause()
    return answer


async def _of_all(
    request: Request[ElectLeadersRequest], kind: ElectionType
) -> list[ReplicaElectionResult]:
    """Every topic, with the partitions that have another leader now, or should have one."""
    answers: dict[str, ReplicaElectionResult] = {}
    some: list[tuple[str, int]] = []
    turns = Turns()
    for topic in list(request.broker.image.topics.values()):
        answers[topic.name] = ReplicaElectionResult(topic=topic.name)
        for index in range(len(topic.partitions)):
            some.append((topic.name, index))
            if len(some) == _AT_ONCE:
                await _elect(request, kind, some, answers)
                some = []
        await turns.pause()
    await _elect(request, kind, some, answers)
    return list(answers.values())


async def _elect(
    request: Request[ElectLeadersRequest],
    kind: ElectionType,
    wanted: Sequence[tuple[str, int]],
    answers: Mapping[str, ReplicaElectionResult],
) -> None:
    for result in await request.broker.controller.elect_leaders(kind, wanted):
        if result.error is None or result.error.code not in _NOT_NAMED:
            answers[result.topic].partition_result.append(_result(result.index, result.error))


def _result(index: int, error: ProtocolError | None) -> PartitionResult:
    return PartitionResult(
        partition_id=index,
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=error_message(error),
    )
