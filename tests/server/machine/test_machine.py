"""Several brokers on one machine (`ottla serve --brokers N`), as real processes."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from machine_kit.machine import Machine, is_gone

from ottla import Admin, Consumer, Producer
from ottla.testing import BrokerDied, BrokerProcess
from ottla.testing.zookeeper import ZooKeeperProcess

PATIENCE = 60.0


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Two brokers that no test harms."""
    with Machine(tmp_path_factory.mktemp("machine") / "data") as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid4().hex[:8]}"


def leaders(bootstrap: str, topic: str) -> list[int | None]:
    with Admin(bootstrap) as admin:
        return [each.leader for each in admin.describe_topics([topic])[topic].partitions]


def values(bootstrap: str, topic: str) -> list[str]:
    """All records that a reader of committed ones finds, in no order."""
    with Consumer(bootstrap) as consumer:
        found = consumer.read(topic, columns=["value"]).column("value").to_pylist()
    return sorted(bytes(value).decode() for value in found)


def produce(bootstrap: str, topic: str, texts: list[str], **options: object) -> None:
    """In turn to all partitions; each of them acknowledged."""
    with Admin(bootstrap) as admin:
        count = len(admin.describe_topics([topic])[topic].partitions)
    with Producer(bootstrap, **options) as producer:  # type: ignore[arg-type]
        for number, text in enumerate(texts):
            producer.send(topic, text, partition=number % count)
        producer.flush(PATIENCE)


def numbered(first: int, last: int) -> list[str]:
    return [f"{number:06}" for number in range(first, last)]


