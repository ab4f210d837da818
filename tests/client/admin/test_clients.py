"""Who is connected, as the admin client tells it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace

import confluent_kafka
import pytest
from wire_kit.kafka import Kafka
from wire_kit.older import OlderBroker

from ottla import Admin, AsyncAdmin, Producer
from ottla.client.admin.clients import ConnectedClient, Membership
from ottla.client.errors import Unsupported
from ottla.testing import BrokerProcess


@pytest.fixture(scope="module")
def admin(broker: BrokerProcess) -> Iterator[Admin]:
    with Admin(broker.bootstrap, client_id="asker") as client:
        yield client


def test_list_clients(broker: BrokerProcess, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    began = time.time() * 1000
    with Producer(broker.bootstrap, client_id=topic) as producer:
        producer.send(topic, b"x").result(20)
        (client,) = admin.list_clients(topic=topic)
        assert (client.client_id, client.software_name, client.producing) == (
            topic,
            "ottla",
            (topic,),
        )
        assert (client.broker, client.address, client.principal) == (
            1,
            "127.0.0.1",
            "User:ANONYMOUS",
        )
        assert (client.role, client.peer_broker, client.more_producing) == ("client", None, 0)
        assert client.transactional_id is None
        assert client.peer == f"127.0.0.1:{client.port}"
        assert abs(client.connected_since_ms - began) < 3_600_000
        assert client.last_api == "Produce"
        assert client.requests > 1
        # What the kernel counts as sent is what the client has acknowledged by now.
        assert client in [
            replace(each, idle_ms=client.idle_ms, sent_bytes=client.sent_bytes)
            for each in listed(admin, client)
        ]
        assert client.doing == f"produces to {topic}"
        # Every filter reaches the broker.
        assert admin.list_clients(client_id=topic, topic=topic, principal="User:ANONYMOUS")
        assert not admin.list_clients(client_id="another", topic=topic)
        assert not admin.list_clients(principal="User:another", topic=topic)
        assert not admin.list_clients(address="127.0.0.2", topic=topic)
        assert not admin.list_clients(group="another", topic=topic)
        json.dumps(client.document())
    assert not admin.list_clients(topic=topic)


def listed(admin: Admin, client: ConnectedClient) -> list[ConnectedClient]:
    """The lines of a connection in the whole list."""
    return [each for each in admin.list_clients() if each.connection == client.connection]


async def test_list_clients_asynchronously(broker: BrokerProcess) -> None:
    async with AsyncAdmin(broker.bootstrap, client_id="async-asker") as admin:
        found = await admin.list_clients(client_id="async-asker")
    assert "ListClients" in [each.last_api for each in found]


def test_clients_are_in_order(broker: BrokerProcess, admin: Admin, topic: str) -> None:
    with (
        Admin(broker.bootstrap, client_id=f"{topic}-b") as later,
        Admin(broker.bootstrap, client_id=f"{topic}-a") as sooner,
        Admin(broker.bootstrap, client_id="broker-9-fetcher") as other_broker,
    ):
        for each in (later, sooner, other_broker):
            each.list_topics()
        found = admin.list_clients()
    order = [(each.role != "client", each.last_api is None, each.client_id) for each in found]
    assert order == sorted(order)
    assert (found[-1].role, found[-1].peer_broker) == ("broker", 9)
    assert {f"{topic}-a", f"{topic}-b"} <= {each.client_id for each in found}


def test_a_member_of_a_group(broker: BrokerProcess, admin: Admin, topic: str, group: str) -> None:
    admin.create_topic(topic)
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, b"x").result(20)
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
    }
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([topic])
    deadline = time.monotonic() + 40
    while consumer.poll(0.2) is None:
        assert time.monotonic() < deadline
    (member,) = admin.describe_groups(group)[group].members
    (client,) = admin.list_clients(group=group)
    assert client.memberships == (Membership(group, member.member_id),)
    assert client.doing == f"member of {group}"
    assert client.software_name == "confluent-kafka-python"
    (reader,) = admin.list_clients(topic=topic)
    assert (reader.client_id, reader.reading) == (client.client_id, (topic,))
    consumer.close()
    assert not admin.list_clients(group=group)


def test_an_older_broker(older_broker: OlderBroker) -> None:
    with (
        Admin(older_broker.address) as admin,
        pytest.raises(Unsupported, match="ListClients"),
    ):
        admin.list_clients()


@pytest.mark.interop
@pytest.mark.long
def test_another_kind_of_broker(kafka: Kafka) -> None:
    with Admin(kafka.bootstrap) as admin, pytest.raises(Unsupported, match="ListClients"):
        admin.list_clients()


SOME = ConnectedClient(
    broker=1,
    connection=7,
    client_id="shop",
    software_name="librdkafka",
    software_version="2.14.2",
    address="::1",
    port=54321,
    listener="PLAINTEXT",
    security_protocol="PLAINTEXT",
    principal="User:alice",
    role="client",
    peer_broker=None,
    is_controller=False,
    connected_since_ms=0,
    idle_ms=0,
    requests=1,
    received_bytes=None,
    sent_bytes=None,
    last_api="Metadata",
    transactional_id=None,
    producing=(),
    more_producing=0,
    reading=(),
    more_reading=0,
    memberships=(),
)


def test_what_it_does_in_words() -> None:
    assert SOME.doing == "Metadata"
    assert replace(SOME, last_api=None).doing == "no request yet"
    assert replace(SOME, producing=("a", "b", "c")).doing == "produces to a, b, c"
    several = replace(SOME, producing=("a", "b", "c", "d"), more_producing=1_000)
    assert several.doing == "produces to a, b, c and 1,001 more"
    members = (Membership("g", "1"), Membership("g", "2"), Membership("h", "3"))
    assert replace(SOME, reading=("a",), memberships=members).doing == "reads a; member of g, h"
    paid = replace(SOME, producing=("a",), transactional_id="pay")
    assert paid.doing == "produces to a; transactional id pay"
    follower = replace(SOME, role="follower", peer_broker=2, reading=("a",), last_api="Fetch")
    assert follower.doing == "broker 2; replicates a"
    controller = replace(SOME, role="broker", peer_broker=3, is_controller=True, last_api="Fetch")
    assert controller.doing == "broker 3, the controller; Fetch"
    assert SOME.software == "librdkafka 2.14.2"
    assert replace(SOME, software_name="", software_version="").software == ""
    assert SOME.peer == "[::1]:54321"
