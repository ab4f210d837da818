"""Whole clusters under faults, seeded. A failure names the seed that repeats it."""

from __future__ import annotations

import os
from typing import Any

import pytest
from simulation_kit.controlled import run_controlled_seed
from simulation_kit.coordinated import run_coordinated_seed
from simulation_kit.flushing import run_flushing_seed
from simulation_kit.members import run_grouped_seed
from simulation_kit.world import run_seed

# Seeds in one test, and how many tests there are of them; of each kind the first is in `make test`, the
# others are in `make test-long`, and `make soak` has more.
IN_A_TEST = 10
TESTS = 20
# Those with coordinators take ten times as long.
COORDINATED = 10
MOVING_TESTS = 5
# Those with controllers take twice as long.
CONTROLLED = 30
SOAK_SEEDS = int(os.environ.get("SIMULATION_SEEDS", "10000"))


def portions(seeds: int, size: int) -> list[object]:
    """The first seed of each test."""
    return [
        pytest.param(first, marks=pytest.mark.long if first else ())
        for first in range(0, seeds, size)
    ]


@pytest.mark.parametrize("first", portions(IN_A_TEST * TESTS, IN_A_TEST))
def test_seeds(first: int) -> None:
    acknowledged = 0
    for seed in range(first, first + IN_A_TEST):
        world = run_seed(seed)
        acknowledged += sum(map(len, world.acked.values()))
    # A simulation in which nothing is ever acknowledged proves nothing.
    assert acknowledged > 50 * IN_A_TEST


@pytest.mark.parametrize("first", portions(IN_A_TEST * MOVING_TESTS, IN_A_TEST))
def test_processes_that_stand_still(first: int) -> None:
    """For a moment, or for longer than their sessions last; with `min.insync.replicas` of 1, 2 and 3."""
    acknowledged = pauses = told = 0
    for seed in range(first, first + IN_A_TEST):
        world = run_seed(seed, pauses=0.3, min_isr=1 + seed % 3, fetch_sessions=True)
        acknowledged += sum(map(len, world.acked.values()))
        pauses += world.pauses
        told += world.reader.answers
    assert acknowledged > 10 * IN_A_TEST
    assert pauses > 5 * IN_A_TEST
    assert told > 20 * IN_A_TEST


@pytest.mark.parametrize("min_isr", [1, 3])
def test_other_minimums(min_isr: int) -> None:
    acknowledged = 0
    for seed in range(IN_A_TEST):
        acknowledged += sum(map(len, run_seed(seed, min_isr=min_isr).acked.values()))
    assert acknowledged > 10 * IN_A_TEST


@pytest.mark.soak
def test_many_pauses() -> None:
    for seed in range(9_000_000, 9_000_000 + SOAK_SEEDS):
        run_seed(
            seed,
            brokers=3 + seed % 3,
            pauses=0.3,
            min_isr=1 + seed % 3,
            slow_disks=bool(seed % 2),
            fetch_sessions=bool(seed % 5),
        )


def test_followers_with_slow_disks() -> None:
    waits = sum(run_seed(seed, slow_disks=True).waits_for_disks for seed in range(IN_A_TEST))
    assert waits > 10 * IN_A_TEST


def _run_coordinated(first: int, seeds: int) -> None:
    committed = aborted = in_doubt = offsets = 0
    for seed in range(first, first + seeds):
        world = run_coordinated_seed(seed)
        ends = [each.committed for each in world.attempts]
        committed += ends.count(True)
        aborted += ends.count(False)
        in_doubt += ends.count(None)
        offsets += len(world.final_offset)
    assert committed > 2 * seeds
    assert aborted > seeds // 2
    assert in_doubt > seeds // 2
    assert offsets > seeds


