"""Deadlines of many members."""

from __future__ import annotations

import random

from ottla.coordinator.groups.timers import Timer, Timers, unset
from ottla.coordinator.shard import NOTHING


def timer() -> Timer:
    return Timer(lambda _: NOTHING)


def due(timers: Timers, now: int) -> list[Timer]:
    found = []
    while (each := timers.pop_due(now)) is not None:
        found.append(each)
    return found


def test_fires_at_its_deadline_and_once() -> None:
    timers, one = Timers(), timer()
    timers.set(one, 100)
    assert due(timers, 99) == []
    assert due(timers, 100) == [one]
    assert due(timers, 1000) == []


def test_a_later_deadline_takes_the_place_of_an_earlier() -> None:
    timers, one = Timers(), timer()
    timers.set(one, 100)
    timers.set(one, 200)
    assert due(timers, 150) == []
    assert timers.next_deadline() == 200
    assert due(timers, 200) == [one]


def test_an_earlier_deadline_takes_the_place_of_a_later() -> None:
    timers, one = Timers(), timer()
    timers.set(one, 200)
    timers.set(one, 100)
    assert timers.next_deadline() == 100
    assert due(timers, 100) == [one]
    assert due(timers, 300) == []


def test_one_that_was_unset_stays_silent_and_can_be_set_again() -> None:
    timers, one = Timers(), timer()
    timers.set(one, 100)
    unset(one)
    assert due(timers, 100) == []
    timers.set(one, 150)
    assert due(timers, 150) == [one]


def test_moving_deadlines_does_not_fill_the_heap() -> None:
    timers = Timers()
    members = [timer() for _ in range(100)]
    for now in range(1000):
        for each in members:
            timers.set(each, now + 10_000)
    assert len(timers) == len(members)


def test_against_a_plain_list() -> None:
    """Any sequence of calls: what fires, and when, is what a list of deadlines says."""
    for seed in range(50):
        chance = random.Random(seed)
        timers, members = Timers(), [timer() for _ in range(8)]
        wanted: dict[Timer, int] = {}
        now = 0
        for _ in range(300):
            each = chance.choice(members)
            if chance.random() < 0.7:
                deadline = now + chance.randrange(50)
                timers.set(each, deadline)
                wanted[each] = deadline
            elif chance.random() < 0.5:
                unset(each)
                wanted.pop(each, None)
            now += chance.randrange(10)
            expected = {each for each, deadline in wanted.items() if deadline <= now}
            upcoming = timers.next_deadline()
            assert not wanted or (upcoming is not None and upcoming <= min(wanted.values()))
            assert set(due(timers, now)) == expected, seed
            for each in expected:
                del wanted[each]
