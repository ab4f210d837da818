"""RemoveRaftVoter: remove a voter from a KRaft quorum."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    ZERO_UUID,
    Int16,
    Int32,
    Message,
    String,
    Uuid,
)


class RemoveRaftVoterRequest(
    Message, api_key=ApiKey.REMOVE_RAFT_VOTER, versions=(0, 0), flexible_since=0
):
    cluster_id: String | None = ""
    voter_id: Int32 = 0
    voter_directory_id: Uuid = ZERO_UUID


class RemoveRaftVoterResponse(
    Message, api_key=ApiKey.REMOVE_RAFT_VOTER, versions=(0, 0), flexible_since=0
):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
