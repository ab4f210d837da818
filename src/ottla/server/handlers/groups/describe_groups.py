"""DescribeGroups: state and members of classic groups.

- The members' metadata is told of a stable group only; before, it is open which of their protocols
  will be used.
- A group of another kind is, to this request, none.

Versions:
  v1  throttle time
  v3  what the caller may do with the group
  v4  group.instance.id
  v5  flexible
  v6  GROUP_ID_NOT_FOUND with a message; before, a group that does not exist is "Dead"
"""

from __future__ import annotations

from ottla.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from ottla.server.api import Outcome, Request, handles
from ottla.server.combined_answers import Part, gathered
from ottla.server.failures import shortened
from ottla.server.operations import GROUP_OPERATIONS
from ottla.server.turns import Steps


@handles(DescribeGroupsRequest, versions=(0, 6))
def describe_groups(request: Request[DescribeGroupsRequest]) -> Steps[Outcome]:
    def add(response: DescribeGroupsResponse, answer: DescribeGroupsResponse) -> None:
        (group,) = answer.groups
        if group.error_message is not None:
            group.error_message = shortened(group.error_message)
        if request.message.include_authorized_operations:
            group.authorized_operations = GROUP_OPERATIONS
        response.groups.append(group)

    return gathered(
        DescribeGroupsResponse,
        request.message.groups,
        lambda group_id: _describe(request, group_id),
        add,
    )


def _describe(request: Request[DescribeGroupsRequest], group_id: str) -> Part:
    return request.broker.groups.submit(
        group_id,
        lambda shard, ticket, now: shard.describe_group(ticket, group_id, now, request.version),
        lambda code: DescribeGroupsResponse(
            groups=[DescribedGroup(group_id=group_id, error_code=code)]
        ),
    )
