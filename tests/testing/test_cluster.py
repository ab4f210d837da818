"""LocalCluster: its processes, its folder, and what it refuses."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ottla.client.admin.client import Admin
from ottla.server.configuration.sources import read_file
from ottla.testing import BrokerProcess, answers
from ottla.testing.cluster import ClusterError, LocalCluster
from ottla.testing.cluster.state import ClusterState, ServerState
from ottla.testing.process_identity import runs
from ottla.testing.zookeeper import ZooKeeperMissing, ZooKeeperProcess, server_mode

HOST = "127.0.0.1"


def make(folder: Path, brokers: int = 1, **options: str | None) -> LocalCluster:
    return LocalCluster(folder, brokers=brokers, base_port=None, **options)  # type: ignore[arg-type]


# One worker starts the cluster that tests share.
pytestmark = pytest.mark.xdist_group("local-cluster")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with make(tmp_path_factory.mktemp("shared") / "cluster", 2) as running:
        yield running


@pytest.fixture
def cluster(shared: LocalCluster) -> LocalCluster:
    """A cluster of two brokers that run, whatever the test before has stopped; there may be topics."""
    shared.start()
    return shared


def test_what_does_not_run_is_started_on_the_port_it_had(cluster: LocalCluster) -> None:
    state = cluster.state
    assert state.zookeeper is not None
    assert sorted(state.brokers) == [1, 2]
    assert cluster.bootstrap == ",".join(f"{HOST}:{each.port}" for each in state.brokers.values())
    assert all(answers(HOST, broker.port) for broker in state.brokers.values())
    assert server_mode(HOST, state.zookeeper.port) == "standalone"
    for number, broker in state.brokers.items():
        command = Path(f"/proc/{broker.process and broker.process.pid}/cmdline")
        if command.exists():
            words = command.read_text().split("\0")
            assert f"node.id={number}" in words
            assert f"zookeeper.connect={HOST}:{state.zookeeper.port}/ottla" in words

    # A later command knows of the processes from the folder alone.
    later = LocalCluster(cluster.folder)
    assert later.start() == []
    later.kill(2)
    later.kill("zookeeper")
    assert not answers(HOST, state.brokers[2].port)
    assert server_mode(HOST, state.zookeeper.port) is None
    with pytest.raises(ClusterError, match="broker 2 does not run"):
        later.kill(2)
    assert later.start() == ["zookeeper", "2"]
    again = cluster.state
    assert again.zookeeper is not None
    assert [each.port for each in again.brokers.values()] == [
        each.port for each in state.brokers.values()
    ]
    assert again.zookeeper.port == state.zookeeper.port
    assert again.brokers[1].process == state.brokers[1].process
    assert again.brokers[2].process != state.brokers[2].process

    assert sorted(cluster.stop()) == ["1", "2", "zookeeper"]
    assert cluster.stop() == []
    for broker in again.brokers.values():
        assert broker.process is not None
        assert not runs(broker.process)


@pytest.mark.long
def test_a_process_that_died_unseen_is_noticed(cluster: LocalCluster) -> None:
    process = cluster.state.brokers[1].process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    cluster._children[process.pid].wait()
    assert not cluster.state.brokers[1].running
    assert cluster.start() == ["1"]


def test_a_copy_of_the_folder_has_no_part_in_the_processes(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    shutil.copytree(cluster.folder, tmp_path / "copy")
    copy = LocalCluster(tmp_path / "copy", base_port=None)
    assert not any(server.running for server in copy.status().servers)
    with pytest.raises(ClusterError):
        copy.kill("1")
    assert copy.stop() == []
    with pytest.raises(ClusterError, match="another program listens on"):
        copy.start()
    assert cluster.status().healthy
    # A folder that was given another name is the same one.
    moved = cluster.folder.rename(tmp_path / "moved")
    try:
        assert LocalCluster(moved, base_port=None).state.brokers[1].running
    finally:
        moved.rename(cluster.folder)


def test_brokers_are_stopped_added_and_removed(cluster: LocalCluster) -> None:
    assert cluster.stop([2]) == ["2"]
    assert cluster.start([1]) == []
    assert not cluster.state.brokers[2].running
    assert cluster.start() == ["2"]

    cluster._brokers = None
    assert cluster.add() == 3
    third = cluster.state.brokers[3]
    assert answers(HOST, third.port)
    assert third.port not in {cluster.state.brokers[number].port for number in (1, 2)}
    folder = cluster.remove(3, force=True)
    assert folder == cluster.folder / "broker-3"
    assert folder.is_dir()
    assert not answers(HOST, third.port)
    assert sorted(cluster.state.brokers) == [1, 2]
    assert cluster.state.next_id == 4, "the data of broker 3 is never another broker's"
    with pytest.raises(ClusterError, match="has no broker 3, but 1, 2"):
        cluster.remove(3)


def test_a_broker_that_the_others_could_not_be_told_of_can_be_removed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> None:
        raise ClusterError("nobody answers")

    cluster = make(tmp_path / "cluster", 2, zookeeper=f"{HOST}:1/path")
    cluster.start([])
    with monkeypatch.context() as silent:
        silent.setattr(LocalCluster, "_unregister", unreachable)
        with pytest.raises(ClusterError, match="nobody answers"):
            cluster.remove(2, force=True)
    cluster.remove(2, force=True)
    assert sorted(cluster.state.brokers) == [1]


def test_a_broker_that_holds_replicas_is_not_removed(cluster: LocalCluster) -> None:
    cluster.stop([2])
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("held", 3, 1)
    with pytest.raises(
        ClusterError, match=r"broker 1 still holds 3 replicas \(held-0, …\).*--force"
    ):
        cluster.remove(1)
    assert cluster.state.brokers[1].running
    cluster.stop([1])
    with pytest.raises(ClusterError, match="no broker tells what broker 1 holds"):
        cluster.remove(1)


def test_status_asks_everyone(cluster: LocalCluster) -> None:
    cluster.stop([2])
    partitions_before = cluster.status().partitions
    assert partitions_before is not None
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("some", 2, 1)
    status = cluster.status()
    assert [(each.name, each.running, each.state) for each in status.servers] == [
        ("zookeeper", True, "standalone"),
        ("1", True, "running"),
        ("2", False, "stopped"),
    ]
    assert (status.controller, status.partitions) == (1, partitions_before + 2)
    assert status.offline == status.under_replicated == []
    assert status.problem is None
    assert not status.healthy, "a broker is missing"

    process = cluster.state.brokers[1].process
    assert process is not None
    cluster.stop([1])
    cluster.kill("zookeeper")
    status = cluster.status()
    assert [(each.running, each.pid, each.state) for each in status.servers] == [
        (False, None, "stopped")
    ] * 3
    assert status.partitions is None
    assert status.problem == "no broker runs"


@pytest.mark.long
def test_a_zookeeper_of_somebody_else_is_used_and_left_alone(tmp_path: Path) -> None:
    with ZooKeeperProcess(tmp_path / "elsewhere") as zookeeper:
        address = f"{zookeeper.address}/mine"
        with make(tmp_path / "cluster", zookeeper=address) as cluster:
            assert cluster.state.zookeeper is None
            assert cluster.state.zookeeper_address == address
            first = cluster.status().servers[0]
            assert (first.address, first.running, first.state) == (address, True, "standalone")
            with pytest.raises(ClusterError, match="not killed from here"):
                cluster.kill("zookeeper")
            with pytest.raises(ClusterError, match="cannot be moved to another"):
                make(tmp_path / "cluster", zookeeper="other:2181").start()
            assert cluster.stop() == ["1"]
        assert zookeeper.running


def test_what_the_folder_holds_is_not_made_anew(cluster: LocalCluster) -> None:
    with pytest.raises(ClusterError, match="has 2 brokers, not 3"):
        make(cluster.folder, 3).start()
    with (cluster.folder / "cluster.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for change in (cluster.start, cluster.stop, cluster.add, lambda: cluster.kill(1)):
            with pytest.raises(ClusterError, match="another command is at work"):
                change()
        assert cluster.status().servers[1].pid is not None, "looking is always allowed"


def test_a_broker_with_a_large_number_has_a_port_all_the_same(tmp_path: Path) -> None:
    """The first broker of a cluster may be a node that was adopted, with any number."""
    cluster = make(tmp_path / "cluster")
    adopted = {70_000: ServerState(9092)}
    state = ClusterState(9092, "127.0.0.1:9091/ottla", ServerState(9091), 70_001, adopted)
    assert cluster._port_of_new(state, 2) == 9093
    assert cluster._port_of_new(state, 70_001) == 9093
    last = replace(state, base_port=65_535, brokers={1: ServerState(65_535)})
    with pytest.raises(ClusterError, match="no port from 65535 on"):
        cluster._port_of_new(last, 2)


def test_a_folder_without_a_cluster(tmp_path: Path) -> None:
    for call in ("stop", "status", "add"):
        with pytest.raises(ClusterError, match=r"there is no cluster in .*`ottla cluster start"):
            getattr(LocalCluster(tmp_path), call)()
    (tmp_path / "cluster.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(ClusterError, match=r"cluster.json cannot be read: format 99"):
        LocalCluster(tmp_path).status()
    (tmp_path / "cluster.json").write_text("{")
    with pytest.raises(ClusterError, match=r"cluster.json cannot be read"):
        LocalCluster(tmp_path).start()


@pytest.mark.parametrize("name", ["meta.properties", "metadata.db"])
def test_the_data_folder_of_a_broker_is_no_folder_for_a_cluster(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ClusterError, match="is the data folder of a broker: give the cluster"):
        make(tmp_path, zookeeper=f"{HOST}:1/path").start([])
    assert [each.name for each in tmp_path.iterdir()] == [name]


def neighbouring_ports() -> int:
    """The middle one of three ports that are free, and that no test beside this one is given: ports
    that the system chooses are above these."""
    for base in random.SystemRandom().sample(range(20_000, 32_000, 3), 100):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in (base - 1, base, base + 1):
                stack.enter_context(socket.socket()).bind((HOST, port))
            return base
    raise AssertionError("no three ports in a row are free")


@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_a_port_of_somebody_else_is_told_before_anything_starts(
    tmp_path: Path, offset: int
) -> None:
    base = neighbouring_ports()
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((HOST, base + offset))
        taken.listen()
        name = {-1: "ZooKeeper", 0: "broker 1", 1: "broker 2"}[offset]
        told = f"{base + offset}, the port for {name}: .*--base-port"
        with pytest.raises(ClusterError, match=told):
            LocalCluster(tmp_path, brokers=2, base_port=base).start()
    assert not LocalCluster(tmp_path).exists


def test_a_broker_that_does_not_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "broker-2").write_text("not a folder")
    cluster = make(tmp_path / "cluster", 2)
    try:
        with pytest.raises(ClusterError, match=r"^broker 2 did not start: .*broker-2\.log\)$"):
            cluster.start()
        assert cluster.state.brokers[1].running, "what could be started is"
    finally:
        cluster.stop()


def test_a_broker_that_takes_long_to_start_is_not_killed(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash, with a lot to recover: it would never come up."""
    cluster.stop([1])
    with monkeypatch.context() as slow:
        slow.setattr(BrokerProcess, "serves", lambda _: False)
        slow.setattr("ottla.testing.cluster.local._START_TIMEOUT", 0.1)
        with pytest.raises(ClusterError, match=r"^broker 1 has not answered within .* goes on"):
            cluster.start()
    assert cluster.state.brokers[1].running
    assert cluster.start() == []
    cluster.stop([1])