def files_below(folder: Path) -> dict[str, tuple[int, int]]:
    """Sizes and times of all files."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in folder.rglob("*")
    }


# What clients see


def test_all_brokers_are_one_cluster_on_one_rack(machine: Machine) -> None:
    seen = []
    for broker in (1, 2):
        with Admin(machine.address_of(broker)) as admin:
            seen.append(admin.describe_cluster())
    assert seen[0] == seen[1]
    brokers = seen[0].brokers
    assert [(each.id, each.port) for each in brokers] == [
        (1, machine.ports[0]),
        (2, machine.ports[1]),
    ]
    assert {each.rack for each in brokers} == {socket.gethostname()}


def test_partitions_are_spread_and_automatic_topics_have_one_replica(
    machine: Machine, topic: str
) -> None:
    client = confluent_kafka.Producer({"bootstrap.servers": machine.address_of(2)})
    client.produce(topic, b"automatic")
    assert client.flush(PATIENCE) == 0
    with Admin(machine.bootstrap) as admin:
        admin.create_topic(f"{topic}-4", 4)
        described = admin.describe_topics([topic, f"{topic}-4"])
    assert {each.replication_factor for each in described.values()} == {1}
    assert {each.leader for each in described[f"{topic}-4"].partitions} == {1, 2}


@pytest.mark.long
def test_a_topic_may_still_ask_for_two_replicas(machine: Machine, topic: str) -> None:
    with Admin(machine.bootstrap) as admin:
        admin.create_topic(topic, 2, 2)
        (first, second) = admin.describe_topics([topic])[topic].partitions
    assert {*first.replicas} == {*second.replicas} == {1, 2}
    produce(machine.bootstrap, topic, numbered(0, 10), acks="all")
    assert values(machine.address_of(2), topic) == numbered(0, 10)


def has_positions(member: confluent_kafka.Consumer) -> bool:
    """Whether a member has read from each of its partitions since they were assigned to it: before that
    it has nothing to commit."""
    positions = member.position(member.assignment())
    return bool(positions) and all(each.offset >= 0 for each in positions)


def test_what_one_client_writes_the_other_reads(machine: Machine, topic: str) -> None:
    """Written by way of one broker, read by way of the other, by groups whose members use both."""
    with Admin(machine.bootstrap) as admin:
        admin.create_topic(topic, 4)
    produce(machine.address_of(1), topic, numbered(0, 100))
    theirs = confluent_kafka.Producer({"bootstrap.servers": machine.address_of(2)})
    for number, text in enumerate(numbered(100, 200)):
        theirs.produce(topic, text.encode(), partition=number % 4)
    assert theirs.flush(PATIENCE) == 0
    assert values(machine.address_of(2), topic) == numbered(0, 200)
    members = [
        confluent_kafka.Consumer(
            {
                "bootstrap.servers": machine.address_of(broker),
                "group.id": topic,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        for broker in (1, 2)
    ]
    seen: list[str] = []
    for member in members:
        member.subscribe([topic])
    while len(set(seen)) < 200 or not all(map(has_positions, members)):
        for member in members:
            for message in member.consume(100, 0.2):
                assert message.error() is None, message.error()
                seen.append(message.value().decode())
    for member in members:
        member.commit(asynchronous=False)
        member.close()
    assert sorted(set(seen)) == numbered(0, 200)
    with Consumer(machine.bootstrap, group=topic) as consumer:
        consumer.subscribe(topic)
        produce(machine.address_of(2), topic, ["last"])
        batch = None
        while batch is None:
            batch = consumer.next_batch(timeout=PATIENCE)
        assert [bytes(each) for each in batch.column("value").to_pylist()] == [b"last"]


def test_a_transaction_has_partitions_of_both_brokers(machine: Machine, topic: str) -> None:
    with Admin(machine.bootstrap) as admin:
        admin.create_topic(topic, 2)
    assert {*leaders(machine.bootstrap, topic)} == {1, 2}
    refused: list[confluent_kafka.KafkaError] = []

    def delivered(error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
        if error is not None:
            refused.append(error)

    # Enough ids that both brokers coordinate some.
    for number in range(6):
        theirs = confluent_kafka.Producer(
            {
                "bootstrap.servers": machine.address_of(1 + number % 2),
                "transactional.id": f"{topic}-{number}",
            }
        )
        theirs.init_transactions(PATIENCE)
        for text, ends in ((f"no {number}", False), (f"yes {number}", True)):
            theirs.begin_transaction()
            for partition in (0, 1):
                theirs.produce(topic, text.encode(), partition=partition, on_delivery=delivered)
            if ends:
                theirs.commit_transaction(PATIENCE)
            else:
                assert theirs.flush(PATIENCE) == 0
                # Else the next transaction would have a gap, and that would be told only then.
                assert not refused, refused
                theirs.abort_transaction(PATIENCE)
    with Producer(machine.bootstrap, transactional_id=topic) as ours:
        ours.init_transactions()
        with ours.transaction():
            for partition in (0, 1):
                ours.send(topic, "ours", partition=partition)
    expected = sorted([*[f"yes {number}" for number in range(6)], "ours"] * 2)
    assert values(machine.bootstrap, topic) == expected
    with Admin(machine.bootstrap) as admin:
        (internal,) = admin.describe_topics(["__transaction_state"]).values()
    assert internal.replication_factor == 1
    assert {each.leader for each in internal.partitions} == {1, 2}


def test_the_socket_of_the_store_is_its_users_alone(machine: Machine) -> None:
    sockets = [path for path in machine.data.rglob("*") if path.is_socket()]
    if not sockets:
        pytest.skip("the path of the data folder is too long for a socket")
    (path,) = sockets
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


# Ends


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_all_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    machine = Machine(tmp_path / "data").start()
    processes = machine.processes()
    assert sorted(processes) == [1, 2]
    machine.signal(number)
    assert machine.process is not None
    assert machine.process.wait(PATIENCE) == 0
    assert all(map(is_gone, processes.values()))
    for folder in (machine.data, machine.data / "brokers" / "2"):
        assert (folder / ".kafka_cleanshutdown").exists(), machine.log_text()
    assert not [path for path in machine.data.rglob("*") if path.is_socket()]
    assert "Traceback" not in machine.log_text()


@pytest.mark.long
def test_a_killed_broker_is_started_again_and_nothing_is_lost(tmp_path: Path) -> None:
    with Machine(tmp_path / "data") as machine:
        with Admin(machine.bootstrap) as admin:
            admin.create_topic("alone", 4)
            admin.create_topic("both", 2, 2)
        produce(machine.bootstrap, "alone", numbered(0, 200))
        produce(machine.bootstrap, "both", numbered(0, 200), acks="all")
        for broker in (2, 1):
            killed = machine.processes()[broker]
            os.kill(killed, signal.SIGKILL)
            # A client need not know: what had two replicas goes on, what had one comes back.
            first = 200 * (4 - broker)
            produce(
                machine.address_of(3 - broker), "both", numbered(first, first + 200), acks="all"
            )
            produce(machine.address_of(3 - broker), "alone", numbered(first, first + 200))
            machine.wait_for(lambda killed=killed: len(machine.processes()) == 2)
            assert killed not in machine.processes().values()
        for topic in ("alone", "both"):
            expected = [*numbered(0, 200), *numbered(400, 800)]
            assert values(machine.bootstrap, topic) == expected
        said = machine.log_text()
        assert "broker 2 has ended (killed by SIGKILL) and is started again" in said
        assert "broker 1 has ended (killed by SIGKILL) and is started again" in said
        assert machine.stop() == 0


def test_nobody_outlives_the_supervisor_and_nothing_is_lost(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "data").start()
    with Admin(machine.bootstrap) as admin:
        admin.create_topic("kept", 4)
    produce(machine.bootstrap, "kept", numbered(0, 200))
    processes = machine.processes()
    # One that does nothing any more would not notice by itself.
    os.kill(processes[2], signal.SIGSTOP)
    machine.kill()
    for process in processes.values():
        _await_end(process)
    with machine:
        assert values(machine.address_of(2), "kept") == numbered(0, 200)
        produce(machine.bootstrap, "kept", numbered(200, 300))
        assert values(machine.bootstrap, "kept") == numbered(0, 300)


def _await_end(process: int) -> None:
    """The kernel has been told to kill it: it ends, however busy the machine."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return
    import select

    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    ended = poll.poll(PATIENCE * 1000)
    os.close(descriptor)
    assert ended, f"process {process} is still there"


