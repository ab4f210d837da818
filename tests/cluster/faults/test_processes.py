"""Processes of a cluster are killed, paused and restarted while clients write and read.

Nothing that was acknowledged is lost, nothing is there twice, and no reader sees anything that another
does not (cluster_kit/checker.py).
"""

from __future__ import annotations

import os
import random

import pytest
from cluster_kit import faults
from cluster_kit.faults import LONG, SHORT, Fault
from cluster_kit.history import Outcome
from cluster_kit.scene import Scene, expect_no_anomaly

# Of each fault in a soak.
SOAK_ROUNDS = int(os.environ.get("CLUSTER_ROUNDS", "10"))


def name(value: object) -> str:
    return getattr(value, "__name__", str(value))


def test_faults(scene: Scene) -> None:
    workload = scene.workload()
    faults.run(scene, workload, list(SHORT))
    expect_no_anomaly(workload)


@pytest.mark.long
@pytest.mark.parametrize("fault", SHORT, ids=name)
def test_fault(scene: Scene, fault: Fault) -> None:
    workload = scene.workload()
    faults.run(scene, workload, [fault] * 2)
    expect_no_anomaly(workload)


@pytest.mark.long
@pytest.mark.parametrize("fault", LONG, ids=name)
def test_longer_fault(scene: Scene, fault: Fault) -> None:
    workload = scene.workload()
    faults.run(scene, workload, [fault])
    expect_no_anomaly(workload)
    if fault is faults.rolling_restart:
        for broker in scene.numbers:
            told = scene.cluster.log_path(broker).read_text()
            assert "Traceback" not in told, told
            # Others find the port of a stopping broker closed, and are right.
            assert "registers again" not in told, told


@pytest.mark.long
def test_faults_under_transactions(scene: Scene) -> None:
    """Leaders of the topic die, and with them coordinators; no reader sees what was aborted."""
    workload = scene.workload(producers=1, transactional=2)
    faults.run(scene, workload, [faults.kill_of_a_leader, faults.pause_of_a_leader])
    expect_no_anomaly(workload)
    ended = {write.outcome for write in workload.history.writes if write.producer[0] == "t"}
    assert {Outcome.ACKNOWLEDGED, Outcome.ABORTED} <= ended


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("fault", [*SHORT, *LONG], ids=name)
def test_soak_of_one_fault(scene: Scene, fault: Fault) -> None:
    workload = scene.workload(producers=1, transactional=1)
    faults.run(scene, workload, [fault] * SOAK_ROUNDS)
    expect_no_anomaly(workload)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_soak_of_all_faults(scene: Scene) -> None:
    """In an order by chance. CLUSTER_SEED repeats it."""
    seed = int(os.environ.get("CLUSTER_SEED", random.randrange(1 << 32)))
    print(f"CLUSTER_SEED={seed}")
    chance = random.Random(seed)
    workload = scene.workload(producers=1, transactional=1)
    faults.run(scene, workload, chance.choices([*SHORT, *LONG], k=SOAK_ROUNDS))
    expect_no_anomaly(workload)
