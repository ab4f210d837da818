"""Seeded simulations; see `groups_kit.world` for what must be so. A failure names its seed."""

from __future__ import annotations

import pytest
from groups_kit.world import World

SEEDS = 24


@pytest.mark.parametrize("seed", range(SEEDS))
def test_members_come_go_crash_and_pause(seed: int) -> None:
    World(seed).run(300)


@pytest.mark.parametrize("seed", range(SEEDS // 2))
def test_writes_fail_now_and_then(seed: int) -> None:
    World(seed, failures=True).run(300)


@pytest.mark.long
def test_the_simulation_sees_trouble() -> None:
    """It would prove nothing if its clients never met an error."""
    seen = set()
    for seed in range(SEEDS, SEEDS + 5):
        world = World(seed)
        world.run(300)
        seen |= set(world.events)
    errors = {"UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "NOT_COORDINATOR", "FENCED_INSTANCE_ID"}
    assert seen >= errors | {"synced", "leave", "crash", "move"}
