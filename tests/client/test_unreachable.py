"""Addresses and names that are wrong are told soon, by the exception that says so."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from ottla import Admin, AsyncConsumer, Consumer, Producer
from ottla.client.configuration.clients import AdminSettings, ProducerSettings, read_settings
from ottla.client.errors import ClusterUnreachable, TopicNotFound
from ottla.testing import BrokerProcess

SOON: dict[str, Any] = {"bootstrap_timeout_ms": 300}


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def refused() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def _consumer(call: Callable[[Consumer], object]) -> Callable[[str], object]:
    def used(servers: str) -> object:
        with Consumer(servers, **SOON) as consumer:
            return call(consumer)

    return used


def _in_a_group(servers: str, protocol: str) -> object:
    with Consumer(servers, group="g", group_protocol=protocol, **SOON) as consumer:
        consumer.subscribe("t")
        return consumer.next_batch(timeout=60)


def _committed(servers: str) -> object:
    with Consumer(servers, group="g", **SOON) as consumer:
        return consumer.committed(("t", 0))


def _producer(call: Callable[[Producer], object], **options: Any) -> Callable[[str], object]:
    def used(servers: str) -> object:
        with Producer(servers, **SOON, **options) as producer:
            return call(producer)

    return used


def _admin(call: Callable[[Admin], object]) -> Callable[[str], object]:
    def used(servers: str) -> object:
        with Admin(servers, **SOON) as admin:
            return call(admin)

    return used


def _follow(consumer: Consumer) -> object:
    consumer.subscribe("t")
    return consumer.next_batch(timeout=60)


def _assigned(consumer: Consumer) -> object:
    consumer.assign({("t", 0): 0})
    return consumer.next_batch(timeout=60)


CALLS: dict[str, Callable[[str], object]] = {
    "read": _consumer(lambda consumer: consumer.read("t")),
    "scan": _consumer(lambda consumer: consumer.scan("t")),
    "subscribe": _consumer(_follow),
    "assign": _consumer(_assigned),
    "consumer group": lambda servers: _in_a_group(servers, "consumer"),
    "classic group": lambda servers: _in_a_group(servers, "classic"),
    "committed": _committed,
    "send": _producer(lambda producer: producer.send("t", b"x")),
    "write": _producer(lambda producer: producer.write("t", pa.table({"value": ["x"]}))),
    "transactions": _producer(
        lambda producer: producer.init_transactions(), transactional_id="unreachable"
    ),
    "topics": _admin(lambda admin: admin.list_topics()),
    "create": _admin(lambda admin: admin.create_topic("t")),
    "group": _admin(lambda admin: admin.describe_groups("g")),
    "configs": _admin(lambda admin: admin.describe_cluster()),
}


@pytest.mark.parametrize("call", CALLS)
def test_nobody_listens(call: str, refused: str) -> None:
    # By this exception, and not by the TimedOut of default.api.timeout.ms, a minute later.
    with pytest.raises(
        ClusterUnreachable, match=f"cannot connect to {refused}: Connection refused"
    ):
        CALLS[call](refused)


@pytest.mark.parametrize("call", ["read", "send", "topics"])
def test_nobody_answers(call: str, silent: str) -> None:
    with pytest.raises(ClusterUnreachable, match=f"cannot connect to {silent}: no answer within"):
        CALLS[call](silent)


def test_a_name_that_is_none() -> None:
    with (
        Admin("no-such-host.invalid:9092", **SOON) as admin,
        pytest.raises(ClusterUnreachable, match="the name is unknown"),
    ):
        admin.list_topics()


def test_all_addresses_are_tried_and_named(
    broker: BrokerProcess, silent: str, refused: str
) -> None:
    with Admin(f"{silent},{refused},{broker.bootstrap}", bootstrap_timeout_ms=6000) as admin:
        admin.list_topics()
    with Admin(f"{silent},{refused}", **SOON) as admin:
        with pytest.raises(ClusterUnreachable) as raised:
            admin.list_topics()
        assert silent in str(raised.value)
        assert refused in str(raised.value)


async def test_a_cluster_that_comes_up_is_found(broker: BrokerProcess, refused: str) -> None:
    """Whoever catches the exception may try again with the same client."""
    host, port = refused.split(":")

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream = await asyncio.open_connection("127.0.0.1", broker.port)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                target.write(data)
            target.close()

        await asyncio.gather(copy(reader, upstream[1]), copy(upstream[0], writer))

    async with AsyncConsumer(refused, bootstrap_timeout_ms=2_000) as consumer:
        with pytest.raises(ClusterUnreachable):
            await consumer.read("no-such-topic")
        server = await asyncio.start_server(forward, host, int(port))
        with pytest.raises(TopicNotFound):
            await consumer.read("no-such-topic")
        server.close()


def test_the_wait_is_a_few_seconds_by_default() -> None:
    assert read_settings(AdminSettings, "h:1", {}).bootstrap_timeout == 5
    assert read_settings(ProducerSettings, "h:1", {}).topic_wait == 5


def test_a_topic_that_is_not_there(broker: BrokerProcess, topic: str) -> None:
    with Producer(broker.bootstrap, topic_metadata_propagation_max_ms=300) as producer:
        for call in (
            lambda: producer.send(topic, b"x"),
            lambda: producer.write(topic, pa.table({"value": ["x"]})),
            lambda: producer.partitions_for(topic),
        ):
            with pytest.raises(TopicNotFound, match=topic):
                call()
