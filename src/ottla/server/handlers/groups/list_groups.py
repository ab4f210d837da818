"""ListGroups: the groups that this broker coordinates.

Versions:
  v1  throttle time
  v3  flexible
  v4  states, and a filter by them
  v5  types, and a filter by them
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.server.api import Outcome, Request, handles
from ottla.server.turns import Steps

NAMES_IN_A_STEP = 100


@handles(ListGroupsRequest, versions=(0, 5))
def list_groups(request: Request[ListGroupsRequest]) -> Steps[Outcome]:
    states = yield from _in_lower_case(request.message.states_filter)
    types = yield from _in_lower_case(request.message.types_filter)
    return (
        yield from request.broker.groups.ask_all(
            lambda shard, _: shard.list_groups(states, types),
            lambda found: ListGroupsResponse(groups=[each for some in found for each in some]),
            lambda code: ListGroupsResponse(error_code=code),
        )
    )


def _in_lower_case(names: Sequence[str]) -> Steps[set[str]]:
    found: set[str] = set()
    for first in range(0, len(names), NAMES_IN_A_STEP):
        found.update([name.lower() for name in names[first : first + NAMES_IN_A_STEP]])
        yield
    return found
