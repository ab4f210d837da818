"""The records of consumer groups: bytes as Apache Kafka 4.3.1 wrote them for the same conversations."""

from __future__ import annotations

from pathlib import Path

import pytest
from groups_kit.consumer_world import lasting_groups
from groups_kit.machine import Machine, MachineTarget
from groups_kit.scenarios import play

from ottla.coordinator.groups.consumer.group import ConsumerGroup
from ottla.coordinator.groups.consumer.member import MemberState
from ottla.coordinator.groups.consumer.records import (
    ResolvedPattern,
    current_key,
    epoch_key,
    epoch_record,
    member_key,
    pattern_key,
    topic_metadata_key,
)
from ottla.coordinator.groups.settings import GroupSettings
from ottla.coordinator.shard import Replayed

T = bytes.fromhex("5f48c80ffff0420c821e4ea1e32bf141")
U = bytes.fromhex("982e0bcdc08e4145814398a819e1bf5a")

# Keys and values (None: deleted) of two conversations: first two members, one with a pattern, who both
# go. Then a classic group with a static member becomes a consumer group, and a classic one again.
# Times, the metadata's version and the static member's id stand by name.
WRITTEN_BY_KAFKA, UPGRADE_BY_KAFKA = (
    (Path(__file__).parents[1] / "consumer_records_by_kafka.txt").read_text().split("\n\n")
)


def machine_with(**topics: bytes) -> Machine:
    """With the interval between assignments that Kafka had, and the ids of its topics."""
    machine = Machine(
        GroupSettings(
            group_consumer_assignment_interval_ms=1_500, group_initial_rebalance_delay_ms=0
        )
    )
    machine.topics._ids.update(topics)
    return machine


def written(machine: Machine) -> list[str]:
    return [
        f"{record.key.hex()} {'None' if record.value is None else record.value.hex()}"
        for record in machine.log
        if isinstance(record, Replayed)
    ]


def expected(text: str, machine: Machine) -> list[str]:
    return (
        text.strip()
        .replace("VERSION", machine.topics.version.to_bytes(8, "big").hex())
        .replace("{ID}", ID)
        .replace("TIME", machine.now.wall.to_bytes(8, "big").hex())
        .split("\n")
    )


def test_are_written_as_kafka_writes_them() -> None:
    machine = machine_with(t=T, u=U)
    play(
        MachineTarget(machine),
        """
        a: beat v=0 group=records-g id='me' topics=u rack=r1 assignor=range instance=one -> NONE ...
        b: beat v=1 group=records-g id='you' topics=u pattern=[t] -> NONE 'you' epoch=2 []
        b: beat group=records-g id='you' epoch=2 -> NONE 'you' epoch=2
        a: beat group=records-g id='me' epoch=-1 instance=one -> NONE 'me' epoch=-1
        b: beat group=records-g id='you' epoch=-1 -> NONE 'you' epoch=-1
        """,
    )
    assert written(machine) == expected(WRITTEN_BY_KAFKA, machine)


def test_the_records_of_kafka_are_read() -> None:
    machine = machine_with(t=T, u=U)
    before = machine.now.wall
    for line in expected(WRITTEN_BY_KAFKA, machine)[:10]:
        key, value = line.split()
        machine.shard.replay(Replayed(bytes.fromhex(key), bytes.fromhex(value), 0, 0))
    group = machine.shard.groups["records-g"]
    assert isinstance(group, ConsumerGroup)
    assert (group.epoch, group.target_epoch, group.target_timestamp) == (4, 2, before)
    me, you = group.members["me"], group.members["you"]
    assert (me.instance_id, me.rack, me.assignor, me.topics) == ("one", "r1", "range", {"u"})
    assert (me.epoch, me.state, me.assigned) == (2, MemberState.STABLE, {U: {0: 2}})
    assert group.targets == {"me": {U: frozenset({0})}}
    assert (you.pattern, you.assigned, you.classic) == ("[t]", {}, None)
    assert group.patterns == {
        "[t]": ResolvedPattern(frozenset({"t"}), machine.topics.version, before)
    }


ID = "6f6e652d37646661343937652d613263352d346634392d626131382d613764633232303761396164"


def test_an_upgrade_and_a_downgrade_are_written_as_kafka_writes_them() -> None:
    machine = machine_with(t=T)
    machine.settings = machine.shard.settings = GroupSettings(
        group_initial_rebalance_delay_ms=0, group_min_session_timeout_ms=100
    )
    the_id = bytes.fromhex(ID).decode()
    machine._new_id = lambda: the_id.removeprefix("one-")  # type: ignore[method-assign]
    machine.reload()
    protocols = "protocols=range:@t|other:@t/1 session=5000"
    play(
        MachineTarget(machine),
        f"""
        a: join v=5 group=recordz-g instance=one {protocols} -> NONE ...
        a: sync group=recordz-g id='{the_id}' instance=one -> NONE ...
        b: beat group=recordz-g id='you' topics=t assignor=range -> NONE 'you' epoch=2 [t:2]
        a: join v=5 group=recordz-g id='{the_id}' instance=one {protocols} -> NONE ...
        b: beat group=recordz-g id='you' epoch=-1 -> NONE 'you' epoch=-1
        """,
    )
    assert written(machine)[2:] == expected(UPGRADE_BY_KAFKA, machine)


def test_a_group_of_kafka_before_4_1_loses_its_old_record() -> None:
    machine = Machine()
    key, value = epoch_record("g", 5, 0)
    machine.log += [
        Replayed(key, value, 0, 0),
        Replayed(topic_metadata_key("g"), b"\0\0\1\0", 1, 0),
    ]
    machine.reload()
    play(MachineTarget(machine), "a: beat topics=t -> NONE A epoch=6 [t:0,1,2]")
    assert written(machine).count(f"{topic_metadata_key('g').hex()} None") == 1
    play(MachineTarget(machine), "b: beat topics=u -> NONE B epoch=7 ...")
    assert written(machine).count(f"{topic_metadata_key('g').hex()} None") == 1


def test_a_member_of_kafka_before_4_3_has_its_partitions_since_its_epoch() -> None:
    machine = Machine()
    topic_id = machine.topics.topic_id("t")
    assert topic_id is not None
    value = bytes.fromhex("000000000007000000060002") + topic_id + bytes.fromhex("0200000001000100")
    machine.shard.replay(Replayed(current_key("g", "m"), value, 0, 0))
    group = machine.shard.groups["g"]
    assert isinstance(group, ConsumerGroup)
    assert group.members["m"].assigned == {topic_id: {1: 7}}


@pytest.mark.parametrize(
    "key",
    [
        epoch_key("g"),
        member_key("g", "m"),
        current_key("g", "m"),
        pattern_key("g", "p"),
        b"\0\3",
        b"\0\x05\0\1g",
    ],
    ids=["epoch", "member", "current", "pattern", "cut off", "cut off later"],
)
@pytest.mark.parametrize("value", [b"", b"\0\1", b"\0\0\xff"], ids=["empty", "later", "cut off"])
def test_a_record_that_cannot_be_read_is_skipped(key: bytes, value: bytes) -> None:
    machine = Machine()
    play(MachineTarget(machine), "a: beat group=other topics=t -> NONE A epoch=2 [t:0,1,2]")
    before = lasting_groups(machine.shard)
    machine.shard.replay(Replayed(key, value, 9, 0))
    assert lasting_groups(machine.shard) == before