def test_a_folder_of_another_broker_is_refused(cluster: LocalCluster) -> None:
    cluster.stop([1, 2])
    first, second = cluster.data_path(1), cluster.data_path(2)
    spare = cluster.folder / "spare"
    first.rename(spare)
    second.rename(first)
    with pytest.raises(ClusterError, match="belongs to broker 2, and this is broker 1"):
        cluster.start([1])
    first.rename(second)
    spare.rename(first)
    assert cluster.start() == ["1", "2"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"zookeeper": "a:b"}, "not the address of a ZooKeeper"),
        ({"brokers": 0}, "one broker at least"),
        ({"base_port": 65535, "brokers": 3}, "cannot be the first of 3 ports"),
        ({"settings": {"num.partitions": "x"}}, r"^num\.partitions=x .* is not valid: must be"),
    ],
)
def test_a_cluster_that_cannot_be(tmp_path: Path, options: dict[str, object], words: str) -> None:
    cluster = LocalCluster(tmp_path, **options)  # type: ignore[arg-type]
    with pytest.raises(ClusterError, match=words):
        cluster.start()
    assert not cluster.exists


def test_without_a_zookeeper_to_start_one_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(**_: object) -> str:
        raise ZooKeeperMissing("there is none")

    monkeypatch.setattr("ottla.testing.zookeeper.server_class_path", missing)
    with pytest.raises(ClusterError, match="there is none"):
        make(tmp_path / "cluster").start()


