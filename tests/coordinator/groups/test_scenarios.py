"""Every scenario on the state machine: the answers must be those of Apache Kafka 4.3.1."""

from __future__ import annotations

from pathlib import Path

import pytest
from groups_kit.machine import SETTINGS, Machine, MachineTarget
from groups_kit.scenarios import Run, Scenario, read

from ottla.coordinator.groups.settings import GroupSettings

FOLDER = Path(__file__).parent / "scenarios"
# What the introduction of the file says.
TIMEOUTS = GroupSettings(
    group_initial_rebalance_delay_ms=600, group_min_session_timeout_ms=100, group_max_size=2
)
CONSUMER_TIMEOUTS = GroupSettings(
    group_consumer_assignment_interval_ms=1_500,
    group_consumer_heartbeat_interval_ms=400,
    group_consumer_max_size=2,
    group_consumer_session_timeout_ms=1_000,
    group_initial_rebalance_delay_ms=0,
    group_min_session_timeout_ms=100,
)
OTHER_SETTINGS = {"timeouts": TIMEOUTS, "consumer_timeouts": CONSUMER_TIMEOUTS}


def scenarios() -> list[object]:
    return [
        pytest.param(path.stem, scenario, id=f"{path.stem}: {scenario.title}")
        for path in sorted(FOLDER.glob("*.txt"))
        for scenario in read(path)[1]
    ]


@pytest.mark.parametrize(("name", "scenario"), scenarios())
def test_answers_are_those_of_kafka(name: str, scenario: Scenario) -> None:
    machine = Machine(OTHER_SETTINGS.get(name, SETTINGS))
    assert Run(scenario, MachineTarget(machine), lambda group: group).text() == scenario.text
