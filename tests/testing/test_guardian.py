"""Processes of a program that is killed end with it, unless they are meant to outlive it."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.testing.guardian import guard
from ottla.testing.process_identity import ProcessIdentity, identify, runs, send, wait_for_end

PATIENCE = 30.0

# Each starts what it is to leave running, prints the ids, and waits to be killed.
A_BROKER = """
from ottla.testing import BrokerProcess
broker = BrokerProcess(Path(sys.argv[1]) / "data")
broker.spawn()
started = [broker.pid]
"""
A_CLUSTER = """
from ottla.testing.guardian import end_with_this_program
from ottla.testing.cluster import LocalCluster
with_block, cluster = sys.argv[2], LocalCluster(Path(sys.argv[1]), brokers=1, base_port=None)
cluster.__enter__() if with_block == "with" else cluster.start()
state = cluster.state
started = [state.zookeeper.process.pid, state.brokers[1].process.pid]
# The last to be ended: whatever else is ended with the program is ended before.
last = subprocess.Popen(["sleep", "600"])
end_with_this_program(last.pid)
started.append(last.pid)
"""
FROM_A_THREAD = """
import threading
from ottla.testing.guardian import end_with_this_program
process = subprocess.Popen(["sleep", "600"])
thread = threading.Thread(target=end_with_this_program, args=(process.pid,))
thread.start(), thread.join()
started = [process.pid]
"""


def left_by_a_killed_program(body: str, *arguments: object) -> list[ProcessIdentity]:
    """What a program had started when it was killed."""
    program = "import subprocess, sys\nfrom pathlib import Path\n" + body
    program += "print(*started, flush=True)\nsys.stdin.read()\n"
    with subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        found = [identify(int(pid)) for pid in process.stdout.readline().split()]
        assert process.poll() is None
        process.kill()
    assert found
    assert None not in found
    return [each for each in found if each is not None]


def test_a_broker_ends_with_the_program_that_started_it(tmp_path: Path) -> None:
    (broker,) = left_by_a_killed_program(A_BROKER, tmp_path)
    assert wait_for_end(broker, PATIENCE)


def test_it_does_not_matter_in_which_thread_a_process_was_started() -> None:
    (process,) = left_by_a_killed_program(FROM_A_THREAD)
    assert wait_for_end(process, PATIENCE)


@pytest.mark.long
def test_a_cluster_of_a_with_block_ends_with_the_program(tmp_path: Path) -> None:
    for process in left_by_a_killed_program(A_CLUSTER, tmp_path, "with"):
        assert wait_for_end(process, PATIENCE)


def test_a_cluster_without_a_block_outlives_the_program(tmp_path: Path) -> None:
    *cluster, last = left_by_a_killed_program(A_CLUSTER, tmp_path, "without")
    try:
        assert wait_for_end(last, PATIENCE)
        assert all(runs(process) for process in cluster)
    finally:
        for process in cluster:
            send(process, signal.SIGKILL)


def test_only_the_very_process_is_ended() -> None:
    """An id may have been given to another process since."""
    with subprocess.Popen(["sleep", "600"]) as other:
        own = identify(other.pid)
        assert own is not None
        guard(io.StringIO(f"{own.pid} an earlier one\n"))
        assert not wait_for_end(own, 0)
        guard(io.StringIO(f"{own.pid} {own.started}\n"))
        assert wait_for_end(own, PATIENCE)
