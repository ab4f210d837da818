"""Brokers that talk to each other over TLS and authenticate by SCRAM."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from pathlib import Path

import pytest

# The kit of the server's tests has the certificates.
sys.path.append(str(Path(__file__).resolve().parents[1] / "server"))

from server_kit.security import Authority, jaas

from ottla import Admin, Consumer, Producer
from ottla.cluster.decisions.users import ScramChange
from ottla.server.security.offline import change_users
from ottla.testing import BrokerProcess, free_port
from ottla.testing.zookeeper import ZooKeeperProcess

SECRET = "a secret of brokers"
ITERATIONS = 4096


def change(user: str, password: str) -> ScramChange:
    salt = b"salt of sixteen!"
    salted = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, ITERATIONS)
    return ScramChange(user, 2, ITERATIONS, salt, salted)


def broker_on(folder: Path, number: int, zookeeper: str, authority: Authority) -> BrokerProcess:
    port, inside = free_port(), free_port()
    folder.mkdir(parents=True, exist_ok=True)
    credentials = jaas("ScramLoginModule", {"username": "broker", "password": SECRET})
    config = folder / f"server-{number}.properties"
    config.write_text(
        f"listeners=PLAINTEXT://127.0.0.1:{port},INSIDE://localhost:{inside}\n"
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,INSIDE:SASL_SSL\n"
        "inter.broker.listener.name=INSIDE\n"
        f"ssl.keystore.location={authority.server()}\n"
        f"ssl.truststore.location={authority.file}\n"
        "sasl.enabled.mechanisms=SCRAM-SHA-512\n"
        f"listener.name.inside.scram-sha-512.sasl.jaas.config={credentials}\n"
    )
    return SecuredBroker(
        folder / f"data-{number}",
        port=port,
        arguments=["--config", str(config), "--node-id", str(number), "--zookeeper", zookeeper],
        inside=inside,
    )


class SecuredBroker(BrokerProcess):
    """Its listeners are in its file."""

    def __init__(self, data: Path, *, port: int, arguments: list[str], inside: int) -> None:
        super().__init__(data, port=port, arguments=arguments)
        self.inside = inside

    def command(self) -> list[str]:
        command = super().command()
        at = command.index("--listen")
        return command[:at] + command[at + 2 :]


@pytest.mark.long
def test_a_cluster_replicates_over_tls_and_scram(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    with ZooKeeperProcess(tmp_path / "zookeeper") as zookeeper:
        address = f"{zookeeper.address}/secured"
        # Before any broker runs.
        results = asyncio.run(
            change_users([change("broker", SECRET), change("alice", "hers")], zookeeper=address)
        )
        assert [each.error for each in results] == [None, None]
        brokers = [broker_on(tmp_path / "brokers", each, address, authority) for each in (1, 2)]
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
            options = {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "alice",
                "sasl.password": "hers",
                "ssl.ca.location": authority.file,
                "auto.offset.reset": "earliest",
            }
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
