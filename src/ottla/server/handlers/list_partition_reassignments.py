"""ListPartitionReassignments: replicas that are on their way. With one broker there are none.

Versions: only v0
"""

from __future__ import annotations

from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from ottla.server.api import Request, handles


@handles(ListPartitionReassignmentsRequest, versions=(0, 0))
def list_partition_reassignments(
    _: Request[ListPartitionReassignmentsRequest],
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_message=None)
