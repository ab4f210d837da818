"""Seeded simulations of consumer groups; see `groups_kit.consumer_world` for what must be so."""

from __future__ import annotations

import pytest
from groups_kit.consumer_world import ConsumerWorld

SEEDS = 24


def seeds(count: int) -> list[object]:
    """A third of them in `make test`, the rest in `make test-long`."""
    return [
        pytest.param(seed, marks=[pytest.mark.long] if seed >= count // 3 else [])
        for seed in range(count)
    ]


@pytest.mark.parametrize("seed", seeds(SEEDS))
def test_members_of_the_new_protocol_come_go_crash_and_pause(seed: int) -> None:
    ConsumerWorld(seed, classic=False).run(300)


@pytest.mark.parametrize("seed", seeds(SEEDS))
def test_members_of_both_protocols_share_a_group(seed: int) -> None:
    ConsumerWorld(seed).run(300)


@pytest.mark.parametrize("seed", seeds(SEEDS // 2))
def test_writes_fail_now_and_then(seed: int) -> None:
    ConsumerWorld(seed, failures=True).run(300)


@pytest.mark.long
def test_the_simulation_sees_trouble() -> None:
    """It would prove nothing if its clients never met an error, or never found together."""
    seen = set()
    for seed in range(SEEDS, SEEDS + 12):
        world = ConsumerWorld(seed)
        world.run(300)
        seen |= set(world.events)
    errors = {
        "UNKNOWN_MEMBER_ID",
        "REBALANCE_IN_PROGRESS",
        "FENCED_MEMBER_EPOCH",
        "FENCED_INSTANCE_ID",
        "UNRELEASED_INSTANCE_ID",
    }
    commits = {"commit NONE", "commit STALE_MEMBER_EPOCH", "commit UNKNOWN_MEMBER_ID"}
    assert seen >= errors | commits | {"settled", "consumer", "classic", "lost answer", "move"}