@pytest.mark.parametrize("first", portions(COORDINATED, COORDINATED // 2))
def test_offsets_and_transactions(first: int) -> None:
    _run_coordinated(first, COORDINATED // 2)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(COORDINATED, 90, 20))
def test_more_offsets_and_transactions(first: int) -> None:
    _run_coordinated(first, 20)


@pytest.mark.soak
def test_many_offsets_and_transactions() -> None:
    for seed in range(4_000_000, 4_000_000 + SOAK_SEEDS // 5):
        run_coordinated_seed(seed)


def _run_grouped(first: int, seeds: int) -> None:
    generations = committed = 0
    for seed in range(first, first + seeds):
        world = run_grouped_seed(seed)
        generations += len(world.assigned)
        committed += sum(world.least_position.values())
    assert generations > 2 * seeds
    assert committed > 20 * seeds


def test_groups() -> None:
    """Members of a group join, commit and come too late, while their coordinators fail."""
    _run_grouped(0, IN_A_TEST)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(IN_A_TEST, 110, 50))
def test_more_groups(first: int) -> None:
    _run_grouped(first, 50)


@pytest.mark.soak
def test_many_groups() -> None:
    for seed in range(7_000_000, 7_000_000 + SOAK_SEEDS // 2):
        run_grouped_seed(seed, brokers=3 + seed % 3)


@pytest.mark.parametrize("first", portions(IN_A_TEST * MOVING_TESTS, IN_A_TEST))
def test_moves(first: int) -> None:
    """Partitions are moved between five brokers all the while."""
    acknowledged = moves = 0
    for seed in range(first, first + IN_A_TEST):
        world = run_seed(seed, brokers=5, moves=0.3)
        acknowledged += sum(map(len, world.acked.values()))
        moves += world.moves
    assert acknowledged > 50 * IN_A_TEST
    assert moves > 5 * IN_A_TEST


def _run_controlled(first: int, seeds: int, **options: Any) -> None:
    acknowledged = writes = terms = killed = suspicions = 0
    for seed in range(first, first + seeds):
        world = run_controlled_seed(seed, **options)
        acknowledged += sum(map(len, world.acked.values()))
        writes += world.office.checks.writes
        terms += world.office.image.controller_epoch
        killed += world.office.killed_in_office
        suspicions += world.suspicions
    assert acknowledged > 10 * seeds
    assert writes > 10 * seeds
    assert terms > 2 * seeds
    assert killed > seeds // 4
    assert suspicions > seeds // 2


@pytest.mark.parametrize("first", portions(8 * CONTROLLED, CONTROLLED))
def test_controllers_that_fail(first: int) -> None:
    """Each broker may be the controller, over a store that loses answers, lags and ends sessions."""
    _run_controlled(first, CONTROLLED)


@pytest.mark.long
@pytest.mark.parametrize("min_isr", [1, 2, 3])
def test_controllers_that_fail_while_partitions_are_moved(min_isr: int) -> None:
    _run_controlled(1000, CONTROLLED, brokers=4, moves=0.3, min_isr=min_isr)


def test_the_same_seed_is_the_same_history() -> None:
    """Also with controllers, whose tasks and turns go by the world's clocks."""
    first, second, other = (run_controlled_seed(seed) for seed in (5, 5, 6))
    assert first.history == second.history
    assert first.history != other.history


@pytest.mark.soak
def test_many_controllers_that_fail() -> None:
    for seed in range(10_000_000, 10_000_000 + SOAK_SEEDS // 2):
        run_controlled_seed(
            seed, brokers=3 + seed % 3, moves=0.3 * (seed % 2), min_isr=1 + seed % 3
        )


@pytest.mark.soak
def test_many_moves() -> None:
    for seed in range(3_000_000, 3_000_000 + SOAK_SEEDS):
        run_seed(seed, brokers=3 + seed % 3, moves=0.3)


@pytest.mark.soak
def test_many_seeds() -> None:
    for seed in range(1_000_000, 1_000_000 + SOAK_SEEDS):
        run_seed(seed)


def test_damaged_logs_are_fetched_again() -> None:
    given_up = sum(run_seed(seed, damage=0.3).given_up for seed in range(2 * IN_A_TEST))
    assert given_up > IN_A_TEST


@pytest.mark.parametrize("moves", [pytest.param(0.0, marks=pytest.mark.long), 0.3])
def test_single_records_are_deleted_and_erased(moves: float) -> None:
    deleted = erased = 0
    for seed in range(IN_A_TEST):
        world = run_seed(seed, brokers=4, moves=moves, deletes=True, slow_disks=bool(seed % 2))
        deleted += sum(map(len, world.deleted.values()))
        erased += world.erased
    assert deleted > 10 * IN_A_TEST
    assert erased > deleted


@pytest.mark.parametrize("first", portions(3 * IN_A_TEST, IN_A_TEST))
def test_what_is_visible_when_flushed_outlasts_any_power_failure(first: int) -> None:
    acknowledged = outages = 0
    for seed in range(first, first + IN_A_TEST):
        world = run_flushing_seed(seed)
        acknowledged += sum(map(len, world.acked.values()))
        outages += world.outages
    assert acknowledged > 10 * IN_A_TEST
    assert outages > 3 * IN_A_TEST


@pytest.mark.soak
def test_many_power_failures() -> None:
    for seed in range(9_000_000, 9_000_000 + SOAK_SEEDS):
        run_flushing_seed(seed, brokers=3 + seed % 3)


@pytest.mark.soak
def test_many_deletions() -> None:
    for seed in range(7_000_000, 7_000_000 + SOAK_SEEDS):
        run_seed(
            seed,
            brokers=3 + seed % 3,
            moves=0.3 * (seed % 2),
            damage=0.1 * (seed % 4 == 0),
            deletes=True,
            slow_disks=seed % 3 == 0,
        )


@pytest.mark.soak
def test_many_damaged_logs() -> None:
    for seed in range(5_000_000, 5_000_000 + SOAK_SEEDS):
        run_seed(seed, brokers=3 + seed % 3, damage=0.3, slow_disks=bool(seed % 2))


@pytest.mark.soak
def test_many_seeds_with_slow_disks() -> None:
    for seed in range(6_000_000, 6_000_000 + SOAK_SEEDS):
        run_seed(seed, brokers=3 + seed % 3, moves=0.3 * (seed % 2), slow_disks=True)


@pytest.mark.soak
def test_five_brokers() -> None:
    for seed in range(2_000_000, 2_000_000 + SOAK_SEEDS // 10):
        run_seed(seed, brokers=5)
