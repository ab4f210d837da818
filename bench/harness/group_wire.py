"""The requests of group members, and their answers: the last versions before the compact encoding."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from bench.harness.wire import Buffer, Reader, frame, request_header, string

OFFSET_COMMIT, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, SYNC_GROUP = 8, 10, 11, 12, 14

REBALANCE_IN_PROGRESS = 27
MEMBER_ID_REQUIRED = 79

PROTOCOL = "range"
NO_INSTANCE = string(None)


def _data(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def subscription(topic: str) -> bytes:
    return struct.pack(">hi", 0, 1) + string(topic) + struct.pack(">i", -1)


def assignment(topic: str, partitions: Sequence[int]) -> bytes:
    numbers = struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return struct.pack(">hi", 0, 1) + string(topic) + numbers + struct.pack(">i", -1)


def find_coordinator_request(group: str) -> bytes:
    return frame(request_header(FIND_COORDINATOR, 1), string(group), b"\0")


def find_coordinator_answer(body: Buffer) -> int:
    return Reader(body, 8).int16()


def join_group_request(
    group: str, member_id: str, topic: str, session_ms: int, rebalance_ms: int
) -> bytes:
    return frame(
        request_header(JOIN_GROUP, 5),
        string(group),
        struct.pack(">ii", session_ms, rebalance_ms),
        string(member_id),
        NO_INSTANCE,
        string("consumer"),
        struct.pack(">i", 1),
        string(PROTOCOL),
        _data(subscription(topic)),
    )


class Joined(NamedTuple):
    error: int
    generation: int
    leader: str
    member_id: str
    members: list[str]  # for the leader only


def join_group_answer(body: Buffer) -> Joined:
    reader = Reader(body, 8)
    error, generation = reader.int16(), reader.int32()
    reader.string()
    leader, member_id = reader.string() or "", reader.string() or ""
    members = []
    for _ in range(reader.int32()):
        members.append(reader.string() or "")
        reader.string()
        reader.skip(reader.int32())
    return Joined(error, generation, leader, member_id, members)


def sync_group_request(
    group: str, generation: int, member_id: str, assignments: Sequence[tuple[str, bytes]]
) -> bytes:
    return frame(
        request_header(SYNC_GROUP, 3),
        string(group),
        struct.pack(">i", generation),
        string(member_id),
        NO_INSTANCE,
        struct.pack(">i", len(assignments)),
        *(string(member) + _data(data) for member, data in assignments),
    )


def heartbeat_request(group: str, generation: int, member_id: str) -> bytes:
    return frame(
        request_header(HEARTBEAT, 3),
        string(group),
        struct.pack(">i", generation),
        string(member_id),
        NO_INSTANCE,
    )


def error_after_throttle(body: Buffer) -> int:
    """Of the answers to SyncGroup and Heartbeat."""
    return Reader(body, 8).int16()


def offset_commit_request(
    group: str, generation: int, member_id: str, topic: str, partition: int, offset: int
) -> bytes:
    return frame(
        request_header(OFFSET_COMMIT, 7),
        string(group),
        struct.pack(">i", generation),
        string(member_id),
        NO_INSTANCE,
        struct.pack(">i", 1),
        string(topic),
        struct.pack(">iiqi", 1, partition, offset, -1),
        string(None),
    )


def offset_commit_answer(body: Buffer) -> int:
    """The error of the one partition that was committed."""
    return Reader(body, len(body) - 2).int16()
