"""DeleteGroups: remove groups that have no members."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Int16,
    Int32,
    Message,
    Part,
    String,
)


class DeleteGroupsRequest(Message, api_key=ApiKey.DELETE_GROUPS, versions=(0, 2), flexible_since=2):
    groups_names: list[String] = EMPTY


class DeletableGroupResult(Part):
    group_id: String = ""
    error_code: Int16 = 0


class DeleteGroupsResponse(
    Message, api_key=ApiKey.DELETE_GROUPS, versions=(0, 2), flexible_since=2
):
    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult] = EMPTY
