"""The program behind docs/scale.md runs, and counts what it says it counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("per_topic", [7, 70])  # in a topic's own node, and in nodes of 64
def test_a_small_cluster(per_topic: int) -> None:
    sizes = ["--brokers", "9", "--partitions", "420", "--per-topic", str(per_topic)]
    done = subprocess.run(
        [sys.executable, "-m", "bench.cluster.scale", *sizes, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # The program itself checks that every partition has a living leader after each event, that nobody
    # else lost one, and that a broker which follows knows the same as the controller.
    assert found["led.fewest"] <= 420 / 9 <= found["led.most"]
    assert found["held.fewest"] <= 420 * 3 / 9 <= found["held.most"]
    assert 0 < found["death.heaviest"] < found["death.elected"] < found["death.changed"]
    assert found["death.changed"] <= found["held.most"]
    # A write for one partition takes its node and the revision; whoever follows reads little more.
    assert found["isr.multis"] == 1
    assert found["isr.operations"] == 2
    assert found["isr.written"] < found["isr.read"] < found["isr.written"] + 300
    assert found["isr.written"] < found["death.written"] < found["create.written"]
    assert found["load.read"] > found["create.written"]
    assert found["image.memory"] > 420 * 100
    # All partitions enter a new epoch when all brokers restart, in one write each.
    assert found["restart.operations"] >= found["create.operations"]


def test_a_cluster_that_is_too_small_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.cluster.scale", "--brokers", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "more than 3 brokers" in done.stderr
