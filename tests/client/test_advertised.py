"""A bootstrap server that answers, and brokers at addresses where nobody is."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ottla import Admin, Consumer, Producer
from ottla.client.cluster import Cluster, OneBroker
from ottla.client.configuration.clients import AdminSettings, read_settings
from ottla.client.errors import AdvertisedUnreachable, ClusterUnreachable, TimedOut
from ottla.client.metadata import Node
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.testing import BrokerProcess

SOON: dict[str, Any] = {"bootstrap_timeout_ms": 300}
TOPIC = "t"


@pytest.fixture(scope="module")
def nowhere() -> Iterator[str]:
    """An address that is taken, and where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(scope="module")
def misled(tmp_path_factory: pytest.TempPathFactory, nowhere: str) -> Iterator[str]:
    """The address of a broker that advertises another, where nobody is."""
    data = tmp_path_factory.mktemp("advertised") / "data"
    with BrokerProcess(data) as broker, Admin(broker.bootstrap) as admin:
        admin.create_topic(TOPIC, 1)
    settings = {"advertised.listeners": f"PLAINTEXT://{nowhere}"}
    with BrokerProcess(data, settings=settings) as broker:
        yield broker.bootstrap


def _consumer(call: Callable[[Consumer], object], **options: Any) -> Callable[[str], object]:
    def used(servers: str) -> object:
        with Consumer(servers, **SOON, **options) as consumer:
            return call(consumer)

    return used


def _assigned(consumer: Consumer) -> object:
    consumer.assign({(TOPIC, 0): 0})
    return consumer.next_batch(timeout=60)


def _followed(consumer: Consumer) -> object:
    consumer.subscribe(TOPIC)
    return consumer.next_batch(timeout=60)


def _producer(call: Callable[[Producer], object], **options: Any) -> Callable[[str], object]:
    def used(servers: str) -> object:
        with Producer(servers, **SOON, **options) as producer:
            return call(producer)

    return used


def _created(servers: str) -> object:
    with Admin(servers, **SOON) as admin:
        return admin.create_topic("another")


CALLS: dict[str, Callable[[str], object]] = {
    "read": _consumer(lambda consumer: consumer.read(TOPIC)),
    "subscribe": _consumer(_followed),
    "assign": _consumer(_assigned),
    "group": _consumer(_followed, group="g"),
    "classic group": _consumer(_followed, group="g", group_protocol="classic"),
    "send": _producer(lambda producer: producer.send(TOPIC, b"x").result()),
    "send without numbers": _producer(
        lambda producer: producer.send(TOPIC, b"x").result(), enable_idempotence=False
    ),
    "write": _producer(lambda producer: producer.write(TOPIC, pa.table({"value": ["x"]})).result()),
    "transactions": _producer(lambda producer: producer.init_transactions(), transactional_id="x"),
    "create": _created,
}


@pytest.mark.parametrize("call", CALLS)
def test_the_address_is_named(call: str, misled: str, nowhere: str) -> None:
    # By this exception, and not by the TimedOut of default.api.timeout.ms, a minute later.
    told = re.escape(f"{misled} answers and names {nowhere} as the address of broker")
    with pytest.raises(AdvertisedUnreachable, match=told) as raised:
        CALLS[call](misled)
    assert isinstance(raised.value, ClusterUnreachable)
    assert "Connection refused" in str(raised.value)


def test_an_address_that_takes_no_notice(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        settings = {"advertised.listeners": f"PLAINTEXT://{address}"}
        with (
            BrokerProcess(tmp_path / "data", settings=settings) as broker,
            Admin(broker.bootstrap, **SOON) as admin,
            pytest.raises(AdvertisedUnreachable, match=f"names {address} .*no answer within"),
        ):
            admin.create_topic("another")


async def test_one_broker_of_several_is_waited_for(broker: BrokerProcess, nowhere: str) -> None:
    """A leader may be dead and another not elected yet: that is no wrong address."""
    host, port = nowhere.split(":")
    settings = replace(read_settings(AdminSettings, broker.bootstrap, {}), api_timeout=1.0)
    async with Cluster(settings) as cluster:
        await cluster.refresh(())
        cluster.settings = replace(settings, bootstrap_timeout=0.1)  # it was reached
        cluster.metadata.nodes[4711] = Node(4711, host, int(port))
        # Metadata that is asked for meanwhile must not take the broker away again.
        cluster.request_refresh = lambda *_: None  # type: ignore[method-assign]
        with pytest.raises(TimedOut):
            await cluster.ask(ListGroupsRequest(), ListGroupsResponse, at=OneBroker(4711))


async def test_a_cluster_that_goes_away_is_waited_for(tmp_path: Path, nowhere: str) -> None:
    settings = {"advertised.listeners": f"PLAINTEXT://{nowhere}"}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        chosen = replace(read_settings(AdminSettings, broker.bootstrap, {}), api_timeout=1.0)
        async with Cluster(chosen) as cluster:
            await cluster.refresh(())
            cluster.settings = replace(chosen, bootstrap_timeout=0.1)  # it was reached
            [node] = cluster.metadata.nodes
            await asyncio.to_thread(broker.kill)
            with pytest.raises(TimedOut):
                await cluster.ask(ListGroupsRequest(), ListGroupsResponse, at=OneBroker(node))


def test_the_source_of_spark_says_the_same(misled: str, nowhere: str) -> None:
    source = pytest.importorskip("pyspark_ottla").OttlaDataSource(
        {
            "kafka.bootstrap.servers": misled,
            "kafka.bootstrap.timeout.ms": "300",
            "subscribe": TOPIC,
        }
    )
    with pytest.raises(AdvertisedUnreachable, match=f"names {nowhere} "):
        source.reader(source.schema()).partitions()


def test_a_command_says_the_same(misled: str, nowhere: str) -> None:
    from typer.testing import CliRunner

    from ottla.cli.app import app

    result = CliRunner(env={"OTTLA_SERVER": misled}).invoke(app, ["consume", TOPIC])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"ottla: {misled} answers and names {nowhere} ")
    assert result.stderr.count("\n") == 1
