"""Scenarios of members, over stores with and without faults."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from store_kit.members import BAD, SECONDS, Run, Scenario, cluster_over


@pytest.fixture(params=["without faults", 1, 2])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Runs a scenario over the embedded store, and with some seeds over one with faults."""
    faults = BAD if isinstance(request.param, int) else None
    seed = request.param if isinstance(request.param, int) else 0

    def run_scenario(scenario: Scenario) -> None:
        async def whole() -> None:
            async with cluster_over(tmp_path / "metadata.db", faults, seed) as cluster:
                await asyncio.wait_for(scenario(cluster), 3 * SECONDS)

        asyncio.run(whole())

    return run_scenario
