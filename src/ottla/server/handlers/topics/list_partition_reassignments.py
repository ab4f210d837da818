"""ListPartitionReassignments: the moves that are under way, of all topics or of those named.

- Answered by the controller, which ends moves; other brokers pass the request on to it.
- Partitions that are not moved, or not there, are left out.

Versions: only v0
"""

from __future__ import annotations

from ottla.cluster.decisions.moves import is_moving
from ottla.cluster.metadata import Partition
from ottla.protocol.errors import ProtocolError
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from ottla.server.api import Request, handles
from ottla.server.turns import Turns


@handles(ListPartitionReassignmentsRequest, versions=(0, 0), by_controller=True)
async def list_partition_reassignments(
    request: Request[ListPartitionReassignmentsRequest],
) -> ListPartitionReassignmentsResponse:
    response = ListPartitionReassignmentsResponse(error_message=None)
    turns = Turns()
    try:
        image = request.broker.controller.image
    except ProtocolError as error:
        response.error_code = error.code
        return response
    if request.message.topics is None:
        for topic in image.topics.values():
            _add(response, topic.name, [each for each in topic.partitions if is_moving(each)])
            await turns.pause()
        return response
    for named in request.message.topics:
        found = []
        for index in dict.fromkeys(named.partition_indexes):
            partition = image.partition(named.name, index)
            if partition is not None and is_moving(partition):
                found.append(partition)
            await turns.pause()
        _add(response, named.name, found)
        await turns.pause()
    return response


def _add(
    response: ListPartitionReassignmentsResponse, topic: str, partitions: list[Partition]
) -> None:
    if partitions:
        response.topics.append(
            OngoingTopicReassignment(
                name=topic,
                partitions=[
                    OngoingPartitionReassignment(
                        partition_index=each.index,
                        replicas=list(each.replicas),
                        adding_replicas=list(each.adding),
                        removing_replicas=list(each.removing),
                    )
                    for each in partitions
                ],
            )
        )