@pytest.mark.long
def test_a_stopped_broker_loses_its_session_and_comes_back(tmp_path: Path) -> None:
    with Machine(tmp_path / "data") as machine:
        with Admin(machine.bootstrap) as admin:
            admin.create_topic("both", 2, 2)
        stopped = machine.processes()[2]
        os.kill(stopped, signal.SIGSTOP)
        try:
            # Led by the first now, who acknowledges alone.
            produce(machine.bootstrap, "both", numbered(0, 100), acks="all")
        finally:
            os.kill(stopped, signal.SIGCONT)
        machine.wait_for(lambda: _in_sync(machine.bootstrap, "both") == {(1, 2)})
        assert values(machine.address_of(2), "both") == numbered(0, 100)
        assert machine.processes()[2] == stopped


def _in_sync(bootstrap: str, topic: str) -> set[tuple[int, ...]]:
    with Admin(bootstrap) as admin:
        partitions = admin.describe_topics([topic])[topic].partitions
    return {tuple(sorted(each.in_sync)) for each in partitions}


@pytest.mark.long
@pytest.mark.xdist_group("zookeeper")
def test_brokers_of_one_machine_in_a_cluster_with_a_zookeeper(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="PySpark, whose jars hold a ZooKeeper, is not installed")
    with ZooKeeperProcess(tmp_path / "zookeeper") as zookeeper:
        settings = {"zookeeper.connect": f"{zookeeper.address}/machine"}
        with Machine(tmp_path / "data", settings=settings) as machine:
            with Admin(machine.bootstrap) as admin:
                admin.create_topic("automatic", 4)
                described = admin.describe_topics(["automatic"])["automatic"]
            assert described.replication_factor == 1
            assert {each.leader for each in described.partitions} == {1, 2}
            assert not (machine.data / "metadata.db").exists()
            produce(machine.bootstrap, "automatic", numbered(0, 100))
            os.kill(machine.processes()[2], signal.SIGKILL)
            produce(machine.bootstrap, "automatic", numbered(100, 200))
            assert values(machine.address_of(2), "automatic") == numbered(0, 200)
            assert machine.stop() == 0


# Folders


