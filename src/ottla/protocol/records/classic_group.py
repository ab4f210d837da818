"""Key and value of __consumer_offsets that hold a classic group."""

from __future__ import annotations

from ottla.protocol.message import (
    EMPTY,
    Bytes,
    Int32,
    Int64,
    Message,
    Part,
    String,
    field,
)


class GroupMetadataKey(Message, versions=(0, 0)):
    group: String = ""


class MemberMetadata(Part):
    member_id: String = ""
    group_instance_id: String | None = field(default=None, since=3, ignorable=True)
    client_id: String = ""
    client_host: String = ""
    rebalance_timeout: Int32 = field(default=-1, since=1, ignorable=True)
    session_timeout: Int32 = 0
    subscription: Bytes = b""
    assignment: Bytes = b""


class GroupMetadataValue(Message, versions=(0, 4), flexible_since=4):
    protocol_type: String = ""
    generation: Int32 = 0
    protocol: String | None = ""
    leader: String | None = ""
    current_state_timestamp: Int64 = field(default=-1, since=2, ignorable=True)
    members: list[MemberMetadata] = EMPTY
