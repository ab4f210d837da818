"""The records of `__consumer_offsets`: bytes as Apache Kafka 4.3.1 wrote them, and older versions."""

from __future__ import annotations

import pytest
from groups_kit.machine import Machine, MachineTarget
from groups_kit.scenarios import play
from hypothesis import given
from hypothesis import strategies as st

from ottla.coordinator.groups.classic.group import ClassicGroup
from ottla.coordinator.groups.offsets import CommittedOffset
from ottla.coordinator.groups.records import (
    empty_group_record,
    group_tombstone,
    offset_key,
    offset_tombstone,
    offset_value,
    read_group_value,
    read_offset_key,
    read_offset_value,
    value_version,
)
from ottla.coordinator.groups.states import ClassicState
from ottla.coordinator.shard import Replayed
from ottla.protocol.message import ZERO_UUID, MalformedMessage
from ottla.protocol.records.classic_group import GroupMetadataValue, MemberMetadata
from ottla.protocol.records.offsets import OffsetCommitValue

TOPIC_ID = bytes.fromhex("6e27a9a1c0e24d5cb2bc932f4d5a15bb")


def test_offsets_as_kafka_writes_them() -> None:
    assert offset_key("g-2fcf5479", "t", 2).hex() == "0001000a672d326663663534373900017400000002"
    assert offset_value(5, 3, "note", 1794734585787, -1, TOPIC_ID).hex() == (
        "0004000000000000000500000003056e6f7465000001a1de8477bb010010" + TOPIC_ID.hex()
    )


def test_an_offset_with_a_retention_of_its_own_is_of_version_1() -> None:
    written = offset_value(77, -1, "", 1794734947018, 1794834947018, TOPIC_ID)
    assert written.hex() == "0001000000000000004d0000000001a1de89faca000001a1e47fdbca"


def test_groups_as_kafka_writes_them() -> None:
    key, value = empty_group_record("g-1b1cce58", None, 0, 1794734757957)
    assert key.hex() == "0002000a672d3162316363653538"
    assert value is not None
    assert value.hex() == "0003000000000000ffffffff000001a1de87184500000000"
    _, value = empty_group_record("g-1b1cce58", "consumer", 2, 1794734769990)
    assert value is not None
    assert value.hex() == "00030008636f6e73756d657200000002ffffffff000001a1de87474600000000"


KAFKA_STABLE_GROUP = (
    "00030008636f6e73756d657200000001000572616e67650026612d61393832393433362d353938622d343638"
    "342d393166382d616466326330306561363033000001a1de845f7f000000010026612d61393832393433362d"
    "353938622d343638342d393166382d616466326330306561363033ffff000161000a2f3132372e302e302e31"
    "00004e2000002710000000016d0000000178"
)


def test_a_stable_group_comes_back_as_kafka_wrote_it() -> None:
    machine = Machine()
    key, _ = group_tombstone("g")
    written = bytes.fromhex(KAFKA_STABLE_GROUP)
    machine.shard.replay(Replayed(key, written, 0, 0))
    group = machine.shard.groups["g"]
    assert isinstance(group, ClassicGroup)
    assert group.state is ClassicState.STABLE
    (member,) = group.members.values()
    assert (member.client_id, member.client_host, member.assignment) == ("a", "/127.0.0.1", b"x")
    assert (member.session_timeout, member.rebalance_timeout) == (10_000, 20_000)
    assert group.leader == member.id
    # What is written back is what was read: a rebalance apart, the bytes of its static replacement.
    value = read_group_value(written)
    assert value.encode(3) == written[2:]


@pytest.mark.parametrize("metadata", ["", "m"])
@pytest.mark.parametrize("version", range(5))
def test_every_version_of_an_offset_is_read(version: int, metadata: str) -> None:
    machine = Machine()
    value = OffsetCommitValue(
        offset=9, leader_epoch=4, metadata=metadata, commit_timestamp=7, topic_id=TOPIC_ID
    )
    written = version.to_bytes(2, "big") + value.encode(version)
    machine.shard.replay(Replayed(offset_key("g", "t", 0), written, 3, 0))
    expected = CommittedOffset(
        9,
        4 if version >= 3 else -1,
        metadata,
        7,
        -1,
        TOPIC_ID if version >= 4 else ZERO_UUID,
        3,
    )
    assert machine.shard.offsets.get("g", "t", 0) == expected