class Launched(Exception):
    """Instead of a broker that is started."""


def refuse_to_spawn(monkeypatch: pytest.MonkeyPatch) -> None:
    def spawn(process: BrokerProcess) -> None:
        raise Launched

    monkeypatch.setattr(BrokerProcess, "spawn", spawn)


def test_settings_are_remembered_if_a_broker_can_start_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_to_spawn(monkeypatch)
    first = LocalCluster(
        tmp_path, base_port=None, zookeeper="127.0.0.1:1/path", settings={"num.partitions": "3"}
    )
    with pytest.raises(Launched):
        first.start()
    with pytest.raises(ClusterError, match=r"num\.partitions=none .* is not valid"):
        LocalCluster(tmp_path, settings={"num.partitions": "none"}).start()
    # Nothing is started; what was said counts for the next start all the same.
    LocalCluster(tmp_path, settings={"log.retention.hours": "7"}).start([])
    expected = {"num.partitions": "3", "log.retention.hours": "7"}
    assert LocalCluster(tmp_path).state.settings == expected


def test_the_address_of_a_zookeeper_that_no_broker_has_joined_can_be_corrected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_to_spawn(monkeypatch)
    with pytest.raises(Launched):
        LocalCluster(tmp_path, base_port=None, zookeeper="127.0.0.1:1/mistyped").start()
    with pytest.raises(Launched):
        LocalCluster(tmp_path, zookeeper="127.0.0.1:2/path").start()
    assert LocalCluster(tmp_path).state.zookeeper_address == "127.0.0.1:2/path"
    folder = LocalCluster(tmp_path).data_path(1)
    folder.mkdir()
    (folder / "meta.properties").write_text("cluster.id=abc\n")
    with pytest.raises(ClusterError, match="it cannot be moved to another"):
        LocalCluster(tmp_path, zookeeper="127.0.0.1:3/path").start()


