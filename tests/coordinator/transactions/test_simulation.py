"""Seeded simulations: clients lose answers, die and send late, markers are delayed and repeated, the
coordinator crashes at any moment and its log fails at times. What holds at the end of each:

- every batch that was written is committed or aborted as its transaction was decided, all of it;
- no batch and no marker ever lands in another transaction than its own;
- nothing is left open;
- what the coordinator knows is what a replay of its log gives.
"""

from __future__ import annotations

import pytest
from transactions_kit.cluster import ClusterModel

STEPS = 400


@pytest.mark.parametrize("seed", range(60))
def test_second_protocol(seed: int) -> None:
    _simulate(seed, version=2)


@pytest.mark.parametrize("seed", range(40))
def test_first_protocol(seed: int) -> None:
    _simulate(seed, version=0)


@pytest.mark.parametrize("seed", range(40))
def test_two_phase_commit(seed: int) -> None:
    _simulate(seed, version=2, two_phase=True)


def _simulate(seed: int, *, version: int, two_phase: bool = False) -> None:
    model = ClusterModel(seed, version=version, two_phase=two_phase)
    try:
        model.run(STEPS)
        model.check()
    except AssertionError as error:
        raise AssertionError(f"seed={seed} version={version} two_phase={two_phase}") from error
    decided = list(model.decisions.values())
    # The run was worth its name.
    assert True in decided
    assert False in decided
