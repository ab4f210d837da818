"""What happens to consumer groups by themselves: topics, patterns, time, moves, lost writes."""

from __future__ import annotations

from dataclasses import replace

from groups_kit.machine import SETTINGS, Machine, MachineTarget
from groups_kit.scenarios import play

from ottla.coordinator.groups.consumer.changes import (
    PATTERN_REFRESH_AT_LEAST_MS,
    PATTERN_REFRESH_MS,
)
from ottla.coordinator.groups.consumer.group import ConsumerGroup
from ottla.protocol.errors import ErrorCode

SESSION_MS = SETTINGS.group_consumer_session_timeout_ms


def group_of(machine: Machine) -> ConsumerGroup:
    group = machine.shard.groups["g"]
    assert isinstance(group, ConsumerGroup)
    return group


def test_partitions_that_are_added_are_assigned_with_the_next_heartbeat() -> None:
    machine = Machine()
    play(MachineTarget(machine), "a: beat id='a' topics=t -> NONE 'a' epoch=2 [t:0,1,2]")
    machine.topics.grow("t", 5)
    machine.metadata_changed()
    play(MachineTarget(machine), "a: beat id='a' epoch=2 -> NONE 'a' epoch=3 [t:0,1,2,3,4]")


def set_back(machine: Machine, milliseconds: int = 3_600_000) -> None:
    """The wall's clock steps back; the other one goes on."""
    machine.now = machine.now._replace(wall=machine.now.wall - milliseconds)


def test_assignments_go_on_after_the_clock_was_set_back() -> None:
    machine = Machine(settings=replace(SETTINGS, group_consumer_assignment_interval_ms=1500))
    play(MachineTarget(machine), "a: beat id='a' topics=t -> NONE 'a' epoch=2 [t:0,1,2]")
    set_back(machine)
    machine.topics.grow("t", 5)
    machine.metadata_changed()
    play(MachineTarget(machine), "a: beat id='a' epoch=2 -> NONE 'a' epoch=3 [t:0,1,2,3,4]")


def test_patterns_go_on_being_resolved_after_the_clock_was_set_back() -> None:
    machine = Machine()
    target = MachineTarget(machine)
    play(target, "a: beat id='a' pattern=[tuv] -> NONE 'a' epoch=1 []")
    play(target, "a: beat id='a' epoch=1 -> NONE 'a' epoch=2 [t:0,1,2 u:0]")
    set_back(machine)
    machine.topics.create("v", 1)
    machine.metadata_changed()
    play(target, "a: beat id='a' epoch=2 -> NONE 'a' epoch=2")
    play(target, "a: beat id='a' epoch=2 -> NONE 'a' epoch=3 ...")
    assert group_of(machine).patterns["[tuv]"].topics == {"t", "u", "v"}


def test_a_topic_that_comes_while_its_coordinator_loads_is_found_by_patterns() -> None:
    machine = Machine()
    target = MachineTarget(machine)
    play(target, "a: beat id='a' pattern=[tuv] -> NONE 'a' epoch=1 []")
    play(target, "a: beat id='a' epoch=1 -> NONE 'a' epoch=2 [t:0,1,2 u:0]")
    machine.run(machine.shard.unloaded())
    machine.shard = machine.replayed()
    # Changes are told to shards that are loaded.
    machine.topics.create("v", 1)
    machine.run(machine.shard.loaded(machine.now))
    machine.advance(PATTERN_REFRESH_AT_LEAST_MS + 1)
    play(target, "a: beat id='a' epoch=2 -> NONE 'a' epoch=2")
    play(target, "a: beat id='a' epoch=2 -> NONE 'a' epoch=3 ...")
    assert group_of(machine).patterns["[tuv]"].topics == {"t", "u", "v"}


def test_a_topic_that_comes_to_be_is_assigned() -> None:
    machine = Machine()
    play(MachineTarget(machine), "a: beat id='a' topics=v -> NONE 'a' epoch=2 []")
    machine.topics.create("v", 2)
    machine.metadata_changed()
    play(MachineTarget(machine), "a: beat id='a' epoch=2 -> NONE 'a' epoch=3 ...")
    assert len(group_of(machine).members["a"].assigned) == 1


def test_changes_of_other_topics_are_none() -> None:
    machine = Machine()
    play(MachineTarget(machine), "a: beat id='a' topics=t -> NONE 'a' epoch=2 [t:0,1,2]")
    machine.topics.create("v", 2)
    machine.metadata_changed()
    play(MachineTarget(machine), "a: beat id='a' epoch=2 -> NONE 'a' epoch=2")


def test_a_topic_that_is_made_anew_is_another() -> None:
    machine = Machine()
    play(MachineTarget(machine), "a: beat id='a' topics=u -> NONE 'a' epoch=2 [u:0]")
    old = machine.topics.topic_id("u")
    machine.topics.delete("u")
    machine.topics.create("u", 1)
    machine.metadata_changed()
    play(MachineTarget(machine), "a: beat id='a' epoch=2 holds=- -> NONE 'a' epoch=3 [u:0]")
    assert group_of(machine).members["a"].assigned.keys() == {machine.topics.topic_id("u")} != {old}


