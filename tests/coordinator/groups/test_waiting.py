"""Requests that wait: who is answered, when, and how. Kafka leaves some unanswered; we do not."""

from __future__ import annotations

from dataclasses import replace

from groups_kit.machine import SETTINGS, Machine, MachineTarget
from groups_kit.scenarios import play

STABLE = """
    a: join v=3 session=60000 rebalance=1000000 -> NONE generation=1 ...
    a: sync id=A assign=A:x -> NONE ...
"""


def test_a_new_member_does_not_wait_for_ever() -> None:
    """It sends no heartbeats while it waits, so its client may be gone without our knowing."""
    machine = Machine()
    target = MachineTarget(machine)
    play(target, STABLE + "b: join v=3 session=10000 -> waits")
    for _ in range(6):
        play(target, "x: describe -> g:NONE PreparingRebalance ...")
        machine.advance(49_000)
        play(target, "a: describe -> ...\na: heartbeat id=A -> REBALANCE_IN_PROGRESS")
    machine.advance(10_000)
    play(target, "b <- UNKNOWN_MEMBER_ID member=''")


def test_a_member_that_was_in_a_generation_may_wait_longer_than_its_session() -> None:
    machine = Machine()
    target = MachineTarget(machine)
    play(
        target,
        """
        a: join v=3 session=60000 rebalance=1000000 -> NONE generation=1 ...
        b: join v=3 session=10000 -> waits
        a: join id=A session=60000 rebalance=1000000 -> NONE generation=2 ...
        b <- NONE generation=2 ...
        a: sync id=A generation=2 assign=A:x|B:y -> NONE ...
        b: sync id=B generation=2 -> NONE ...
        b: join id=B session=10000 protocols=range:mc -> waits
        after 50000
        a: heartbeat id=A generation=2 -> REBALANCE_IN_PROGRESS
        after 50000
        a: join id=A -> NONE generation=3 ...
        b <- NONE generation=3 ...
        """,
    )


def test_who_leaves_while_it_waits_for_its_assignment_is_told() -> None:
    play(
        MachineTarget(Machine()),
        STABLE
        + """b: join v=3 -> waits
        a: join id=A -> NONE generation=2 ...
        b <- NONE generation=2 ...
        b: sync id=B generation=2 -> waits
        c: leave ids=B -> NONE B:NONE
        b <- UNKNOWN_MEMBER_ID
        """,
    )


def test_a_second_request_takes_the_place_of_the_first() -> None:
    play(
        MachineTarget(Machine()),
        STABLE
        + """b: join v=3 -> waits
        c: describe -> ...
        d: join id=B protocols=range:later -> waits
        b <- REBALANCE_IN_PROGRESS member=B
        a: join id=A -> NONE generation=2 ...
        d <- NONE generation=2 ...
        b: sync id=B generation=2 -> waits
        d: sync id=B generation=2 -> waits
        b <- REBALANCE_IN_PROGRESS
        a: sync id=A generation=2 assign=A:x|B:y -> NONE ...
        d <- NONE type=consumer protocol=range assignment=y
        """,
    )


def test_an_id_that_became_a_member_does_not_expire_as_an_id() -> None:
    play(
        MachineTarget(Machine()),
        """
        a: join session=6000 -> MEMBER_ID_REQUIRED member=A
        a: join id=A session=60000 -> NONE generation=1 ...
        a: sync id=A assign=A:x -> NONE ...
        after 7000
        a: heartbeat id=A -> NONE
        """,
    )


def test_a_group_with_members_and_no_offsets_stays() -> None:
    """What looks for old offsets takes away groups that have none, if they are empty."""
    play(
        MachineTarget(Machine()),
        """
        a: join v=3 session=1800000 -> NONE generation=1 ...
        a: sync id=A assign=A:x -> NONE ...
        after 700000
        a: heartbeat id=A -> NONE
        a: list -> NONE g/consumer/Stable/classic
        """,
    )


# Between a record and its being committed ------------------------------------------------------------


def test_a_group_that_is_deleted_before_its_first_member_is_in_it_comes_again() -> None:
    machine = Machine()
    target = MachineTarget(machine)
    with machine.uncommitted():
        play(target, "a: join v=3 -> waits\nb: delete groups=g -> waits")
    play(target, "b <- g:NONE\na <- NONE generation=1 ...\na: sync id=A assign=A:x -> NONE ...")


def test_a_group_that_becomes_another_kind_before_its_first_member_is_in_it() -> None:
    """The classic member is let in by the rules of the kind that the group is of by then."""
    machine = Machine()
    target = MachineTarget(machine)
    with machine.uncommitted():
        play(target, "a: join v=3 protocols=range:@t -> waits\nb: beat topics=t -> waits")
    play(target, "b <- NONE B epoch=2 [t:0,1,2]\na <- NONE ...")


def test_a_classic_member_joins_before_the_group_that_is_classic_again_is_committed() -> None:
    """It begins the rebalance that its joining and the others' are wanted for."""
    machine = Machine()
    target = MachineTarget(machine)
    play(
        target,
        """
        a: join v=3 protocols=range:@t -> NONE generation=1 ...
        a: sync id=A -> NONE ...
        b: beat topics=t -> NONE B epoch=2 ...
        c: join v=3 protocols=range:@t|other:@t -> NONE generation=3 ...
        """,
    )
    members = machine.shard.groups["g"].members.values()  # type: ignore[attr-defined]
    ids = {member.client_id: f"'{member.id}'" for member in members}
    with machine.uncommitted():
        play(
            target,
            f"""
            b: beat id={ids["b"]} epoch=-1 -> waits
            a: join v=3 id={ids["a"]} protocols=range:@t|more:@t -> waits
            """,
        )
    play(
        target,
        f"""
        b <- NONE B epoch=-1
        x: describe -> g:NONE PreparingRebalance ...
        c: join v=3 id={ids["c"]} protocols=range:@t|more:@t -> NONE generation=4 ...
        a <- NONE generation=4 ...
        """,
    )


def test_what_time_does_to_a_group_does_not_wait_for_the_answers_of_another() -> None:
    """Who joins meanwhile would be lost by it."""
    machine = Machine(replace(SETTINGS, group_initial_rebalance_delay_ms=3_000))
    target = MachineTarget(machine)
    play(
        target,
        """
        a: join v=3 session=10000 -> waits
        after 3000
        a <- NONE generation=1 ...
        a: sync id=A assign=A:x -> NONE ...
        after 6000
        b: join v=3 group=h -> waits
        """,
    )
    with machine.uncommitted():
        # Late: the rebalance of h and the session of g's last member have ended.
        machine.tick_after(5_000)
        play(
            target,
            """
            c: join v=4 -> waits
            d: join v=3 -> waits
            """,
        )
    play(
        target,
        """
        b <- NONE generation=1 ...
        c <- MEMBER_ID_REQUIRED member=C
        c: join v=4 id=C -> waits
        after 6000
        d <- NONE generation=3 ...
        c <- NONE generation=3 ...
        """,
    )
