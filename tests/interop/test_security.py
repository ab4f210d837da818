"""Clients of other makers over each security protocol and mechanism, and what they say when refused.

One broker has a listener of every kind: TLS with client certificates, SASL in the clear and over TLS.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from interop_kit import toolchain

# The kit of the server's tests has the certificates.
sys.path.append(str(Path(__file__).resolve().parents[1] / "server"))

from server_kit.security import Authority, jaas

from ottla import Admin
from ottla.testing import BrokerProcess, free_port

SECRET = "alice-secret"
USER = "alice"
TLS, SASL_PLAIN, SASL_TLS = "SSL", "SASL_PLAINTEXT", "SASL_SSL"
WAYS = [
    (TLS, ""),
    *((protocol, name) for protocol in (SASL_PLAIN, SASL_TLS) for name in (
        "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")),
]  # fmt: skip

IN_SHORT_RUNS = [(TLS, ""), (SASL_TLS, "SCRAM-SHA-512")]


@dataclass(frozen=True)
class Secured:
    broker: BrokerProcess
    ports: dict[str, int]
    authority: Authority
    signing_key: rsa.RSAPrivateKey
    certificate: str

    def address(self, protocol: str) -> str:
        return f"localhost:{self.ports[protocol]}"

    def token(self, **claims: Any) -> tuple[str, float]:
        expiry = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
        signed = jwt.encode(
            {"sub": USER, "exp": expiry, **claims}, self.signing_key, "RS256", {"kid": "k"}
        )
        return signed, expiry.timestamp()

    def options(self, protocol: str, mechanism: str, password: str = SECRET) -> dict[str, str]:
        """As librdkafka names them."""
        given = {
            "bootstrap.servers": self.address(protocol),
            "security.protocol": protocol,
        }
        if protocol.endswith("SSL"):
            given["ssl.ca.location"] = self.authority.file
        if protocol == TLS:
            given |= {
                "ssl.certificate.location": self.certificate,
                "ssl.key.location": self.certificate,
            }
        if mechanism:
            given |= {
                "sasl.mechanism": mechanism,
                "sasl.username": USER,
                "sasl.password": password,
            }
        return given


class ConfiguredBroker(BrokerProcess):
    """Its listeners are in its file."""

    def command(self) -> list[str]:
        command = super().command()
        at = command.index("--listen")
        return command[:at] + command[at + 2 :]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder / "certificates")
    signing_key = rsa.generate_private_key(65537, 2048)
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(signing_key.public_key()))
    keys = folder / "jwks.json"
    keys.write_text(json.dumps({"keys": [{**public, "kid": "k"}]}))
    ports = {name: free_port() for name in ("PLAINTEXT", TLS, SASL_PLAIN, SASL_TLS)}
    listeners = ",".join(
        f"{name}://{'127.0.0.1' if name == 'PLAINTEXT' else 'localhost'}:{port}"
        for name, port in ports.items()
    )
    users = jaas("PlainLoginModule", {f"user_{USER}": SECRET})
    config = folder / "server.properties"
    config.write_text(
        "\n".join(
            [
                f"listeners={listeners}",
                f"ssl.keystore.location={authority.server()}",
                f"ssl.truststore.location={authority.file}",
                "listener.name.ssl.ssl.client.auth=required",
                "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
                f"sasl.oauthbearer.jwks.endpoint.url={keys.as_uri()}",
                *(
                    f"listener.name.{name.lower()}.plain.sasl.jaas.config={users}"
                    for name in (SASL_PLAIN, SASL_TLS)
                ),
            ]
        )
    )
    broker = ConfiguredBroker(
        folder / "data", port=ports["PLAINTEXT"], arguments=["--config", str(config)]
    )
    with broker:
        with Admin(broker.bootstrap) as admin:
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                admin.set_scram_password(USER, SECRET, mechanism)  # type: ignore[arg-type]
        yield Secured(broker, ports, authority, signing_key, authority.client(USER))
        assert SECRET not in broker.log_path.read_text()


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
    options["oauth_cb"] = lambda _: secured.token()
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


def java_properties(secured: Secured, protocol: str, mechanism: str, folder: Path) -> Path:
    lines = [f"security.protocol={protocol}"]
    if protocol.endswith("SSL"):
        lines += ["ssl.truststore.type=PEM", f"ssl.truststore.location={secured.authority.file}"]
    if protocol == TLS:
        lines += ["ssl.keystore.type=PEM", f"ssl.keystore.location={secured.certificate}"]
    if mechanism:
        module = "PlainLoginModule" if mechanism == "PLAIN" else "ScramLoginModule"
        credentials = jaas(module, {"username": USER, "password": SECRET})
        lines += [f"sasl.mechanism={mechanism}", f"sasl.jaas.config={credentials}"]
    path = folder / f"{protocol}-{mechanism or 'none'}.properties"
    path.write_text("\n".join(lines))
    return path


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
@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_java(
    protocol: str,
    mechanism: str,
    secured: Secured,
    java: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    file = str(java_properties(secured, protocol, mechanism, tmp_path))
    at = ("--bootstrap-server", secured.address(protocol))
    topic = fresh()
    sent = java(
        "org.apache.kafka.tools.ConsoleProducer", *at, "--topic", topic,
        "--command-config", file, given="one\ntwo\n",
    )  # fmt: skip
    assert sent.returncode == 0, sent.stderr
    read = java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer", *at, "--topic", topic,
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
        "KGO_SEEDS": secured.address(TLS),
        "KGO_TEST_TLS": f"ca:{secured.authority.file},"
        f"cert:{secured.certificate},key:{secured.certificate}",
        "KGO_TEST_SCRAM_SEEDS": secured.address(SASL_PLAIN),
        "KGO_TEST_RF": "1",
        "KGO_TEST_RECORDS": "1000",
        "KGO_LOG_LEVEL": "none",
    }
    # With KGO_TEST_SCRAM every client of the suite would authenticate, also over TLS.
    for only, more in (
        ("TestSCRAMAuthBadCredentials|TestTxnEtl|TestIssue.*Commit", {}),
        ("TestSCRAMAuth$", {"KGO_TEST_SCRAM": f"{USER}:{SECRET}:512"}),
    ):
        done = subprocess.run(
            [go, "test", "-json", "-count=1", "-vet=off", f"-run={only}", "."],
            cwd=package,
            env=environment | more,
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
