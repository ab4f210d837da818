"""The process that Spark's Python workers are forked from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ottla.record.columns import compile_kernels

_PROGRAM = """
import gc, sys
from pyspark_ottla import daemon
daemon.prepare(sys.argv[1])
print("ottla.record.columns.kernels.decoding" in sys.modules, gc.get_freeze_count() > 0)
"""


@pytest.mark.parametrize(
    ("worker", "has_kernels"),
    [("pyspark.worker", True), ("pyspark.sql.worker.plan_data_source_read", False)],
)
def test_workers_that_run_tasks_find_the_kernels_loaded(worker: str, has_kernels: bool) -> None:
    assert compile_kernels()
    asked = subprocess.run(
        [sys.executable, "-c", _PROGRAM, worker], capture_output=True, text=True, check=True
    )
    assert asked.stdout.split() == [str(has_kernels), "True"]


def test_nothing_is_compiled_before_workers_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTTLA_CACHE_DIR", str(tmp_path))
    asked = subprocess.run(
        [sys.executable, "-c", _PROGRAM, "pyspark.worker"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert asked.stdout.split() == ["False", "True"]
