"""Commands of `ottla` as users start them: programs of their own, each with its own Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ottla.testing.guardian import end_with_this_program

Start = Callable[..., subprocess.Popen[str]]
# What starts sooner, for commands that live for seconds.
QUICK = (
    *("--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=1"),
    *("--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts commands, whose logs and places are kept in a folder of the test's."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: object) -> subprocess.Popen[str]:
        command = subprocess.Popen(
            [sys.executable, "-m", "ottla.cli.main", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
        )
        end_with_this_program(command.pid)
        started.append(command)
        return command

    yield start
    for command in started:
        if command.poll() is None:
            command.kill()
            command.communicate()


def finish(command: subprocess.Popen[str]) -> tuple[str, str]:
    output, told = command.communicate()
    assert command.returncode == 0, (output, told)
    return output, told
