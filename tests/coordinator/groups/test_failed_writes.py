"""Writes that fail: those who hang on them are told, and the group goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from groups_kit.machine import Machine, MachineTarget
from groups_kit.scenarios import play
from groups_kit.world import check_group

from ottla.coordinator.groups.classic.group import ClassicGroup
from ottla.protocol.errors import ErrorCode

ALONE = """
    a: join v=3 -> NONE generation=1 ...
"""


@contextmanager
def failing(machine: Machine) -> Iterator[None]:
    machine.failure = ErrorCode.COORDINATOR_NOT_AVAILABLE
    yield
    machine.failure = None
    for group in machine.shard.groups.values():
        assert isinstance(group, ClassicGroup)
        check_group(group)


def test_a_group_that_cannot_be_stored_is_not_there() -> None:
    machine = Machine()
    target = MachineTarget(machine)
    with failing(machine):
        play(
            target,
            """
            a: join -> COORDINATOR_NOT_AVAILABLE member=''
            a: join v=3 -> COORDINATOR_NOT_AVAILABLE member=''
            a: join instance=one -> COORDINATOR_NOT_AVAILABLE member=''
            """,
        )
    assert not machine.shard.groups
    play(target, ALONE)


def test_an_assignment_that_cannot_be_stored_is_not_told() -> None:
    machine = Machine()
    target = MachineTarget(machine)
    play(
        target,
        ALONE
        + """
        b: join v=3 -> waits
        a: join v=3 id=A -> NONE generation=2 ...
        b <- NONE generation=2 ...
        """,
    )
    with failing(machine):
        play(
            target,
            """
            x: describe -> g:NONE CompletingRebalance ...
            b: sync id=B generation=2 -> waits
            a: sync id=A generation=2 assign=A:x|B:y -> COORDINATOR_NOT_AVAILABLE
            b <- COORDINATOR_NOT_AVAILABLE
            """,
        )
    play(
        target,
        """
        x: describe -> g:NONE PreparingRebalance type=consumer data= A//a/127.0.0.1:: B//b/127.0.0.1::
        a: heartbeat id=A generation=2 -> REBALANCE_IN_PROGRESS
        a: join v=3 id=A -> waits
        b: join v=3 id=B -> NONE generation=3 ...
        a <- NONE generation=3 ...
        a: sync id=A generation=3 assign=A:x|B:y -> NONE ...
        """,
    )


def test_a_group_whose_emptiness_cannot_be_stored_is_empty_all_the_same() -> None:
    machine = Machine()
    target = MachineTarget(machine)
    play(target, ALONE + "a: sync id=A assign=A:x -> NONE ...")
    with failing(machine):
        play(
            target,
            """
            x: describe -> g:NONE Stable type=consumer data=range A//a/127.0.0.1:m:x
            a: leave ids=A -> NONE A:NONE
            x: describe -> g:NONE Empty type=consumer data=
            """,
        )
    play(
        target,
        "a: join v=3 -> NONE generation=3 ...",
    )


def test_a_session_that_ends_while_nothing_can_be_stored() -> None:
    machine = Machine()
    target = MachineTarget(machine)
    play(target, ALONE)
    with failing(machine):
        machine.advance(60_000)
    play(target, "x: describe -> g:NONE Empty type=consumer data=")
    assert machine.replayed().groups["g"].is_empty  # nothing was ever assigned


def test_a_static_member_that_cannot_be_replaced_keeps_its_place() -> None:
    machine = Machine()
    target = MachineTarget(machine)
    stable = "x: describe -> g:NONE Stable type=consumer data=range ONE/one/a/127.0.0.1:m:x"
    play(
        target,
        """
        a: join instance=one -> NONE generation=1 ...
        a: sync id=ONE instance=one assign=ONE:x -> NONE ...
        """,
    )
    with failing(machine):
        play(
            target, "b: join instance=one protocols=range:n -> COORDINATOR_NOT_AVAILABLE member=''"
        )
    play(target, stable + "\na: heartbeat id=ONE instance=one -> NONE")
    play(
        target,
        stable
        + """
        b: join instance=one -> NONE generation=1 type=consumer protocol=range leader=ONE2 ...
        a: heartbeat id=ONE instance=one -> FENCED_INSTANCE_ID
        """,
    )


def test_deleting_that_fails_says_so() -> None:
    machine = Machine()
    play(MachineTarget(machine), "a: commit topics=t:0=1 -> t:0:NONE")
    with failing(machine):
        ticket = machine.ask(lambda shard, ticket, now: shard.delete_group(ticket, "g", now))
    code = machine.answers[ticket].results[0].error_code  # type: ignore[attr-defined]
    assert code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    play(MachineTarget(machine), "a: fetch -> g:NONE t:0=1/")


def test_expiry_that_fails_is_tried_again() -> None:
    machine = Machine()
    play(MachineTarget(machine), "a: commit topics=t:0=1 -> t:0:NONE")
    with failing(machine):
        machine.advance(8 * 24 * 3_600_000)
    play(MachineTarget(machine), "a: fetch -> g:NONE t:0=1/")
    machine.advance(600_000)
    play(MachineTarget(machine), "a: list -> NONE")
