"""Mistakes with a cluster: each gets a sentence or the protocol's error, and no data is touched."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic, TopicMetadata
from kazoo.client import KazooClient
from server_kit.wire import Wire

from ottla import Consumer, Producer
from ottla.cluster.metadata import Endpoint
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.server.network.advertised import warn_of_unreachable
from ottla.testing import BrokerDied, BrokerProcess, free_port
from ottla.testing.zookeeper import ZooKeeperProcess

pytestmark = pytest.mark.xdist_group("zookeeper")

_paths = itertools.count(1)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    if find_spec("pyspark") is None:
        pytest.skip("PySpark, whose jars hold a ZooKeeper, is not installed")
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def address(zookeeper: ZooKeeperProcess) -> str:
    """Of a path that no other test uses."""
    return f"{zookeeper.address}/mistakes/{next(_paths)}"


def member(data: Path, address: str, **settings: str) -> BrokerProcess:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    named.setdefault("offsets.topic.replication.factor", "1")
    named.setdefault("zookeeper.connection.timeout.ms", "4000")
    return BrokerProcess(data, settings={"zookeeper.connect": address, **named})


def refusal(process: BrokerProcess) -> str:
    """The sentence with which a broker does not start."""
    with pytest.raises(BrokerDied):
        process.start()
    (said,) = [line for line in process.log_text().splitlines() if line.startswith("ottla: ")]
    assert "Traceback" not in process.log_text()
    return said


def files_below(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(folder)): (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.name != ".lock"
    }


def write_one(bootstrap: str) -> None:
    with Producer(bootstrap) as producer:
        producer.send("kept", b"value")
        producer.flush(60)


def test_two_brokers_with_one_id(address: str, tmp_path: Path) -> None:
    with member(tmp_path / "first", address) as first:
        write_one(first.bootstrap)
        said = refusal(member(tmp_path / "second", address))
        assert f"a broker with id 1 is running at 127.0.0.1:{first.port}" in said
        assert "with another data folder; give this one an id of its own (node.id)" in said
        # The first one has not noticed.
        with Consumer(first.bootstrap) as consumer:
            assert consumer.read("kept", columns=["value"]).num_rows == 1
        assert "fenced" not in first.log_text()


def test_an_empty_disk_right_after_a_kill(address: str, tmp_path: Path) -> None:
    """The registration of the process that was killed stays as long as its session. Nobody else is there
    to notice the kill."""
    short = {"zookeeper.session.timeout.ms": "2000"}
    with member(tmp_path / "data", address, **short) as own:
        write_one(own.bootstrap)
        own.kill()
    shutil.rmtree(own.data)
    with member(own.data, address, **short) as again:
        assert "Traceback" not in again.log_text()


@pytest.mark.parametrize("there", ["nothing", "another cluster"])
def test_a_folder_of_another_cluster(
    zookeeper: ZooKeeperProcess, address: str, tmp_path: Path, there: str
) -> None:
    """A wrong cluster id in a data folder is a path of another cluster, seen from the other side."""
    with member(tmp_path / "data", f"{address}/own") as own:
        write_one(own.bootstrap)
    if there == "another cluster":
        with member(tmp_path / "other", f"{address}/other"):
            pass
    before = files_below(own.data)
    said = refusal(member(own.data, f"{address}/other"))
    assert f"data folder {own.data} belongs to cluster " in said
    end = "and ZooKeeper has none: " if there == "nothing" else "and ZooKeeper's is "
    assert end in said
    assert said.endswith("use another folder, or another path in ZooKeeper")
    assert files_below(own.data) == before, "nothing was touched"
    if there == "nothing":
        client = KazooClient(hosts=zookeeper.address)
        client.start()
        path = "/" + address.partition("/")[2] + "/other"
        assert client.get_children(path) == [], "no cluster was founded"
        client.stop()
        client.close()
    with member(own.data, f"{address}/own") as again, Consumer(again.bootstrap) as consumer:
        assert consumer.read("kept", columns=["value"]).num_rows == 1


def test_a_log_that_was_taken_out_of_the_folder_of_the_only_broker_with_it(
    address: str, tmp_path: Path
) -> None:
    """An empty log in its place would be the truth for its followers."""
    with member(tmp_path / "data", address) as own:
        write_one(own.bootstrap)
    taken = tmp_path / "kept-0"
    (own.data / "kept-0").rename(taken)
    for _ in range(2):
        with member(own.data, address) as again:
            assert "logs with records are gone from the data folders: count=1 kept-0" in (
                again.log_text()
            )
            client = confluent_kafka.Consumer(
                {"bootstrap.servers": again.bootstrap, "group.id": "nobody"}
            )
            with pytest.raises(confluent_kafka.KafkaException, match="KAFKA_STORAGE_ERROR"):
                client.get_watermark_offsets(confluent_kafka.TopicPartition("kept", 0), timeout=10)
            client.close()
            assert not (own.data / "kept-0").exists()
    taken.rename(own.data / "kept-0")
    with member(own.data, address) as again, Consumer(again.bootstrap) as consumer:
        assert consumer.read("kept", columns=["value"]).num_rows == 1


def test_a_path_that_somebody_else_uses(
    zookeeper: ZooKeeperProcess, address: str, tmp_path: Path
) -> None:
    """Such as one of Apache Kafka's."""
    path = "/" + address.partition("/")[2]
    client = KazooClient(hosts=zookeeper.address)
    client.start()
    client.create(f"{path}/brokers/ids", b"null", makepath=True)
    client.create(f"{path}/cluster/id", b'{"version":"1","id":"somebody"}', makepath=True)
    said = refusal(member(tmp_path / "data", address))
    assert "neither empty nor that of a cluster of Ottla's: choose another path" in said
    assert sorted(client.get_children(path)) == ["brokers", "cluster"]
    assert client.get(f"{path}/brokers/ids")[0] == b"null"
    client.stop()
    client.close()


