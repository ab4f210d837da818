"""AddRaftVoter: add a voter to a KRaft quorum."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    ZERO_UUID,
    Bool,
    Int16,
    Int32,
    Message,
    Part,
    String,
    UInt16,
    Uuid,
    field,
)


class Listener(Part):
    name: String = ""
    host: String = ""
    port: UInt16 = 0


class AddRaftVoterRequest(
    Message, api_key=ApiKey.ADD_RAFT_VOTER, versions=(0, 1), flexible_since=0
):
    cluster_id: String | None = ""
    timeout_ms: Int32 = 0
    voter_id: Int32 = 0
    voter_directory_id: Uuid = ZERO_UUID
    listeners: list[Listener] = EMPTY
    ack_when_committed: Bool = field(default=True, since=1)


class AddRaftVoterResponse(
    Message, api_key=ApiKey.ADD_RAFT_VOTER, versions=(0, 1), flexible_since=0
):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
