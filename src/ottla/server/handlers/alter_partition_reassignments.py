"""AlterPartitionReassignments: move replicas of partitions to other brokers, or stop that.

- With one broker there is nowhere to move to: the only assignment that is right is the one that is
  there, and no reassignment is going on that could be stopped.

Versions:
  v1  whether the number of replicas may change
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from ottla.server.api import Outcome, Request, handles
from ottla.server.failures import error_message
from ottla.server.turns import Steps


@handles(AlterPartitionReassignmentsRequest, versions=(0, 1))
def alter_partition_reassignments(
    request: Request[AlterPartitionReassignmentsRequest],
) -> Steps[Outcome]:
    message = request.message
    response = AlterPartitionReassignmentsResponse(
        error_message=None,
        allow_replication_factor_change=message.allow_replication_factor_change,
    )
    for topic in message.topics:
        answer = ReassignableTopicResponse(name=topic.name)
        response.responses.append(answer)
        for wanted in topic.partitions:
            result = ReassignablePartitionResponse(
                partition_index=wanted.partition_index, error_message=None
            )
            answer.partitions.append(result)
            try:
                _reassign(request, topic.name, wanted)
            except ProtocolError as error:
                result.error_code = error.code
                result.error_message = error_message(error)
            yield
        yield
    return response


def _reassign(
    request: Request[AlterPartitionReassignmentsRequest], topic: str, wanted: ReassignablePartition
) -> None:
    state = request.broker.image.partition(topic, wanted.partition_index)
    if state is None:
        raise ProtocolError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"There is no partition {topic}-{wanted.partition_index}.",
        )
    if wanted.replicas is None:
        raise ProtocolError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    _check(request, wanted.replicas)
    if tuple(wanted.replicas) != tuple(state.replicas):
        raise ProtocolError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Replicas cannot be moved in this cluster."
        )


def _check(request: Request[AlterPartitionReassignmentsRequest], replicas: Sequence[int]) -> None:
    if not replicas:
        raise _bad("A partition has at least one replica.")
    brokers = request.broker.image.brokers
    seen: set[int] = set()
    for each in replicas:
        if each in seen:
            raise _bad(f"Broker {each} is named twice.")
        if each not in brokers:
            raise _bad(f"Broker {each} is not registered.")
        seen.add(each)


def _bad(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
