"""ListGroups: the groups that a broker coordinates."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Int16,
    Int32,
    Message,
    Part,
    String,
    field,
)


class ListGroupsRequest(Message, api_key=ApiKey.LIST_GROUPS, versions=(0, 5), flexible_since=3):
    states_filter: list[String] = field(default=EMPTY, since=4)
    types_filter: list[String] = field(default=EMPTY, since=5)


class ListedGroup(Part):
    group_id: String = ""
    protocol_type: String = ""
    group_state: String = field(default="", since=4, ignorable=True)
    group_type: String = field(default="", since=5, ignorable=True)


class ListGroupsResponse(Message, api_key=ApiKey.LIST_GROUPS, versions=(0, 5), flexible_since=3):
    throttle_time_ms: Int32 = field(default=0, since=1, ignorable=True)
    error_code: Int16 = 0
    groups: list[ListedGroup] = EMPTY
