"""FindCoordinator: which broker coordinates a group, a transaction or a share."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Int8,
    Int16,
    Int32,
    Message,
    Part,
    String,
    field,
)


class FindCoordinatorRequest(
    Message, api_key=ApiKey.FIND_COORDINATOR, versions=(0, 6), flexible_since=3
):
    key: String = field(default="", until=3)
    key_type: Int8 = field(default=0, since=1)
    coordinator_keys: list[String] = field(default=EMPTY, since=4)


class Coordinator(Part):
    key: String = ""
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""


class FindCoordinatorResponse(
    Message, api_key=ApiKey.FIND_COORDINATOR, versions=(0, 6), flexible_since=3
):
    throttle_time_ms: Int32 = field(default=0, since=1, ignorable=True)
    error_code: Int16 = field(default=0, until=3)
    error_message: String | None = field(default="", since=1, until=3, ignorable=True)
    node_id: Int32 = field(default=0, until=3)
    host: String = field(default="", until=3)
    port: Int32 = field(default=0, until=3)
    coordinators: list[Coordinator] = field(default=EMPTY, since=4)
