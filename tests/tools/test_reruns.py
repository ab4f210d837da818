"""Failures that no rerun may hide: with `--reruns`, as in CI, a broken promise fails at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Fails when it is first run, and not again.
SUITE = """
from pathlib import Path

from {module} import {name}


def test_something_that_fails_every_second_time():
    seen = Path(__file__).with_name("seen")
    if not seen.exists():
        seen.touch()
        {failure}
"""


def run(folder: Path, module: str, name: str, failure: str) -> str:
    """How a suite with this failure ends, in CI."""
    (folder / "test_suite.py").write_text(
        SUITE.format(module=module, name=name, failure=failure), encoding="utf-8"
    )
    kits = [str(ROOT / "tests" / room) for room in ("cluster", "replication", "storage")]
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *kits])}
    options = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), "--reruns", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, str(folder)],
        cwd=folder,
        env=settings,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.splitlines()[-1] if done.stdout else done.stderr


NEVER_AGAIN = {
    "an anomaly on processes": (
        "cluster_kit.scene", "AnomalyFound", "raise AnomalyFound('lost write: 1')"
    ),
    "a promise that the simulator saw broken": (
        "simulation_kit.world", "Broken", "raise Broken('seed 1: it was acknowledged')"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", NEVER_AGAIN)
def test_a_broken_promise_is_not_run_again(tmp_path: Path, what: str) -> None:
    ended = run(tmp_path, *NEVER_AGAIN[what])
    assert "1 failed" in ended, ended
    assert "rerun" not in ended


def test_the_verdict_on_a_workload_is_one_of_them(tmp_path: Path) -> None:
    """Not only the class: what the cluster tests call when they have seen an anomaly."""
    failure = """
        from types import SimpleNamespace
        from unittest.mock import patch

        with patch("cluster_kit.scene.check", lambda _: ["one"]):
            with patch("cluster_kit.scene.report", str):
                expect_no_anomaly(SimpleNamespace(history=None))
"""
    ended = run(tmp_path, "cluster_kit.scene", "expect_no_anomaly", failure.strip())
    assert "1 failed" in ended, ended
    assert "rerun" not in ended


def test_others_are(tmp_path: Path) -> None:
    ended = run(tmp_path, "pathlib", "PurePath", "assert PurePath is None")
    assert "1 passed" in ended, ended
    assert "1 rerun" in ended