def test_patterns_are_resolved_anew_for_new_topics_but_not_all_the_time() -> None:
    machine = Machine()
    target = MachineTarget(machine)
    play(target, "a: beat id='a' pattern=[tuv] -> NONE 'a' epoch=1 []")
    play(target, "a: beat id='a' epoch=1 -> NONE 'a' epoch=2 [t:0,1,2 u:0]")
    machine.topics.create("v", 1)
    machine.metadata_changed()
    play(target, "a: beat id='a' epoch=2 -> NONE 'a' epoch=2")
    machine.advance(PATTERN_REFRESH_AT_LEAST_MS + 1)
    # It is this heartbeat that has it resolved, and the next that is told.
    play(target, "a: beat id='a' epoch=2 -> NONE 'a' epoch=2")
    play(target, "a: beat id='a' epoch=2 -> NONE 'a' epoch=3 ...")
    assert group_of(machine).patterns["[tuv]"].topics == {"t", "u", "v"}


def test_patterns_are_resolved_anew_after_a_while_in_any_case() -> None:
    machine = Machine()
    target = MachineTarget(machine)
    play(target, "a: beat id='a' pattern=t -> NONE 'a' epoch=1 []")
    first = group_of(machine).patterns["t"].timestamp
    for _ in range(PATTERN_REFRESH_MS // (SESSION_MS - 1) + 1):
        play(target, "a: groups -> g:NONE ...")
        epoch = group_of(machine).members["a"].epoch
        play(target, f"a: beat id='a' epoch={epoch} -> NONE ...")
        assert group_of(machine).patterns["t"].timestamp == first
        machine.advance(SESSION_MS - 1)
    epoch = group_of(machine).members["a"].epoch
    play(target, f"a: beat id='a' epoch={epoch} -> NONE ...")
    assert group_of(machine).patterns["t"].timestamp == machine.now.wall
    # What it stands for is the same: nobody has to move.
    assert group_of(machine).epoch == 2


def test_a_removal_that_could_not_be_written_is_tried_again() -> None:
    machine = Machine()
    play(MachineTarget(machine), "a: beat id='a' topics=t -> NONE 'a' epoch=2 [t:0,1,2]")
    machine.failure = ErrorCode.COORDINATOR_NOT_AVAILABLE
    machine.advance(SESSION_MS + 10_000)
    assert "a" in group_of(machine).members
    machine.failure = None
    machine.advance(1_000)
    assert group_of(machine).is_empty


def test_an_upgrade_that_cannot_be_written_leaves_the_classic_group_as_it_was() -> None:
    machine = Machine()
    target = MachineTarget(machine)
    play(
        target,
        """
        a: join v=3 protocols=range:@t -> NONE generation=1 ...
        a: sync id=A -> NONE ...
        b: join v=3 protocols=range:@t -> waits
        """,
    )
    machine.failure = ErrorCode.COORDINATOR_NOT_AVAILABLE
    play(MachineTarget(machine), "c: beat id='c' topics=t -> COORDINATOR_NOT_AVAILABLE")
    machine.failure = None
    assert machine.shard.groups["g"].state_name == "PreparingRebalance"
    member_id = next(iter(machine.shard.groups["g"].members))
    play(
        MachineTarget(machine),
        f"a: join id='{member_id}' protocols=range:@t -> NONE generation=2 ...",
    )
    # The one that waited is answered now, once.
    answer = target.answer("b", "")
    assert answer is not None
    assert (answer.error_code, answer.generation_id) == (ErrorCode.NONE, 2)


def test_sessions_and_rebalances_begin_anew_where_the_group_moves_to() -> None:
    machine = Machine()
    play(
        MachineTarget(machine),
        """
        a: beat id='a' topics=t rebalance=60000 -> NONE 'a' epoch=2 [t:0,1,2]
        b: beat id='b' topics=t -> NONE 'b' epoch=3 []
        a: beat id='a' epoch=2 -> NONE 'a' epoch=2 [t:0,1]
        """,
    )
    machine.advance(SESSION_MS - 1)
    machine.reload()
    machine.advance(SESSION_MS - 1)
    assert group_of(machine).members.keys() == {"a", "b"}
    play(
        MachineTarget(machine),
        "a: beat id='a' epoch=2 -> NONE 'a' epoch=2\nb: beat id='b' epoch=3 -> NONE 'b' epoch=3",
    )
    machine.advance(60_000 - SESSION_MS)
    play(MachineTarget(machine), "b: beat id='b' epoch=3 -> NONE 'b' epoch=3")
    play(MachineTarget(machine), "a: beat id='a' epoch=2 -> NONE 'a' epoch=2")
    machine.advance(1)
    assert group_of(machine).members.keys() == {"b"}


def test_a_group_without_members_and_offsets_goes_in_the_end() -> None:
    machine = Machine()
    play(
        MachineTarget(machine),
        """
        a: beat id='a' topics=t -> NONE 'a' epoch=2 [t:0,1,2]
        a: commit id='a' generation=2 topics=t:0=5;u:0=6 -> t:0:NONE u:0:NONE
        """,
    )
    retention = SETTINGS.offsets_retention_ms
    for _ in range(retention // (SESSION_MS - 1) + 20):
        play(MachineTarget(machine), "a: beat id='a' epoch=2 -> NONE 'a' epoch=2")
        machine.advance(SESSION_MS - 1)
    # Of what is subscribed to, the offsets are kept; of other topics they grow old.
    play(MachineTarget(machine), "a: fetch topics=all -> g:NONE t:0=5/")
    play(MachineTarget(machine), "a: beat id='a' epoch=-1 -> NONE 'a' epoch=-1")
    machine.advance(SETTINGS.offsets_retention_check_interval_ms)
    assert "g" not in machine.shard.groups
    play(MachineTarget(machine), "a: fetch topics=all -> g:NONE")
    assert not machine.replayed().groups


def test_what_a_classic_member_holds_is_known_through_a_downgrade_and_an_upgrade() -> None:
    """Its target was less. Were that taken for what it has, another would get what it holds."""
    machine = Machine()
    play(
        MachineTarget(machine),
        """
        a: join v=3 protocols=range:@t -> NONE generation=1 ...
        a: sync id=A -> NONE ...
        b: beat id='b' topics=t assignor=range -> NONE 'b' epoch=2 [t:2]
        a: join id=A protocols=range:@t -> NONE generation=2 ...
        a: sync id=A generation=2 -> NONE type=consumer protocol=range assignment=[t:0,1]
        c: beat id='c' topics=t assignor=range -> NONE 'c' epoch=3 []
        b: beat id='b' epoch=-1 -> NONE 'b' epoch=-1
        c: beat id='c' epoch=-1 -> NONE 'c' epoch=-1
        c: list -> NONE g/consumer/PreparingRebalance/classic
        d: beat id='d' topics=t assignor=range -> NONE 'd' epoch=5 [t:2]
        """,
    )
    (member,) = (each for each in group_of(machine).members.values() if each.classic is not None)
    assert [sorted(each) for each in member.assigned.values()] == [[0, 1]]


def test_classic_members_alone_in_a_consumer_group_share_what_others_left() -> None:
    """Nobody sends heartbeats of the new protocol, with which targets are computed otherwise."""
    machine = Machine(
        replace(
            SETTINGS,
            group_consumer_migration_policy="upgrade",
            group_consumer_assignment_interval_ms=2_000,
        )
    )
    target = MachineTarget(machine)
    play(
        target,
        """
        a: join v=3 protocols=range:@t -> NONE generation=1 ...
        a: sync id=A -> NONE ...
        b: beat topics=t assignor=range -> NONE B epoch=2 [t:2]
        a: heartbeat id=A generation=1 -> REBALANCE_IN_PROGRESS
        a: join id=A protocols=range:@t -> NONE generation=2 ...
        a: sync id=A generation=2 -> NONE type=consumer protocol=range assignment=[t:0,1]
        b: beat id=B epoch=-1 -> NONE B epoch=-1
        a: heartbeat id=A generation=2 -> NONE
        after 2000
        a: heartbeat id=A generation=2 -> REBALANCE_IN_PROGRESS
        a: join id=A protocols=range:@t/0,1 -> NONE generation=3 ...
        a: sync id=A generation=3 -> NONE type=consumer protocol=range assignment=[t:0,1,2]
        a: heartbeat id=A generation=3 -> NONE
        """,
    )


def test_a_static_member_that_did_not_hear_that_it_has_joined_joins_again() -> None:
    """It keeps its member id, so it is not another client that wants its place."""
    machine = Machine()
    target = MachineTarget(machine)
    play(
        target,
        """
        a: beat id='a' topics=t instance=one -> NONE 'a' epoch=2 [t:0,1,2]
        a: beat id='a' topics=t instance=one -> NONE 'a' epoch=2 [t:0,1,2]
        b: beat id='b' topics=t instance=one -> UNRELEASED_INSTANCE_ID
        b: beat id='b' topics=t -> NONE 'b' epoch=3 []
        a: beat id='a' epoch=2 instance=one holds=t:0,1,2 -> NONE 'a' epoch=2 [t:0,1]
        a: beat id='a' epoch=9 instance=one -> FENCED_MEMBER_EPOCH
        a: beat id='a' topics=t instance=one -> NONE 'a' epoch=3 [t:0,1]
        b: beat id='b' epoch=3 -> NONE 'b' epoch=3 [t:2]
        """,
    )
    assert group_of(machine).static_members == {"one": "a"}
