"""Keys and values of __share_group_state."""

from __future__ import annotations

from ottla.protocol.message import (
    EMPTY,
    ZERO_UUID,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Part,
    String,
    Uuid,
    field,
)


class ShareSnapshotKey(Message, versions=(0, 0)):
    group_id: String = ""
    topic_id: Uuid = ZERO_UUID
    partition: Int32 = 0


class ShareSnapshotStateBatch(Part):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_state: Int8 = 0
    delivery_count: Int16 = 0


class ShareSnapshotValue(Message, versions=(0, 0), flexible_since=0):
    snapshot_epoch: Int32 = 0
    state_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Int32 = field(default=-1, tag=0)
    create_timestamp: Int64 = 0
    write_timestamp: Int64 = 0
    state_batches: list[ShareSnapshotStateBatch] = EMPTY


class ShareUpdateKey(Message, versions=(0, 0)):
    group_id: String = ""
    topic_id: Uuid = ZERO_UUID
    partition: Int32 = 0


class ShareUpdateStateBatch(Part):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_state: Int8 = 0
    delivery_count: Int16 = 0


class ShareUpdateValue(Message, versions=(0, 0), flexible_since=0):
    snapshot_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Int32 = field(default=-1, tag=0)
    state_batches: list[ShareUpdateStateBatch] = EMPTY
