"""`ottla cluster` as a user types it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla import Admin
from ottla.client.admin.topics import NewTopic
from ottla.testing import answers
from ottla.testing.cluster import LocalCluster
from ottla.testing.process_identity import send
from ottla.testing.zookeeper import free_ports

PATIENCE = 60.0


def ottla(*words: object) -> subprocess.CompletedProcess[str]:
    """A process of its own each time, so that nothing is known but what the folder says."""
    return subprocess.run(
        [sys.executable, "-m", "ottla.cli.main", "cluster", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "cluster"
    yield folder
    if LocalCluster(folder).exists:
        LocalCluster(folder).stop()


def port_before_two_others() -> int:
    """The first of three ports that are free now, and follow one another."""
    while True:
        port = free_ports(1)[0]
        try:
            for neighbour in (port - 1, port, port + 1):
                _claim(neighbour)
        except OSError:
            continue
        return port


def _claim(port: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))


def test_a_cluster_from_its_start_to_its_end(data: Path) -> None:
    port = port_before_two_others()
    begun = ottla("start", "--brokers", 2, "--base-port", port, "--data", data)
    assert begun.returncode == 0, begun.stderr
    lines = begun.stdout.splitlines()
    assert [line.partition(" (")[0] for line in lines] == [
        f"started ZooKeeper on 127.0.0.1:{port - 1}",
        f"started broker 1 on 127.0.0.1:{port}",
        f"started broker 2 on 127.0.0.1:{port + 1}",
        f"the cluster is at 127.0.0.1:{port},127.0.0.1:{port + 1}",
    ]
    assert answers("127.0.0.1", port), "it outlives the command"

    with Admin(f"127.0.0.1:{port}") as admin:
        admin.create_topics(
            [NewTopic("both", assignments={0: [2, 1]}), NewTopic("alone", assignments={0: [2]})]
        )
    assert ottla("kill", 2, "--data", data).stdout == "killed broker 2\n"
    # The other one notices in a moment.
    deadline = time.monotonic() + PATIENCE
    while "offline: alone-0" not in (shown := ottla("status", "--data", data)).stdout:
        assert time.monotonic() < deadline, shown.stdout
    assert shown.returncode == 0
    assert [line.split()[0:2] for line in shown.stdout.splitlines()[1:4]] == [
        ["ZooKeeper", f"127.0.0.1:{port - 1}"],
        ["broker", "1"],
        ["broker", "2"],
    ]
    assert shown.stdout.splitlines()[3].endswith("stopped")
    assert shown.stdout.splitlines()[-4:] == [
        "2 partitions, 1 offline, 2 under-replicated",
        "  offline: alone-0",
        "  under-replicated: alone-0",
        "  under-replicated: both-0",
    ]
    document = json.loads(ottla("status", "--json", "--data", data).stdout)
    assert [each["running"] for each in document["servers"]] == [True, True, False]
    assert document["healthy"] is False
    assert (document["offline"], document["under_replicated"]) == (
        ["alone-0"],
        ["alone-0", "both-0"],
    )

    assert "started broker 2" in ottla("start", "--data", data).stdout
    assert ottla("start", "--data", data).stdout.startswith("all of it runs already\n")
    remembered = ottla("start", "--set", "num.partitions=3", "--data", data).stdout
    assert "\nremembered; broker 1, broker 2 ran already and take the settings" in remembered
    changed = ottla("start", "--base-port", port + 7, "--data", data)
    assert (changed.returncode, changed.stdout) == (2, "")
    assert f"from {port} on" in changed.stderr
    more = ottla("start", "--brokers", 5, "--data", data)
    assert more.returncode == 1
    assert more.stderr.count("\n") == 1
    assert "`ottla cluster add`" in more.stderr

    stopped = ottla("stop", "--data", data)
    assert stopped.stdout.splitlines() == [
        "stopped broker 1",
        "stopped broker 2",
        "stopped ZooKeeper",
    ]
    assert not answers("127.0.0.1", port)
    assert ottla("stop", "--data", data).stdout == "nothing of it was running\n"


def test_status_tells_that_zookeeper_is_away(data: Path) -> None:
    """The brokers go on without it, and tell of partitions as ever."""
    with LocalCluster(data, brokers=1, base_port=None) as cluster:
        assert ottla("status", "--data", data).returncode == 0
        own = cluster.state.zookeeper
        assert own is not None
        assert own.process is not None
        address = f"127.0.0.1:{own.port}"
        assert send(own.process, signal.SIGSTOP)
        try:
            paused = ottla("status", "--data", data)
            document = ottla("status", "--json", "--data", data)
        finally:
            send(own.process, signal.SIGCONT)
        assert (paused.returncode, document.returncode) == (1, 1)
        assert "0 partitions, 0 offline" in paused.stdout, "a broker answers"
        assert paused.stderr.startswith(f"ottla: the ZooKeeper on {address} does not answer")
        assert paused.stderr.count("\n") == 1
        assert json.loads(document.stdout)["healthy"] is False
        assert "does not answer" in json.loads(document.stdout)["zookeeper_problem"]
        again = ottla("status", "--data", data)
        assert (again.returncode, again.stderr) == (0, "")

        cluster.kill("zookeeper")
        dead = ottla("status", "--data", data)
        assert dead.returncode == 1
        assert dead.stderr.startswith(f"ottla: the ZooKeeper on {address} does not run: ")
        cluster.start()
        assert ottla("status", "--data", data).returncode == 0
    stopped = ottla("status", "--data", data)
    assert (stopped.returncode, stopped.stderr) == (0, ""), "it was meant to be"


def test_a_folder_without_a_cluster(data: Path) -> None:
    for words in (("status",), ("stop",), ("kill", "1"), ("remove", "1"), ("add",)):
        told = ottla(*words, "--data", data)
        assert told.returncode == 1
        assert told.stderr.startswith("ottla: there is no cluster in "), told.stderr
        assert told.stderr.count("\n") == 1


@pytest.mark.parametrize("folder", ["", "/dev/null"])
def test_a_folder_that_is_none(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = ottla("start", "--zookeeper", "127.0.0.1:1/x", "--data", folder)
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr.startswith("ottla: --data takes a folder, and "), told.stderr
    assert list(tmp_path.iterdir()) == [], "the working directory is not meant"


def test_a_zookeeper_that_is_none(data: Path) -> None:
    told = ottla("start", "--zookeeper", "here:there", "--data", data)
    assert (told.returncode, told.stdout) == (1, "")
    assert "'here:there' is not the address of a ZooKeeper" in told.stderr
