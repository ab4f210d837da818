"""Clients of other makers over each security protocol and mechanism, and what they say when refused.

One broker has a listener of every kind: TLS with client certificates, SASL in the clear and over TLS.
"""

from __future__ import annotations

import json
import os
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
sys.path.append(str(Path(__file__).resolve().parents[1] / "server"))

from server_kit.secured_process import (
    SASL_PLAIN,
    SASL_TLS,
    SECRET,
    TLS,
    TOKENS,
    USER,
    WAYS,
    Secured,
    secured_process,
    write_properties,
)

from ottla.testing import BrokerProcess

IN_SHORT_RUNS = [(TLS, ""), (SASL_TLS, "SCRAM-SHA-512")]


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


@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        each if each in IN_SHORT_RUNS else pytest.param(*each, marks=pytest.mark.long)
        for each in WAYS
    ],
)
def test_confluent_kafka(protocol: str, mechanism: str, secured: Secured) -> None:
    confluent_goes_round(secured.options(protocol, mechanism))


@pytest.mark.long
def test_confluent_kafka_with_tokens(secured: Secured) -> None:
    options: dict[str, Any] = secured.options(SASL_TLS, "")
    options["sasl.mechanism"] = "OAUTHBEARER"
    options["oauth_cb"] = lambda _: secured.tokens.token()
    confluent_goes_round(options)


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


# kcat -------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_kcat(protocol: str, mechanism: str, secured: Secured) -> None:
    program = toolchain.tool("kcat")
    options = secured.options(protocol, mechanism)
    address = options.pop("bootstrap.servers")
    words = [word for name, value in options.items() for word in ("-X", f"{name}={value}")]
    topic = fresh()
    command = [program, "-b", address, *words, "-t", topic]
    subprocess.run([*command, "-P"], input=b"one\ntwo\n", check=True, timeout=60)
    read = subprocess.run(
        [*command, "-C", "-e", "-q", "-o", "beginning"], capture_output=True, check=True, timeout=60
    )
    assert read.stdout == b"one\ntwo\n"


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


@pytest.mark.long
@pytest.mark.parametrize(
    ("protocol", "mechanism"), [*WAYS, (SASL_PLAIN, TOKENS), (SASL_TLS, TOKENS)]
)
def test_java(
    protocol: str,
    mechanism: str,
    secured: Secured,
    java: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    options = secured.java_options(protocol, mechanism)
    file = str(write_properties(tmp_path / "client.properties", options))
    # Where Java may ask for tokens is not a client's to say.
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={secured.tokens.url}"
    at = ("--bootstrap-server", secured.address(protocol))
    topic = fresh()
    sent = java(
        allowed, "org.apache.kafka.tools.ConsoleProducer", *at, "--topic", topic,
        "--command-config", file, given="one\ntwo\n",
    )  # fmt: skip
    assert sent.returncode == 0, sent.stderr
    read = java(
        allowed, "org.apache.kafka.tools.consumer.ConsoleConsumer", *at, "--topic", topic,
        "--from-beginning", "--max-messages", "2", "--command-config", file,
    )  # fmt: skip
    assert read.stdout == "one\ntwo\n", read.stderr


# franz-go ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_franz_go_over_tls_and_scram(secured: Secured, tmp_path: Path) -> None:
    """Its own tests of SCRAM, and one of groups and transactions over TLS."""
    go, package = toolchain.go_suite("github.com/twmb/franz-go", "pkg/kgo")
    environment = {
        **os.environ,
        "KGO_TEST_SCRAM_SEEDS": secured.address(SASL_PLAIN),
        "KGO_TEST_RF": "1",
        "KGO_TEST_RECORDS": "1000",
        "KGO_LOG_LEVEL": "none",
    }
    # With a certificate, and with a password: its administrative client has no password of its own.
    store = secured.certificate
    certified = f"ca:{secured.authority.file},cert:{store},key:{store}"
    password = f"{USER}:{SECRET}:512"
    suite = "TestSCRAMAuthBadCredentials|TestTxnEtl|TestIssue.*Commit"
    for only, protocol, more in (
        (suite, TLS, {"KGO_TEST_TLS": certified}),
        ("TestSCRAMAuth$", SASL_PLAIN, {"KGO_TEST_SCRAM": password}),
    ):
        done = subprocess.run(
            [go, "test", "-json", "-count=1", "-vet=off", f"-run={only}", "."],
            cwd=package,
            env={**environment, "KGO_SEEDS": secured.address(protocol), **more},
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        outcome = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        passed = {each["Test"] for each in outcome if each["Action"] == "pass" and "Test" in each}
        failed = {each["Test"] for each in outcome if each["Action"] == "fail" and "Test" in each}
        assert not failed, done.stdout[-3000:]
        assert any(name.startswith(only.split("|")[0].rstrip("$")) for name in passed), passed


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
