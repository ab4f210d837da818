"""The table of states."""

from __future__ import annotations

from ottla.coordinator.groups.states import TABLE, ClassicState, Event


def test_every_state_has_its_row() -> None:
    assert set(TABLE) == set(ClassicState)


def test_every_state_but_the_last_can_end() -> None:
    for state, row in TABLE.items():
        assert (row.get(Event.GONE) is ClassicState.DEAD) == (state is not ClassicState.DEAD)


def test_every_event_means_one_state() -> None:
    """Where an event leads does not depend on where it happens."""
    for event in Event:
        assert len({row[event] for row in TABLE.values() if event in row}) == 1


def test_an_assignment_is_stored_only_after_all_have_joined() -> None:
    possible = {state for state, row in TABLE.items() if Event.ASSIGNMENT_STORED in row}
    assert possible == {ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE}
