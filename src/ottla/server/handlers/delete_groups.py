"""DeleteGroups: remove groups that have no members, with their offsets.

Versions: v1 as v0; v2 flexible
"""

from __future__ import annotations

from ottla.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from ottla.server.api import Outcome, Request, handles
from ottla.server.combined_answers import Part, gathered


@handles(DeleteGroupsRequest, versions=(0, 2))
def delete_groups(request: Request[DeleteGroupsRequest]) -> Outcome:
    # A group that is named twice is deleted, and answered for, once.
    names = dict.fromkeys(request.message.groups_names)
    return gathered(
        DeleteGroupsResponse,
        [_delete(request, group_id) for group_id in names],
        lambda answers: DeleteGroupsResponse(
            results=[result for answer in answers for result in answer.results]
        ),
    )


def _delete(request: Request[DeleteGroupsRequest], group_id: str) -> Part:
    return request.broker.groups.submit(
        group_id,
        lambda shard, ticket, now: shard.delete_group(ticket, group_id, now),
        lambda code: DeleteGroupsResponse(
            results=[DeletableGroupResult(group_id=group_id, error_code=code)]
        ),
    )
