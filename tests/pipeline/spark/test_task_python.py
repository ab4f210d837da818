"""The Python of tasks that comes with a job; test_cluster.py has it done."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ottla.pipeline.spark.task_python import settings_for_sent_python


@pytest.mark.parametrize("python", ["python3", "/opt/ottla/bin/python", "./here/bin/python"])
def test_what_the_driver_has_too_stays(
    python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here" / "bin").mkdir(parents=True)
    (tmp_path / "here" / "bin" / "python").touch()
    environment = {"PYSPARK_PYTHON": python, "PATH": "/bin"}
    assert settings_for_sent_python({}, environment) == {}
    assert environment == {"PYSPARK_PYTHON": python, "PATH": "/bin"}


def test_what_only_executors_have_is_found_by_name() -> None:
    environment = {"PYSPARK_PYTHON": "./sent/bin/python", "PATH": "/bin"}
    settings = settings_for_sent_python({"spark.executorEnv.PATH": "/nodes/bin"}, environment)
    own = Path(sys.executable).parent
    # The executors find theirs first; the driver, which has no such folder, its own.
    assert settings == {"spark.executorEnv.PATH": f"./sent/bin:{own}:/nodes/bin"}
    assert environment == {"PYSPARK_PYTHON": "python", "PATH": f"{own}:/bin"}


def test_a_name_that_the_driver_does_not_know() -> None:
    environment = {"PYSPARK_PYTHON": "./sent/bin/pypy", "PATH": "/bin"}
    assert settings_for_sent_python({}, environment) == {}
    assert environment["PYSPARK_PYTHON"] == "./sent/bin/pypy"
