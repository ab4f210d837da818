"""The coordinator moves: what lasts is there again, who waited is told, sessions begin anew."""

from __future__ import annotations

from groups_kit.machine import Machine, MachineTarget
from groups_kit.scenarios import play

from ottla.coordinator.groups.settings import GroupSettings

STABLE = """
    a: join v=3 -> NONE generation=1 ...
    b: join v=3 -> waits
    a: join v=3 id=A -> NONE generation=2 ...
    b <- NONE generation=2 ...
    a: sync id=A generation=2 assign=A:x|B:y -> NONE ...
"""
NAMES = (
    "x: describe -> g:NONE Stable type=consumer data=range A//a/127.0.0.1:m:x B//b/127.0.0.1:m:y\n"
)


def test_a_stable_group_goes_on() -> None:
    machine = Machine()
    play(MachineTarget(machine), STABLE)
    machine.reload()
    play(
        MachineTarget(machine),
        NAMES
        + """a: heartbeat id=A generation=2 -> NONE
        b: sync id=B generation=2 -> NONE type=consumer protocol=range assignment=y
        b: heartbeat id=B generation=2 -> NONE
        b: commit id=B generation=2 -> t:0:NONE
        """,
    )


def test_sessions_begin_when_the_group_is_loaded() -> None:
    machine = Machine()
    play(MachineTarget(machine), STABLE)
    machine.advance(9_000)
    machine.reload()
    machine.advance(9_000)
    play(MachineTarget(machine), NAMES + "a: heartbeat id=A generation=2 -> NONE")
    machine.advance(2_000)
    play(
        MachineTarget(machine),
        "x: describe -> g:NONE PreparingRebalance type=consumer data= A//a/127.0.0.1::x",
    )


def test_who_waits_is_told_to_look_for_the_coordinator() -> None:
    machine = Machine()
    target = MachineTarget(machine)
    play(target, STABLE + "b: join id=B protocols=range:mc -> waits")
    machine.reload()
    play(target, NAMES + "b <- NOT_COORDINATOR member=B\na: heartbeat id=A generation=2 -> NONE")


def test_who_waits_for_the_assignment_is_told_to_look_for_the_coordinator() -> None:
    machine = Machine()
    target = MachineTarget(machine)
    play(
        target,
        STABLE
        + """b: join id=B protocols=range:mc -> waits
        a: join id=A -> NONE generation=3 ...
        b <- NONE generation=3 ...
        b: sync id=B generation=3 -> waits
        """,
    )
    machine.reload()
    # The generation that was not stored never was.
    play(
        target,
        NAMES
        + """b <- NOT_COORDINATOR
        a: sync id=A generation=3 assign=A:x|B:y -> ILLEGAL_GENERATION
        a: heartbeat id=A generation=2 -> NONE
        """,
    )


def test_a_member_of_a_loaded_group_can_change_its_protocols() -> None:
    """The log knows only the protocol that was chosen; the members bring the others again."""
    machine = Machine()
    play(MachineTarget(machine), STABLE)
    machine.reload()
    play(
        MachineTarget(machine),
        NAMES
        + """a: join id=A protocols=range:m|sticky:s -> waits
        b: join id=B protocols=sticky:s|range:m -> NONE generation=3 ...
        a <- NONE generation=3 type=consumer protocol=range leader=A member=A members=A:m|B:m
        """,
    )


def test_a_group_that_is_larger_than_allowed_now_shrinks() -> None:
    machine = Machine()
    play(MachineTarget(machine), STABLE)
    machine.settings = GroupSettings(group_max_size=1)
    machine.reload()
    play(
        MachineTarget(machine),
        """
        x: describe -> g:NONE PreparingRebalance type=consumer data= A//a/127.0.0.1::x B//b/127.0.0.1::y
        a: heartbeat id=A generation=2 -> REBALANCE_IN_PROGRESS
        a: join id=A -> waits
        b: join id=B -> GROUP_MAX_SIZE_REACHED member=''
        after 20000
        a <- NONE generation=3 type=consumer protocol=range leader=A member=A members=A:m
        """,
    )


def test_generations_go_on_from_where_they_were() -> None:
    machine = Machine()
    play(MachineTarget(machine), STABLE)
    play(MachineTarget(machine), NAMES + "a: leave ids=A|B -> NONE A:NONE B:NONE")
    machine.reload()
    play(
        MachineTarget(machine),
        "a: join v=3 -> NONE generation=4 ...",
    )
