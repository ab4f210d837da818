"""The table of clients: name, how to get it going, what it can do.

Getting one going skips the test (or fails it, see toolchain.py) where its toolchain is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from interop_kit import toolchain
from interop_kit.clients.client import ALL_CODECS, EVERYTHING, Ability, Client
from interop_kit.clients.driver import DriverClient
from interop_kit.clients.kcat import KcatClient
from interop_kit.clients.python_clients import AiokafkaClient, ConfluentClient, KafkaPythonClient

A = Ability
JAVA = toolchain.INTEROP / "java"
Make = Callable[[str, Path], Client]  # of the bootstrap address and a folder for logs


@dataclass(frozen=True)
class Kind:
    name: str
    make: Make
    codecs: frozenset[str] = frozenset(ALL_CODECS)
    abilities: frozenset[Ability] = EVERYTHING
    # What it loses on reading, or cannot read at all.
    unreadable: frozenset[Ability] = frozenset()

    def client(self, bootstrap: str, logs: Path) -> Client:
        client = self.make(bootstrap, logs)
        client.name = self.name
        client.codecs = self.codecs
        client.abilities = self.abilities
        client.unreadable = self.unreadable
        return client


def table(kinds: Iterable[Kind]) -> dict[str, Kind]:
    return {kind.name: kind for kind in kinds}


def confluent(bootstrap: str, logs: Path) -> Client:
    return ConfluentClient(bootstrap)


def kafka_python(bootstrap: str, logs: Path) -> Client:
    return KafkaPythonClient(bootstrap)


def aiokafka(bootstrap: str, logs: Path) -> Client:
    return AiokafkaClient(bootstrap)


def kcat(bootstrap: str, logs: Path) -> Client:
    return KcatClient(toolchain.tool("kcat"), bootstrap)


def java(bootstrap: str, logs: Path) -> Client:
    command = toolchain.java_program(
        "java-client",
        [JAVA / "Lines.java", JAVA / "ClientDriver.java"],
        "ClientDriver",
        [f"org.apache.kafka:kafka-clients:{toolchain.KAFKA_VERSION}", toolchain.GSON],
    )
    return DriverClient([*command, bootstrap], logs / "java.log")


def franz_go(bootstrap: str, logs: Path) -> Client:
    return DriverClient([*toolchain.go_program("franz"), bootstrap], logs / "franz-go.log")


def sarama(bootstrap: str, logs: Path) -> Client:
    return DriverClient([*toolchain.go_program("sarama"), bootstrap], logs / "sarama.log")


def kafkajs(bootstrap: str, logs: Path) -> Client:
    command = toolchain.node_program("kafkajs.mjs")
    return DriverClient([*command, bootstrap], logs / "kafkajs.log")


def platformatic(bootstrap: str, logs: Path) -> Client:
    command = toolchain.node_program("platformatic.mjs")
    return DriverClient([*command, bootstrap], logs / "platformatic.log")


def php(bootstrap: str, logs: Path) -> Client:
    return DriverClient([*toolchain.php_program(), bootstrap], logs / "php.log")


KAFKA_PYTHON = EVERYTHING - {A.EMPTY_RECORDS, A.NULL_HEADERS}
# kcat's JSON output carries text only; it has no admin commands, and stamps records itself.
KCAT = EVERYTHING - {A.CREATE, A.BINARY, A.TIMESTAMPS}

CLIENTS = table(
    [
        Kind("confluent-kafka", confluent),
        Kind("kafka-python", kafka_python, abilities=KAFKA_PYTHON),
        Kind("aiokafka", aiokafka, abilities=EVERYTHING - {A.EMPTY_RECORDS}),
        Kind("kcat", kcat, abilities=KCAT, unreadable=frozenset({A.BINARY})),
        Kind("java", java),
        Kind("franz-go", franz_go),
        Kind("sarama", sarama),
        Kind(
            "kafkajs",
            kafkajs,
            # Headers are an object to it: one place for each name.
            abilities=EVERYTHING - {A.READ, A.REPEATED_HEADERS, A.NULL_HEADERS} | {A.GROUP_READ},
            unreadable=frozenset({A.REPEATED_HEADERS}),
        ),
        Kind("platformatic", platformatic),
        Kind("php", php),
    ]
)


# Clients from before Kafka 0.11, or new ones told to speak as if the broker were that old. Message
# format v0 up to 0.9, v1 in 0.10: what a broker of today has to convert both ways.


def parsed(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def old(name: str, version: str, make: Make, abilities: frozenset[Ability] = EVERYTHING) -> Kind:
    """A client that speaks as in this version of Kafka: it has no more than there was then."""
    abilities -= {A.HEADERS, A.IDEMPOTENCE}
    unreadable = {A.HEADERS}
    if parsed(version) < (0, 10, 1):
        abilities -= {A.TIME, A.CREATE}
    if parsed(version) < (0, 10):
        abilities -= {A.TIMESTAMPS}
        unreadable |= {A.TIMESTAMPS}
    if A.BINARY not in abilities:
        unreadable |= {A.BINARY}
    codecs = frozenset(ALL_CODECS) - {"zstd"}
    if name == "sarama" and parsed(version) < (0, 10):
        # In format v0 the checksum of an LZ4 frame's header is computed wrongly; the Java clients
        # do so, Kafka expects it and sends it so. sarama does it right, which is wrong here.
        codecs -= {"lz4"}
    return Kind(f"{name}-{version}", make, codecs, abilities, frozenset(unreadable))


def old_kafka_python(version: str) -> Kind:
    def make(bootstrap: str, logs: Path) -> Client:
        return KafkaPythonClient(bootstrap, api_version=parsed(version))

    return old("kafka-python", version, make, KAFKA_PYTHON)


def old_kcat(version: str) -> Kind:
    def make(bootstrap: str, logs: Path) -> Client:
        return KcatClient(toolchain.tool("kcat"), bootstrap, version)

    return old("kcat", version, make, KCAT)


def old_sarama(version: str) -> Kind:
    def make(bootstrap: str, logs: Path) -> Client:
        command = [*toolchain.go_program("sarama"), bootstrap, version]
        return DriverClient(command, logs / f"sarama-{version}.log")

    return old("sarama", version, make)


def old_java(version: str) -> Kind:
    """The Java client itself, as it was released."""
    producer_only = parsed(version) < (0, 9)

    def make(bootstrap: str, logs: Path) -> Client:
        sources = [JAVA / "Lines.java", JAVA / "OldProducerDriver.java"]
        main = "OldProducerDriver"
        if not producer_only:
            sources.append(JAVA / "OldClientDriver.java")
            main = "OldClientDriver"
        artifacts = [f"org.apache.kafka:kafka-clients:{version}", toolchain.GSON]
        command = toolchain.java_program(f"java-{version}", sources, main, artifacts)
        return DriverClient([*command, bootstrap], logs / f"java-{version}.log")

    abilities = EVERYTHING - {A.CREATE, A.OFFSETS}
    return old("java", version, make, abilities - {A.READ} if producer_only else abilities)


OLD_CLIENTS = table(
    [
        *(old_kafka_python(version) for version in ("0.8.2", "0.9", "0.10.0", "0.10.2")),
        *(old_kcat(version) for version in ("0.8.2", "0.9.0")),
        *(old_sarama(version) for version in ("0.8.2.0", "0.9.0.0", "0.10.0.0", "0.10.2.0")),
        *(old_java(version) for version in toolchain.OLD_KAFKA_VERSIONS),
    ]
)


# Those with which `make test` is content: a library of each kind, both message formats, the Java client
# with a consumer. `make test-long` has all.
IN_SHORT_RUNS = {
    "kafka-python-0.8.2",
    "kafka-python-0.10.2",
    "kcat-0.8.2",
    "sarama-0.10.2.0",
    "java-0.9.0.1",
}


def named(kinds: dict[str, Kind], *abilities: Ability) -> list[str]:
    """The names of those that can do all of this."""
    return [name for name, kind in kinds.items() if kind.abilities.issuperset(abilities)]