def test_passwords_are_in_no_list_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = 'a.PlainLoginModule required username="broker" password="\\\\ not ü to be seen";'
    name = "listener.name.plaintext.plain.sasl.jaas.config"
    settings = {"num.partitions": "3", name: secret}
    cluster = LocalCluster(
        tmp_path, brokers=1, base_port=None, zookeeper="127.0.0.1:1/path", settings=settings
    )
    commands: list[list[str]] = []

    def spawn(process: BrokerProcess) -> None:
        commands.append(process.command())
        raise Launched

    monkeypatch.setattr(BrokerProcess, "spawn", spawn)
    with pytest.raises(Launched):
        cluster.start()
    ((*_, option, file),) = commands
    assert option == "--config"
    assert not [word for word in commands[0] if "not ü to be seen" in word]
    assert "num.partitions=3" in commands[0]
    assert [(each.name, each.text) for each in read_file(file)] == [(name, secret)]
    for path in (Path(file), tmp_path / "cluster.json"):
        assert path.stat().st_mode & 0o777 == 0o600


def test_what_zookeeper_keeps_is_its_owners_alone(tmp_path: Path) -> None:
    """Salted passwords are among it."""
    before = os.umask(0o022)
    try:
        server = ZooKeeperProcess(tmp_path / "zookeeper")
        server.folder.mkdir()
        (server.folder / "data").mkdir()  # as an older version made it
        server._write_files()
    finally:
        os.umask(before)
    assert (server.folder / "data").stat().st_mode & 0o777 == 0o700
