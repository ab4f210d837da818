"""What clients of other makers say when they are refused, and Kafka's tools for users, quotas and access
control. (That they get in is tested in test_secured_clients.py.)"""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from interop_kit import toolchain

# The kit of the server's tests has the broker.
sys.path.append(str(Path(__file__).resolve().parents[2] / "server"))

from server_kit.secured_process import (
    SASL_PLAIN,
    SASL_TLS,
    Secured,
    secured_process,
)

from ottla.testing import BrokerProcess


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_process(tmp_path_factory.mktemp("secured")) as running:
        yield running


def fresh() -> str:
    return f"secured-{uuid.uuid4().hex[:8]}"


# confluent-kafka --------------------------------------------------------------------------------


def confluent_goes_round(options: dict[str, Any]) -> None:
    from confluent_kafka import Consumer, Producer

    topic = fresh()
    producer = Producer({**options, "message.timeout.ms": 20_000})
    failures: list[Any] = []
    for number in range(10):
        producer.produce(topic, str(number), on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(30) == 0
    assert failures == [None] * 10
    consumer = Consumer({**options, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(found) < 10 and time.monotonic() < deadline:
        found += [each.value() for each in consumer.consume(10, 1.0) if each.error() is None]
    consumer.close()
    assert found == [str(number).encode() for number in range(10)]


@pytest.mark.long
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_confluent_kafka_is_told_of_a_wrong_password(mechanism: str, secured: Secured) -> None:
    from confluent_kafka import KafkaError, Producer

    heard: list[KafkaError] = []
    options = secured.options(SASL_TLS, mechanism, "wrong")
    producer = Producer({**options, "error_cb": heard.append})
    deadline = time.monotonic() + 30
    while not any(each.code() == KafkaError._AUTHENTICATION for each in heard):
        assert time.monotonic() < deadline, heard
        producer.poll(0.1)


# Kafka's own tools, in Java -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def java() -> Callable[..., subprocess.CompletedProcess[str]]:
    command = toolchain.kafka_tools()

    def run(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *words],
            input=given,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return run


# Kafka's tools for users, quotas and access control ---------------------------------------------


@pytest.mark.long
def test_kafkas_tools_manage_users_and_quotas(
    secured: Secured, java: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    def configs(*words: str) -> str:
        at = ("--bootstrap-server", secured.broker.bootstrap)
        done = java("kafka.admin.ConfigCommand", *at, *words)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    carol = ("--entity-type", "users", "--entity-name", "carol")
    configs("--alter", *carol, "--add-config", "SCRAM-SHA-256=[iterations=5000,password=hers]")
    assert "SCRAM-SHA-256=iterations=5000" in configs("--describe", *carol)
    options = secured.options(SASL_PLAIN, "SCRAM-SHA-256", "hers")
    confluent_goes_round({**options, "sasl.username": "carol"})
    clients = ("--entity-type", "clients", "--entity-name", "slow")
    configs("--alter", *clients, "--add-config", "producer_byte_rate=1024,request_percentage=50")
    shown = configs("--describe", *clients)
    assert "producer_byte_rate=1024.0" in shown
    assert "request_percentage=50.0" in shown
    configs("--alter", *clients, "--delete-config", "producer_byte_rate,request_percentage")
    configs("--alter", *carol, "--delete-config", "SCRAM-SHA-256")
    assert "SCRAM" not in configs("--describe", *carol)


@pytest.mark.long
def test_kafkas_tool_manages_access(
    tmp_path: Path, java: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:

        def acls(*words: str) -> str:
            at = ("--bootstrap-server", broker.bootstrap)
            done = java("org.apache.kafka.tools.AclCommand", *at, *words)
            assert done.returncode == 0, done.stderr + done.stdout
            return done.stdout

        about = ("--topic", "orders-", "--resource-pattern-type", "prefixed")
        acls("--add", "--allow-principal", "User:alice", "--operation", "Write", *about)
        listed = acls("--list")
        assert "resourceType=TOPIC, name=orders-, patternType=PREFIXED" in listed
        assert "principal=User:alice, host=*, operation=WRITE, permissionType=ALLOW" in listed
        acls(
            "--remove", "--force", "--allow-principal", "User:alice", "--operation", "Write", *about
        )
        assert "User:alice" not in acls("--list")
