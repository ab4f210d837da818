"""Brokers that talk to each other over TLS, and prove to each other who they are."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

# The kit of the server's tests has the certificates.
sys.path.append(str(Path(__file__).resolve().parents[1] / "server"))

from server_kit.secured_process import ConfiguredBroker, write_properties
from server_kit.security import Authority, jaas

from ottla import Admin, Consumer, Producer
from ottla.cluster.decisions.users import ScramChange
from ottla.server.security.offline import change_users
from ottla.testing import free_port
from ottla.testing.zookeeper import ZooKeeperProcess

SECRET = "a secret of brokers"
ITERATIONS = 4096


def change(user: str, password: str) -> ScramChange:
    salt = b"salt of sixteen!"
    salted = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, ITERATIONS)
    return ScramChange(user, 2, ITERATIONS, salt, salted)


WAYS = ("SCRAM-SHA-512", "PLAIN", "certificate")


def settings_of(way: str, authority: Authority) -> dict[str, str]:
    """How brokers prove who they are; only `broker` may be one, and the tests may do everything."""
    settings = {
        "inter.broker.listener.name": "INSIDE",
        "ssl.keystore.location": authority.server(),
        "ssl.truststore.location": authority.file,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:broker;User:ANONYMOUS;User:alice",
    }
    if way == "certificate":
        protocol = "SSL"
        settings["listener.name.inside.ssl.client.auth"] = "required"
        settings["ssl.principal.mapping.rules"] = "RULE:^CN=(alice),.*$/$1/,RULE:^.*$/broker/"
    else:
        protocol = "SASL_SSL"
        module = "PlainLoginModule" if way == "PLAIN" else "ScramLoginModule"
        options = {"username": "broker", "password": SECRET}
        if way == "PLAIN":
            options |= {"user_broker": SECRET, "user_alice": "hers"}
        settings["sasl.enabled.mechanisms"] = way
        settings["sasl.mechanism.inter.broker.protocol"] = way
        name = f"listener.name.inside.{way.lower()}.sasl.jaas.config"
        settings[name] = jaas(module, options)
    settings["listener.security.protocol.map"] = f"PLAINTEXT:PLAINTEXT,INSIDE:{protocol}"
    return settings


def client_of(way: str, authority: Authority) -> dict[str, str]:
    """The options of a client that comes in by the listener of the brokers."""
    options = {"ssl.ca.location": authority.file}
    if way == "certificate":
        store = authority.client("alice")
        return {
            **options,
            "security.protocol": "SSL",
            "ssl.certificate.location": store,
            "ssl.key.location": store,
        }
    return {
        **options,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": way,
        "sasl.username": "alice",
        "sasl.password": "hers",
    }


def broker_on(
    folder: Path, number: int, zookeeper: str, settings: Mapping[str, str]
) -> SecuredBroker:
    port, inside = free_port(), free_port()
    folder.mkdir(parents=True, exist_ok=True)
    config = write_properties(
        folder / f"server-{number}.properties",
        {
            "listeners": f"PLAINTEXT://127.0.0.1:{port},INSIDE://localhost:{inside}",
            **settings,
        },
    )
    return SecuredBroker(
        folder / f"data-{number}",
        port=port,
        arguments=["--config", str(config), "--node-id", str(number), "--zookeeper", zookeeper],
        inside=inside,
    )


class SecuredBroker(ConfiguredBroker):
    def __init__(self, data: Path, *, port: int, arguments: list[str], inside: int) -> None:
        super().__init__(data, port=port, arguments=arguments)
        self.inside = inside


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_a_cluster_replicates_over_tls(way: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    with ZooKeeperProcess(tmp_path / "zookeeper") as zookeeper:
        address = f"{zookeeper.address}/secured"
        # Before any broker runs.
        results = asyncio.run(
            change_users([change("broker", SECRET), change("alice", "hers")], zookeeper=address)
        )
        assert [each.error for each in results] == [None, None]
        settings = settings_of(way, authority)
        brokers = [broker_on(tmp_path / "brokers", each, address, settings) for each in (1, 2)]
        try:
            for each in brokers:
                each.start()
            first, second = brokers
            with Admin(first.bootstrap) as admin:
                admin.create_topic("orders", partitions=4, replication_factor=2)
            with Producer(second.bootstrap, acks="all") as producer:
                for number in range(200):
                    producer.send("orders", value=str(number))
            # A client comes in by the same listener as the brokers.
            options = {**client_of(way, authority), "auto.offset.reset": "earliest"}
            with Consumer(f"localhost:{second.inside}", **options) as consumer:
                consumer.subscribe(["orders"])
                found: set[bytes] = set()
                for record in consumer:
                    found.add(record.value)
                    if len(found) == 200:
                        break
            with Admin(first.bootstrap) as admin:
                (topic,) = admin.describe_topics("orders").values()
                assert all(len(each.in_sync) == 2 for each in topic.partitions)
            for each in brokers:
                assert SECRET not in each.log_path.read_text()
        finally:
            for each in brokers:
                each.kill()