PLAIN = offset_value(5, 3, "", 1794734585787, -1, TOPIC_ID)


@given(st.dictionaries(st.integers(0, len(PLAIN) - 1), st.integers(0, 255), max_size=4))
def test_a_plain_offset_is_read_as_any_other(changes: dict[int, int]) -> None:
    written = bytearray(PLAIN)
    for at, byte in changes.items():
        written[at] = byte
    value = bytes(written)
    try:
        version = value_version(value, OffsetCommitValue.versions)
        read, _ = OffsetCommitValue.decode(value, 2, version)
        expected = CommittedOffset(
            read.offset,
            read.leader_epoch,
            read.metadata,
            read.commit_timestamp,
            read.expire_timestamp,
            read.topic_id,
            9,
        )
    except MalformedMessage:
        with pytest.raises(MalformedMessage):
            read_offset_value(value, 9)
        return
    assert read_offset_value(value, 9) == expected


def test_keys_of_offsets_are_remembered_unless_they_are_long() -> None:
    for group in ("g", "g" * 10_000):
        written = offset_key(group, "t", 3)
        for _ in range(2):
            key = read_offset_key(written)
            assert (key.group, key.topic, key.partition) == (group, "t", 3)
    short, long = offset_key("g", "t", 3), offset_key("g" * 10_000, "t", 3)
    assert read_offset_key(short) is read_offset_key(short)
    assert read_offset_key(long) is not read_offset_key(long)


def test_offsets_under_the_oldest_key_are_read() -> None:
    machine = Machine()
    key = b"\0\0" + offset_key("g", "t", 0)[2:]
    written = offset_value(9, -1, "", 7, -1, ZERO_UUID)
    machine.shard.replay(Replayed(key, written, 3, 0))
    assert machine.shard.offsets.get("g", "t", 0) is not None


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_a_group_is_read(version: int) -> None:
    machine = Machine()
    stored = MemberMetadata(
        member_id="m",
        group_instance_id="i",
        client_id="c",
        client_host="/h",
        rebalance_timeout=20_000,
        session_timeout=10_000,
        subscription=b"s",
        assignment=b"a",
    )
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=4,
        protocol="range",
        leader="m",
        current_state_timestamp=5,
        members=[stored],
    )
    written = version.to_bytes(2, "big") + value.encode(version)
    machine.shard.replay(Replayed(group_tombstone("g")[0], written, 3, 0))
    group = machine.shard.groups["g"]
    assert isinstance(group, ClassicGroup)
    (member,) = group.members.values()
    assert (group.generation, group.leader, member.assignment) == (4, "m", b"a")
    # The first version knows one timeout only.
    assert member.rebalance_timeout == (20_000 if version >= 1 else 10_000)
    assert member.instance_id == ("i" if version >= 3 else None)
    assert group.state_timestamp == (5 if version >= 2 else -1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b""),
        (b"\0", b""),
        (b"\0\1", b""),
        (b"\0\1\0\5g", b""),
        (b"\0\7whatever", b"\0\0"),
        (b"\x7f\xffwhatever", None),
        (offset_key("g", "t", 0), b""),
        (offset_key("g", "t", 0), b"\0\4\0"),
        (offset_key("g", "t", 0), b"\0\x63" + bytes(60)),
        (group_tombstone("g")[0], b"\0\3\xff"),
        (group_tombstone("g")[0], b"\0\3" + b"\0\0" * 2 + b"\x7f\xff\xff\xff"),
    ],
)
def test_a_record_that_makes_no_sense_is_skipped(key: bytes, value: bytes | None) -> None:
    machine = Machine()
    play(MachineTarget(machine), "a: commit topics=t:0=5 -> t:0:NONE")
    machine.shard.replay(Replayed(key, value, 9, 0))
    play(MachineTarget(machine), "a: fetch -> g:NONE t:0=5/")


def test_tombstones() -> None:
    machine = Machine()
    play(MachineTarget(machine), "a: commit topics=t:0=5|1=6 -> t:0:NONE t:1:NONE")
    key, value = offset_tombstone("g", "t", 0)
    machine.shard.replay(Replayed(key, value, 9, 0))
    play(MachineTarget(machine), "a: fetch topics=all -> g:NONE t:1=6/")
    key, value = group_tombstone("g")
    machine.shard.replay(Replayed(key, value, 9, 0))
    play(MachineTarget(machine), "a: list -> NONE")
