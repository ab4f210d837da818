"""What docs/cluster.md shows of a cluster whose broker dies, typed as it stands there.

Other than there are the ports, the process ids, who leads, the topic's id and the version.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from ottla.testing.cluster import LocalCluster
from ottla.testing.zookeeper import free_ports

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "cluster.md"
HEADING: Final = "### When a broker dies"
FIRST_PORT: Final = 9091  # of four
PATIENCE: Final = 60.0


class Step(NamedTuple):
    """A command after a `$`, and the lines that are printed below it."""

    command: str
    output: list[str]


def session() -> list[Step]:
    section = PAGE.read_text().partition(HEADING)[2]
    block = section.partition("```\n")[2].partition("```\n")[0]
    steps: list[Step] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            steps.append(Step(line.removeprefix("$ "), []))
        else:
            steps[-1].output.append(line)
    return steps


def first_of_four_ports() -> int:
    while True:
        first = free_ports(1)[0]
        try:
            for port in range(first, first + 4):
                with _bound(port):
                    pass
        except OSError:
            continue
        return first


def _bound(port: int) -> socket.socket:
    probe = socket.socket()
    try:
        probe.bind(("127.0.0.1", port))
    except OSError:
        probe.close()
        raise
    return probe


def without_chance(line: str) -> str:
    """A line with a sign in place of what differs from run to run."""
    line = re.sub(r"process \d+", "process #", line)
    line = re.sub(r"\bid \S+", "id #", line)
    line = re.sub(r"controller: broker \d", "controller: broker #", line)
    if re.match(r"\s+\d+\s+\d\s+\d,\d,\d", line):
        # Of a partition: the leader, the replicas and those in sync, of which the number counts.
        partition, _leader, replicas, in_sync, *offsets = line.split()
        line = " ".join([partition, "#", re.sub(r"\d", "#", replicas)])
        line += " " + " ".join([re.sub(r"\d", "#", in_sync), *offsets])
    if "running" in line or "standalone" in line:
        line = re.sub(r"\s\d+\s+(running|standalone)(\s+\S+)?", r" # \1", line)
    return " ".join(line.split())


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    cluster = LocalCluster(tmp_path / "cluster")
    if cluster.exists:
        cluster.stop()


@pytest.mark.long
def test_what_is_shown_of_a_broker_that_dies(folder: Path) -> None:
    first = first_of_four_ports()
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    # What is printed in the text and what it is in this run.
    processes: dict[str, str] = {}

    def here(text: str) -> str:
        """The text with this run's ports and processes."""
        text = re.sub(
            r"127\.0\.0\.1:(909\d)",
            lambda port: f"127.0.0.1:{int(port[1]) - FIRST_PORT + first}",
            text,
        )
        return re.sub(r"kill -9 (\d+)", lambda pid: f"kill -9 {processes[pid[1]]}", text)

    steps = session()
    assert [each.command for each in steps if "kill" in each.command or "status" in each.command]
    for command, output in steps:
        assignment = re.fullmatch(r"export (\w+)=(\S+)", command)
        if assignment is not None:
            environment[assignment[1]] = here(assignment[2])
            continue
        typed = here(command)
        if command == "ottla cluster start" and not processes:
            typed += f" --base-port {first + 1}"
        expected = [without_chance(here(line)) for line in output]
        deadline = time.monotonic() + PATIENCE
        while True:
            done = subprocess.run(
                typed,
                shell=True,
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
            assert (done.returncode, done.stderr) == (0, ""), (typed, done.stderr)
            printed = [without_chance(line) for line in done.stdout.splitlines()]
            # That a broker has died or is back is known a moment later.
            asks = typed.startswith(("ottla cluster status", "ottla topic describe"))
            if printed == expected or not asks or time.monotonic() > deadline:
                break
        assert printed == expected, done.stdout
        for shown, found in zip(output, done.stdout.splitlines(), strict=True):
            was, now = (re.search(r"process (\d+)", line) for line in (shown, found))
            if was is not None and now is not None:
                processes[was[1]] = now[1]
    assert not LocalCluster(folder / "cluster").state.brokers[1].running
