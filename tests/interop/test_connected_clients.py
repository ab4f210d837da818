"""The broker knows who is connected: clients of several makers, as `ottla client list` tells them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from ottla import Admin, Producer
from ottla.client.admin.clients import ConnectedClient
from ottla.testing import BrokerProcess

PATIENCE = 60.0
Asked = Callable[..., list[ConnectedClient]]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    if "TEST_BOOTSTRAP" in os.environ:
        pytest.skip("other brokers have no list of clients")
    data = tmp_path_factory.mktemp("connected") / "data"
    with BrokerProcess(data, settings={"group.initial.rebalance.delay.ms": "0"}) as running:
        yield running


@pytest.fixture(scope="module")
def asked(process: BrokerProcess) -> Iterator[Asked]:
    with Admin(process.bootstrap, client_id="asker") as admin:
        yield admin.list_clients


@pytest.fixture
def filled(process: BrokerProcess, topic: str) -> str:
    with Admin(process.bootstrap) as admin, Producer(process.bootstrap) as producer:
        admin.create_topic(topic, partitions=2)
        for number in range(20):
            producer.send(topic, b"x", partition=number % 2)
    return topic


class Running:
    """A loop in a thread, for a client of asyncio."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def __call__(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()


@contextmanager
def producing(
    name: str, bootstrap: str, topic: str, transactional_id: str | None
) -> Iterator[None]:
    """A producer that has written, in a transaction that is open if it has an id for that."""
    if name == "confluent-kafka":
        from confluent_kafka import Producer as Confluent

        settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "client.id": name}
        if transactional_id is not None:
            settings["transactional.id"] = transactional_id
        confluent: Any = Confluent(settings)
        if transactional_id is not None:
            confluent.init_transactions(PATIENCE)
            confluent.begin_transaction()
        confluent.produce(topic, b"y")
        assert confluent.flush(PATIENCE) == 0
        yield
        if transactional_id is not None:
            confluent.abort_transaction(PATIENCE)
    elif name == "kafka-python":
        from kafka import KafkaProducer

        python: Any = KafkaProducer(
            bootstrap_servers=bootstrap, client_id=name, transactional_id=transactional_id
        )
        if transactional_id is not None:
            python.init_transactions()
            python.begin_transaction()
        python.send(topic, b"y").get(PATIENCE)
        yield
        if transactional_id is not None:
            python.abort_transaction()
        python.close()
    elif name == "aiokafka":
        from aiokafka import AIOKafkaProducer

        run = Running()

        async def make() -> Any:
            made = AIOKafkaProducer(
                bootstrap_servers=bootstrap, client_id=name, transactional_id=transactional_id
            )
            await made.start()
            if transactional_id is not None:
                await made.begin_transaction()
            await made.send_and_wait(topic, b"y")
            return made

        aio = run(make())
        yield
        if transactional_id is not None:
            run(aio.abort_transaction())
        run(aio.stop())
        run.close()
    else:
        options: dict[str, Any] = {"client_id": name}
        if transactional_id is not None:
            options["transactional_id"] = transactional_id
        with Producer(bootstrap, **options) as own:
            if transactional_id is not None:
                own.init_transactions()
            if transactional_id is None:
                own.send(topic, b"y").result(PATIENCE)
                yield
            else:
                with own.transaction():
                    own.send(topic, b"y").result(PATIENCE)
                    yield


@contextmanager
def reading(name: str, bootstrap: str, topic: str, group: str) -> Iterator[None]:
    """A member of a group that has read all records."""
    if name == "confluent-kafka":
        from confluent_kafka import Consumer as Confluent

        confluent: Any = Confluent(
            {
                "bootstrap.servers": bootstrap,
                "client.id": name,
                "group.id": group,
                "auto.offset.reset": "earliest",
            }
        )
        confluent.subscribe([topic])
        _until_all(lambda: len(confluent.consume(20, 0.2)))
        yield
        confluent.close()
    elif name == "kafka-python":
        from kafka import KafkaConsumer

        python: Any = KafkaConsumer(
            bootstrap_servers=bootstrap,
            client_id=name,
            group_id=group,
            auto_offset_reset="earliest",
        )
        # A member that joins before it knows the topic gets no partitions, and on a busy machine
        # kafka-python does not always join again.
        python.partitions_for_topic(topic)
        python.subscribe([topic])
        _until_all(lambda: sum(map(len, python.poll(200).values())))
        yield
        python.close()
    elif name == "aiokafka":
        from aiokafka import AIOKafkaConsumer

        run = Running()

        async def make() -> Any:
            made = AIOKafkaConsumer(
                topic,
                bootstrap_servers=bootstrap,
                client_id=name,
                group_id=group,
                auto_offset_reset="earliest",
            )
            await made.start()
            return made

        aio = run(make())
        _until_all(lambda: sum(map(len, run(aio.getmany(timeout_ms=200)).values())))
        yield
        run(aio.stop())
        run.close()
    else:
        from ottla import Consumer

        with Consumer(bootstrap, client_id=name, group=group, auto_offset_reset="earliest") as own:
            own.subscribe(topic)
            rows = 0
            for batch in own.batches(timeout=PATIENCE):
                rows += batch.num_rows
                if rows == 20:
                    break
            yield


def _until_all(read: Callable[[], int]) -> None:
    left, deadline = 20, time.monotonic() + PATIENCE
    while left > 0:
        left -= read()
        assert time.monotonic() < deadline, f"{left} records were not read"


CLIENTS = ["confluent-kafka", "kafka-python", "aiokafka", "ottla"]
# As they tell it in ApiVersions; aiokafka asks in a version that has no place for it.
SOFTWARE = {
    "confluent-kafka": "confluent-kafka-python",
    "kafka-python": "kafka-python",
    "aiokafka": "",
    "ottla": "ottla",
}


def of(asked: Asked, name: str, **wanted: str) -> list[ConnectedClient]:
    found = asked(client_id=name, **wanted)
    for each in found:
        assert (each.software_name, each.address, each.role) == (
            SOFTWARE[name],
            "127.0.0.1",
            "client",
        )
    return found


@pytest.mark.parametrize("client", CLIENTS)
def test_a_producer(process: BrokerProcess, asked: Asked, filled: str, client: str) -> None:
    with producing(client, process.bootstrap, filled, None):
        (found,) = of(asked, client, topic=filled)
        assert found.producing == (filled,)
        assert found.transactional_id is None
    gone(asked, client)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_transactional_producer(
    process: BrokerProcess, asked: Asked, filled: str, client: str
) -> None:
    name = f"{filled}-id"
    with producing(client, process.bootstrap, filled, name):
        (found,) = of(asked, client, topic=filled)
        assert (found.producing, found.transactional_id) == ((filled,), name)
    gone(asked, client)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_member_of_a_group(
    process: BrokerProcess, asked: Asked, filled: str, client: str
) -> None:
    group = f"{filled}-group"
    with ExitStack() as stack:
        stack.enter_context(reading(client, process.bootstrap, filled, group))
        with Admin(process.bootstrap) as admin:
            (member,) = admin.describe_groups(group)[group].members
        (coordinated,) = of(asked, client, group=group)
        assert [(each.group, each.member_id) for each in coordinated.memberships] == [
            (group, member.member_id)
        ]
        (reader,) = of(asked, client, topic=filled)
        assert reader.reading == (filled,)
    gone(asked, client)


def gone(asked: Asked, client: str) -> None:
    """Who has closed its connections is not listed any more."""
    deadline = time.monotonic() + PATIENCE
    while asked(client_id=client):
        assert time.monotonic() < deadline