def test_a_replication_factor_above_the_number_of_brokers(address: str, tmp_path: Path) -> None:
    with member(tmp_path / "data", address, default_replication_factor="3") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        created = admin.create_topics([NewTopic("asked", 1, 2)])["asked"]
        with pytest.raises(confluent_kafka.KafkaException) as caught:
            created.result(60)
        error = caught.value.args[0]
        assert error.code() == confluent_kafka.KafkaError.INVALID_REPLICATION_FACTOR
        assert "2 needs as many brokers, and 1 are registered" in error.str()
        # By name alone, with a default that cannot be.
        told = admin.list_topics("automatic", timeout=60).topics["automatic"].error
        assert told is not None
        assert told.code() == confluent_kafka.KafkaError.INVALID_REPLICATION_FACTOR
        assert list(admin.list_topics(timeout=60).topics) == []


# A ZooKeeper that is not one


def _web_server(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    connection.close()


def _silence(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (_web_server, "what answers there is not a ZooKeeper"),
        (_silence, "no ZooKeeper answers at"),
    ],
)
def test_something_that_is_not_a_zookeeper(
    tmp_path: Path, answer: Callable[[socket.socket], None], words: str
) -> None:
    def serve(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=_quietly, args=(answer, connection), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        port = listener.getsockname()[1]
        said = refusal(member(tmp_path / "data", f"127.0.0.1:{port}/a"))
        listener.shutdown(socket.SHUT_RDWR)
    assert words in said, said
    assert f"127.0.0.1:{port}" in said
    assert files_below(tmp_path / "data") == {}


def _quietly(answer: Callable[[socket.socket], None], connection: socket.socket) -> None:
    try:
        answer(connection)
    except OSError:
        pass


def test_an_address_that_is_none(tmp_path: Path) -> None:
    said = refusal(member(tmp_path / "data", "host:port:more"))
    assert "'host:port:more' is not the address of a ZooKeeper: write it as" in said


# An advertised address that nobody reaches


def test_an_advertised_address_that_nobody_reaches(tmp_path: Path) -> None:
    nowhere = free_port()
    process = BrokerProcess(tmp_path / "data", arguments=["--advertise", f"127.0.0.1:{nowhere}"])
    with process:
        while "cannot be reached" not in process.log_text():
            assert process.running
    assert f"127.0.0.1:{nowhere}, cannot be reached from here (" in process.log_text()


@pytest.mark.parametrize("wrong", ["one of two", "both"])
def test_a_broker_that_advertises_a_wrong_address_is_not_fenced_for_ever(
    address: str, tmp_path: Path, wrong: str
) -> None:
    """Its port refuses others, and its session stands: that is held against it once."""
    advertised = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    brokers = [
        member(tmp_path / "1", address, node_id="1"),
        member(tmp_path / "2", address, node_id="2"),
    ]
    if wrong == "both":
        brokers[0].arguments += ["--advertise", advertised[0]]
    brokers[1].arguments += ["--advertise", advertised[1]]
    watching = brokers if wrong == "both" else brokers[:1]
    with brokers[0], brokers[1]:
        for broker in watching:
            while "still refuses connections" not in broker.log_text():
                assert broker.running
                time.sleep(0.05)
        told = "".join(broker.log_text() for broker in brokers)
        assert told.count("was fenced, and registers again") <= len(watching)
        assert told.count(" is the controller, epoch ") <= 3
        admin = AdminClient({"bootstrap.servers": brokers[0].bootstrap})
        assert sorted(admin.list_topics(timeout=60).brokers) == [1, 2]
        said = [line for line in told.splitlines() if "still refuses connections" in line]
        assert any(
            "broker 2 has come back, and the address that it advertises" in each
            and f"({advertised[1]})" in each
            for each in said
        )


def test_an_advertised_address_that_is_reached_is_no_news(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        server = await asyncio.start_server(lambda _r, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        await warn_of_unreachable([Endpoint("PLAINTEXT", "127.0.0.1", port, "PLAINTEXT")])
        assert caplog.text == ""
        await warn_of_unreachable([Endpoint("A", "no-such-host.invalid", port, "PLAINTEXT")])
        assert f"the advertised address of A, no-such-host.invalid:{port}" in caplog.text
        server.close()

    asyncio.run(run())


# Internal topics


def coordinator_error(broker: BrokerProcess) -> int:
    with Wire("127.0.0.1", broker.port) as wire:
        request = FindCoordinatorRequest(coordinator_keys=["group"])
        (found,) = wire.call(request, FindCoordinatorResponse, 4).coordinators
        return found.error_code


def internal_topic(broker: BrokerProcess) -> TopicMetadata:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    return admin.list_topics("__consumer_offsets", timeout=60).topics["__consumer_offsets"]


def of_three(tmp_path: Path, address: str) -> list[BrokerProcess]:
    settings = {
        "offsets_topic_replication_factor": "3",
        "offsets_topic_num_partitions": "3",
        "zookeeper_session_timeout_ms": "2000",
    }
    return [
        member(tmp_path / str(each), address, node_id=str(each), **settings) for each in (1, 2, 3)
    ]


def test_internal_topics_wait_for_as_many_brokers_as_they_are_to_have_replicas(
    address: str, tmp_path: Path
) -> None:
    """Made by the first broker alone, they would stay on it alone. Clients ask again meanwhile."""
    first, second, third = of_three(tmp_path, address)
    with first, contextlib.ExitStack() as others:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": first.bootstrap, "group.id": "group", "log_level": 0}
        )
        for broker in (second, third):
            assert coordinator_error(first) == ErrorCode.COORDINATOR_NOT_AVAILABLE
            others.enter_context(broker)
        write_one(first.bootstrap)
        wanted = confluent_kafka.TopicPartition("kept", 0, 1)
        assert consumer.commit(offsets=[wanted], asynchronous=False)[0].error is None
        consumer.close()
        partitions = internal_topic(first).partitions.values()
        assert {tuple(sorted(each.replicas)) for each in partitions} == {(1, 2, 3)}


def test_a_broker_that_is_away_counts_for_internal_topics(address: str, tmp_path: Path) -> None:
    """As in Kafka: it gets its replicas, and groups need not wait for it."""
    first, second, third = of_three(tmp_path, address)
    with first, second:
        with third:
            pass
        while coordinator_error(first) != ErrorCode.NONE:
            time.sleep(0.05)

        def sets(name: str) -> set[tuple[int, ...]]:
            partitions = internal_topic(first).partitions.values()
            return {tuple(sorted(getattr(each, name))) for each in partitions}

        assert sets("replicas") == {(1, 2, 3)}
        assert sets("isrs") == {(1, 2)}
        with third:
            while sets("isrs") != {(1, 2, 3)}:
                time.sleep(0.05)
