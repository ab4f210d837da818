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
from ottla.server.turns import Steps, distinct


@handles(DeleteGroupsRequest, versions=(0, 2))
def delete_groups(request: Request[DeleteGroupsRequest]) -> Steps[Outcome]:
    # A group that is named twice is deleted, and answered for, once.
    names = yield from distinct(request.message.groups_names)
    return (
        yield from gathered(
            DeleteGroupsResponse,
            list(names),
            lambda group_id: _delete(request, group_id),
            lambda response, answer: response.results.extend(answer.results),
        )
    )


def _delete(request: Request[DeleteGroupsRequest], group_id: str) -> Part:
    return request.broker.groups.submit(
        group_id,
        lambda shard, ticket, now: shard.delete_group(ticket, group_id, now),
        lambda code: DeleteGroupsResponse(
            results=[DeletableGroupResult(group_id=group_id, error_code=code)]
        ),
    )
