"""Clients of every maker over every protocol and mechanism: records there and back.

The table of docs/security.md has a cell for each client and way; each cell is a test here.
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
sys.path.append(str(Path(__file__).resolve().parents[2] / "server"))

from server_kit.secured_process import (
    PLAINTEXT,
    SASL_PLAIN,
    SASL_TLS,
    TLS,
    TOKENS,
    WAYS,
    Secured,
    secured_process,
    write_properties,
)

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "security.md"
RECORDS = [str(number) for number in range(10)]
ALL_WAYS = [(PLAINTEXT, ""), *WAYS, (SASL_PLAIN, TOKENS), (SASL_TLS, TOKENS)]

# Writes the records to a topic and returns what it reads from there.
RoundTrip = Callable[[Secured, str, str, str, Path], list[str]]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_process(tmp_path_factory.mktemp("secured")) as running:
        yield running


def ottla(secured: Secured, protocol: str, mechanism: str, topic: str, _: Path) -> list[str]:
    from ottla import Consumer, Producer

    options = secured.options(protocol, mechanism)
    address = options.pop("bootstrap.servers")
    with Producer(address, **options) as producer:
        for value in RECORDS:
            producer.send(topic, value=value)
    found: list[str] = []
    group = {"group.id": topic, "auto.offset.reset": "earliest"}
    with Consumer(address, **options, **group) as consumer:
        consumer.subscribe([topic])
        for record in consumer:
            assert record.value is not None
            found.append(record.value.decode())
            if len(found) == len(RECORDS):
                break
    return found


def confluent(secured: Secured, protocol: str, mechanism: str, topic: str, _: Path) -> list[str]:
    from confluent_kafka import Consumer, Producer

    options: dict[str, Any] = secured.options(protocol, mechanism)
    producer = Producer({**options, "message.timeout.ms": 20_000})
    failures: list[Any] = []
    for value in RECORDS:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(30) == 0
    assert failures == [None] * len(RECORDS)
    consumer = Consumer({**options, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[str] = []
    deadline = time.monotonic() + 60
    while len(found) < len(RECORDS) and time.monotonic() < deadline:
        for each in consumer.consume(10, 1.0):
            value = each.value()
            if each.error() is None and value is not None:
                found.append(value.decode())
    consumer.close()
    return found


def kcat(secured: Secured, protocol: str, mechanism: str, topic: str, folder: Path) -> list[str]:
    program = toolchain.tool("kcat")
    environment = newer_librdkafka(program, folder) if mechanism == TOKENS else dict(os.environ)
    options = secured.options(protocol, mechanism)
    address = options.pop("bootstrap.servers")
    words = [word for name, value in options.items() for word in ("-X", f"{name}={value}")]
    command = [program, "-b", address, *words, "-t", topic]

    def run(*more: str, given: str = "") -> str:
        done = subprocess.run(
            [*command, *more],
            input=given,
            capture_output=True,
            text=True,
            env=environment,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("-P", given="".join(f"{value}\n" for value in RECORDS))
    return run("-C", "-e", "-q", "-o", "beginning").splitlines()


def newer_librdkafka(kcat: str, folder: Path) -> dict[str, str]:
    """Debian's librdkafka cannot ask for tokens; kcat runs with that of confluent-kafka, too."""
    told = subprocess.run([kcat, "-V"], capture_output=True, text=True, check=False)
    if "oidc" in told.stdout + told.stderr:
        return dict(os.environ)
    import confluent_kafka

    beside = Path(confluent_kafka.__file__).parent.with_name("confluent_kafka.libs")
    (library,) = beside.glob("librdkafka-*.so.1")
    (folder / "librdkafka.so.1").symlink_to(library)
    return {**os.environ, "LD_LIBRARY_PATH": f"{folder}:{beside}"}


def java(secured: Secured, protocol: str, mechanism: str, topic: str, folder: Path) -> list[str]:
    """Kafka's own tools."""
    options = secured.java_options(protocol, mechanism)
    file = str(write_properties(folder / "client.properties", options))
    # Where Java may ask for tokens is not a client's to say.
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={secured.tokens.url}"

    def run(name: str, *words: str, given: str = "") -> str:
        at = ("--bootstrap-server", secured.address(protocol), "--topic", topic)
        done = subprocess.run(
            [*toolchain.kafka_tools(), allowed, name, *at, "--command-config", file, *words],
            input=given,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    sent = "".join(f"{value}\n" for value in RECORDS)
    run("org.apache.kafka.tools.ConsoleProducer", given=sent)
    most = ("--from-beginning", "--max-messages", str(len(RECORDS)))
    return run("org.apache.kafka.tools.consumer.ConsoleConsumer", *most).splitlines()


def franz_go(secured: Secured, protocol: str, mechanism: str, topic: str, _: Path) -> list[str]:
    options = secured.options(protocol, mechanism)
    done = subprocess.run(
        toolchain.go_program("secured"),
        input=json.dumps({**options, "topic": topic}),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


CLIENTS: dict[str, RoundTrip] = {
    "Ottla": ottla,
    "Java": java,
    "librdkafka (confluent-kafka)": confluent,
    "kcat": kcat,
    "franz-go": franz_go,
}
IN_SHORT_RUNS = {
    ("Ottla", SASL_TLS, TOKENS),
    ("librdkafka (confluent-kafka)", TLS, ""),
    ("librdkafka (confluent-kafka)", SASL_TLS, "SCRAM-SHA-512"),
}
CELLS = [
    pytest.param(
        client,
        *way,
        id="-".join(filter(None, (client.partition(" ")[0], *way))),
        marks=() if (client, *way) in IN_SHORT_RUNS else pytest.mark.long,
    )
    for client in CLIENTS
    for way in ALL_WAYS
]


@pytest.mark.parametrize(("client", "protocol", "mechanism"), CELLS)
@pytest.mark.timeout(240, func_only=True)
def test_a_client_writes_and_reads(
    client: str, protocol: str, mechanism: str, secured: Secured, tmp_path: Path
) -> None:
    topic = f"secured-{uuid.uuid4().hex[:8]}"
    read = CLIENTS[client](secured, protocol, mechanism, topic, tmp_path)
    assert read == RECORDS


def test_the_document_promises_what_is_tested() -> None:
    """Columns are mechanisms, with the protocols that carry each; rows are clients."""
    lines = DOCUMENT.read_text("utf-8").splitlines()
    head = next(at for at, line in enumerate(lines) if line.startswith("| client |"))
    columns = _cells(lines[head])[1:]
    promised = set()
    for line in lines[head + 2 :]:
        if not line.startswith("|"):
            break
        client, *cells = _cells(line)
        for column, protocols in zip(columns, cells, strict=True):
            mechanism = "" if column in ("none", "certificate") else column
            promised |= {(client, each.strip(), mechanism) for each in protocols.split(",")}
    assert promised == {(client, *way) for client in CLIENTS for way in ALL_WAYS}


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]