@pytest.mark.long
def test_a_single_brokers_folder_can_be_served_by_several(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data) as single:
        with Admin(single.bootstrap) as admin:
            admin.create_topic("kept", 2)
        produce(single.bootstrap, "kept", numbered(0, 100))
    with Machine(data) as machine:
        assert values(machine.address_of(2), "kept") == numbered(0, 100)
        assert leaders(machine.bootstrap, "kept") == [1, 1]
        with Admin(machine.bootstrap) as admin:
            admin.create_topic("spread", 2)
        assert {*leaders(machine.bootstrap, "spread")} == {1, 2}
        produce(machine.bootstrap, "spread", numbered(0, 100))
    before = files_below(data)
    fewer = BrokerProcess(data)
    with pytest.raises(BrokerDied) as caught:
        fewer.start()
    assert f"{data} has data of broker 2 too, in {data}/brokers" in str(caught.value)
    assert "start it with --brokers 2" in str(caught.value)
    assert files_below(data) == before, "nothing was touched"
    with Machine(data, 3) as machine:
        assert values(machine.address_of(3), "spread") == numbered(0, 100)
    before = files_below(data)
    with pytest.raises(BrokerDied, match="start it with --brokers 3"):
        Machine(data, 2).start()
    assert files_below(data) == before, "nothing was touched"


def test_one_broker_is_a_plain_one(tmp_path: Path) -> None:
    plain = BrokerProcess(tmp_path / "data", arguments=["--brokers", "1"])
    with plain:
        assert not (plain.data / "brokers").exists()
        described = AdminClient({"bootstrap.servers": plain.bootstrap}).list_topics(
            timeout=PATIENCE
        )
        assert list(described.brokers) == [1]


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--brokers", "0"], "--brokers 0 is not a number from 1 to 1000"),
        (["--brokers", "two"], "--brokers two is not a number from 1 to 1000"),
        (["--brokers", "1001"], "--brokers 1001 is not a number"),
        (["--brokers", "3", "--listen", "127.0.0.1:65534"], "there is no port 65536"),
        (
            ["--brokers", "2", "--listen", "PLAINTEXT://:9092,INSIDE://:9093", "--set",
             "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT"],
            "port 9093 would be that of INSIDE of broker 1 and of PLAINTEXT of broker 2",
        ),
        (
            ["--brokers", "2", "--listen", ":9092", "--set", "metrics.listener=:9093"],
            "port 9093 would be that of",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_in_a_sentence(
    tmp_path: Path, command: list[str], arguments: list[str], sentence: str
) -> None:
    ended = subprocess.run(
        [*command, "serve", "--data", str(tmp_path / "data"), *arguments],
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert ended.returncode == 2, ended
    assert sentence in ended.stderr, ended.stderr
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert not (tmp_path / "data").exists()


@pytest.fixture(scope="session")
def command() -> list[str]:
    import sys

    return [sys.executable, "-m", "ottla.cli.main"]


@pytest.mark.parametrize("which", [".", "brokers/2"])
def test_folders_whose_store_is_missing_are_not_touched(
    tmp_path: Path, command: list[str], which: str
) -> None:
    """It was lost, or the folder is that of one of several brokers, or of a cluster's."""
    folder = tmp_path / "data" / which
    folder.mkdir(parents=True)
    (folder / "meta.properties").write_text("version=1\ncluster.id=elsewhere\nnode.id=2\n")
    before = files_below(tmp_path)
    ended = subprocess.run(
        [*command, "serve", "--brokers", "2", "--listen", "127.0.0.1:0",
         "--data", str(tmp_path / "data")],
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert ended.returncode == 1, ended
    (sentence,) = ended.stderr.splitlines()
    assert "belongs to cluster elsewhere, and " in sentence
    assert "metadata.db, which knows it, is not there" in sentence
    assert files_below(tmp_path) == before, "nothing was touched"


@pytest.mark.long
def test_a_port_that_is_taken_ends_the_whole_start(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "data")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", machine.ports[1]))
        taken.listen()
        machine.spawn()
        assert machine.process is not None
        assert machine.process.wait(PATIENCE) == 1
    said = machine.log_text()
    assert f"cannot listen on PLAINTEXT://127.0.0.1:{machine.ports[1]}: Address already" in said
    assert "broker 2 could not start (exit status 1); all stop" in said
    assert "Traceback" not in said


@pytest.mark.long
def test_a_folder_is_served_by_one_machine_at_a_time(tmp_path: Path) -> None:
    with Machine(tmp_path / "data") as machine:
        second = Machine(machine.data, log_path=tmp_path / "second.log")
        with pytest.raises(BrokerDied, match="another process has it open"):
            second.start()
        assert sorted(machine.processes()) == [1, 2]
