"""ListGroups: the groups that this broker coordinates.

Versions:
  v1  throttle time
  v3  flexible
  v4  states, and a filter by them
  v5  types, and a filter by them
"""

from __future__ import annotations

from ottla.protocol.errors import ProtocolError
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.server.api import Request, handles


@handles(ListGroupsRequest, versions=(0, 5))
def list_groups(request: Request[ListGroupsRequest]) -> ListGroupsResponse:
    states, types = request.message.states_filter, request.message.types_filter
    try:
        found = request.broker.groups.ask_all(lambda shard, _: shard.list_groups(states, types))
    except ProtocolError as error:
        return ListGroupsResponse(error_code=error.code)
    return ListGroupsResponse(groups=[group for groups in found for group in groups])
