"""ConsumerGroupDescribe: state, members and assignments of consumer groups of the new protocol.

- Each member is shown with what it has (or has to give up still) and with what it is to have.
- A group of another kind is, to this request, none: GROUP_ID_NOT_FOUND.

Versions:
  v1  whether a member speaks the classic protocol (0) or the new one (1)
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from ottla.server.api import Outcome, Request, handles
from ottla.server.combined_answers import Part, gathered
from ottla.server.coordination.group_callers import speaks_new_protocol
from ottla.server.failures import shortened
from ottla.server.operations import GROUP_OPERATIONS
from ottla.server.turns import Steps


@handles(ConsumerGroupDescribeRequest, versions=(0, 1))
def consumer_group_describe(request: Request[ConsumerGroupDescribeRequest]) -> Steps[Outcome]:
    def add(response: ConsumerGroupDescribeResponse, answer: ConsumerGroupDescribeResponse) -> None:
        (group,) = answer.groups
        if group.error_message is not None:
            group.error_message = shortened(group.error_message)
        if request.message.include_authorized_operations and not group.error_code:
            group.authorized_operations = GROUP_OPERATIONS
        response.groups.append(group)

    return gathered(
        ConsumerGroupDescribeResponse,
        request.message.group_ids,
        lambda group_id: _describe(request, group_id),
        add,
    )


def _describe(request: Request[ConsumerGroupDescribeRequest], group_id: str) -> Part:
    def refused(code: ErrorCode) -> ConsumerGroupDescribeResponse:
        return ConsumerGroupDescribeResponse(
            groups=[DescribedGroup(group_id=group_id, error_code=code)]
        )

    if not speaks_new_protocol(request.broker):
        return refused(ErrorCode.UNSUPPORTED_VERSION)
    return request.broker.groups.submit(
        group_id,
        lambda shard, ticket, now: shard.describe_consumer_group(ticket, group_id, now),
        refused,
    )
